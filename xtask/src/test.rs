//! `cargo xtask test`: all tests, by the one command that the README names.

use crate::setup;
use crate::steps::{Failed, cargo, step};

/// Sets up, then runs all tests. What is said beyond the chore's name is said to nextest.
pub fn run(words: &[String]) -> Result<(), Failed> {
    setup::run(&[])?;
    let mut nextest = vec!["nextest", "run", "--workspace"];
    nextest.extend(words.iter().map(String::as_str));
    step(&cargo(), &nextest)?;
    step(&cargo(), &["test", "--workspace", "--doc"])?;
    println!("xtask test: all tests passed");
    Ok(())
}
