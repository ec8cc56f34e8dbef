//! The command `outlive`, as its users meet it: real processes, real signals, real disks.

mod bad_input;
mod faults_process;
mod faults_store;
mod many;
mod running;
mod sandbox;
mod surface;
mod tidy;
