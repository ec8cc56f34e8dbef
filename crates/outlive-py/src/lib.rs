//! The native half of the Python package `outlive`: the library's registry and run handle as Python objects.
//!
//! Two rules keep a Python program from blocking its heartbeats, and the heartbeats from blocking the program. No call of
//! the library is made while the interpreter's lock is held (`blocking.rs`). No thread of the library ever calls Python:
//! a reason to stop is announced through a file descriptor that Python polls (`stop.rs`).
//!
//! What is convenient for Python is written in Python, in `python/outlive/`. Structured values cross as JSON.

mod blocking;
mod errors;
mod handle;
mod inputs;
mod module;
mod registry;
mod stop;
mod views;
