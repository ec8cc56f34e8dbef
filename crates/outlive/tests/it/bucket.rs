//! Registries in a bucket: what only they can suffer, and what a sweep leaves.

mod adversary;
mod faults;
mod field;
mod interchange;
mod odd_input;
mod servers;
mod sweeping;
mod yard;
