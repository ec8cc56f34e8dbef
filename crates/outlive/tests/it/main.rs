//! The integration tests of the library, in one binary.

mod simulation;
