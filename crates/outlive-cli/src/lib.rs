//! What the command `outlive` does. It is a library so that cargo compiles it while the code of `outlive` is still
//! generated, which a program of its own would wait for. No other program may depend on it.
mod call;
mod cli;
mod exec;
mod logs;
mod lookup;
mod mcp;
mod operations;
mod server;
mod ui;
mod workers;

/// Does what the arguments of this process ask for, and answers its exit status.
pub fn main() -> i32 {
    cli::main().into()
}
