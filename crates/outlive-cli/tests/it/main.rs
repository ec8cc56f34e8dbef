//! The command `outlive`, as its users meet it: real processes, real signals, real disks.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "shown where a test fails, or was skipped")]

mod agents;
mod as_if_bare;
mod attaching;
mod bad_input;
mod bucket;
mod cancelling;
mod clients;
mod detaching;
mod far_trees;
mod faults_damage;
mod faults_group;
mod faults_process;
mod faults_registry;
mod faults_run;
mod faults_store;
mod faults_tree;
mod fleet;
mod floods;
mod inside;
mod layouts;
mod lent;
mod listing;
mod logs;
mod many;
mod one_table;
mod plane;
mod queueing;
mod resuming;
mod running;
mod sandbox;
mod secrets;
mod served;
mod services;
mod serving;
mod shells;
mod spooling;
mod steps;
mod supervising;
mod surface;
mod sweeping;
mod telemetry;
mod tidy;
mod top;
