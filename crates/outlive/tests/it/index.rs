//! The index: what it knows of every run, and how much of that can be believed.

mod finding;
mod freshness;
mod hostile;
mod oracle;
mod oracle_own;
mod own;
mod reads;
mod servers;
mod vectors;
mod yard;
