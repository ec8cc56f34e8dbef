//! Blocking calls of the library, made without the interpreter's lock.

use outlive::error::Error;
use pyo3::prelude::*;

use crate::errors::raise;

/// Waits for a future of the library while other Python threads run.
pub fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T, Error>> + Send) -> PyResult<T> {
    py.detach(|| pollster::block_on(future)).map_err(|error| raise(py, &error))
}

/// Makes a call of the library while other Python threads run.
pub fn call<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    py.detach(call).map_err(|error| raise(py, &error))
}

/// Waits until no thread writes to a registry: a forked child would inherit what such a thread holds.
#[pyfunction]
pub fn before_fork(py: Python<'_>) {
    py.detach(outlive::host::before_fork);
}

/// Lets threads write again, in the process that has forked.
#[pyfunction]
pub fn after_fork_in_parent() {
    outlive::host::after_fork_in_parent();
}

/// Lets the forked process write.
#[pyfunction]
pub fn after_fork_in_child() {
    outlive::host::after_fork_in_child();
}
