//! The command `outlive`.
#![cfg_attr(not(test), no_main)]

/// Called by the C library, not by Rust's runtime, which changes signals that commands inherit from us.
#[allow(unsafe_code, reason = "the C library finds it by its name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main() -> i32 {
    std::process::exit(outlive_cli::main())
}
