//! The index: what it knows of every run, and how much of that can be believed.

mod freshness;
mod vectors;
mod yard;
