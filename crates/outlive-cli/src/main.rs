//! The command `outlive`.

mod cli;
mod inside;
mod launcher;
mod operation;
mod operations;
mod run_view;
mod settings;
mod table;
mod terminal;

fn main() -> std::process::ExitCode {
    cli::main()
}
