//! Errors of the library as exceptions of `outlive.errors`, which knows the classes and the hints that mean Python.

use outlive::error::Error;
use outlive::store;
use pyo3::prelude::*;

/// The exception for an error of the library. Where the package cannot be imported, a plain `RuntimeError`.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let (code, hint) = (error.code().as_str(), error.hint());
    let passing = matches!(error, Error::Store(error) if error.is_transient());
    let (holders, free_at) = match error {
        Error::KeyBusy { holders, free_at, .. } => {
            (holders.iter().map(ToString::to_string).collect(), free_at.map(|at| at.to_string()))
        }
        _ => (Vec::new(), None),
    };
    let kind = match error {
        Error::Store(store::Error::Forked { .. }) => "forked",
        Error::Store(store::Error::Unknown(_)) => "unknown",
        Error::Contended(_) => "contended",
        _ => code,
    };
    let made = py
        .import("outlive.errors")
        .and_then(|errors| errors.getattr("from_native"))
        .and_then(|make| make.call1((kind, code, error.to_string(), hint, passing, holders, free_at)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => pyo3::exceptions::PyRuntimeError::new_err(format!("{code}: {error}")),
    }
}

/// The exception for a call that makes no sense as things stand, with what to do instead.
pub fn refuse(py: Python<'_>, why: &str, hint: &str) -> PyErr {
    let error = raise(py, &Error::Invalid(why.into()));
    // Without the hint the error still says what is wrong.
    let _ = error.value(py).call_method1("add_hint", (hint,));
    error
}

/// The exception for a value that a caller got wrong.
pub fn invalid(py: Python<'_>, why: impl Into<String>) -> PyErr {
    raise(py, &Error::Invalid(why.into()))
}
