//! The chores of this repository: `cargo xtask test`, `lint`, `build`, `bench`, `dist`, `python` and `setup`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what a chore has to say, it prints")]

mod bench;
mod build;
mod chores;
mod dist;
mod features;
mod layers;
mod lint;
mod names;
mod postgres;
mod python;
mod setup;
mod steps;
mod test;
mod tidy;

fn main() -> std::process::ExitCode {
    chores::main()
}
