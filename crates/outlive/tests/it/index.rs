//! The index: what it knows of every run, and how much of that can be believed.

mod freshness;
mod hostile;
mod oracle;
mod own;
mod servers;
mod vectors;
mod yard;
