//! Registries in a bucket: what only they can suffer, and what a sweep leaves.

mod adversary;
mod deleting;
mod ended_records;
mod faults;
mod field;
mod forgetting;
mod hostile;
mod interchange;
mod listing;
mod odd_input;
mod servers;
mod sweeping;
mod tombstones;
mod trusting;
mod yard;
