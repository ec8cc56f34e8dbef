//! The extension module `outlive._outlive`.

use pyo3::prelude::*;

use crate::handle::Handle;
use crate::registry::NativeRegistry;

/// The native half of `outlive`. Its names are private to the package.
#[pymodule(gil_used = false)]
fn _outlive(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("REGISTRY_VARIABLE", outlive::discovery::REGISTRY_VARIABLE)?;
    module.add("RUN_VARIABLE", outlive::host::RUN_VARIABLE)?;
    module.add("EPOCH_VARIABLE", outlive::host::EPOCH_VARIABLE)?;
    module.add("ATTEMPT_VARIABLE", outlive::host::ATTEMPT_VARIABLE)?;
    module.add("OUTCOME_VARIABLE", outlive::host::OUTCOME_VARIABLE)?;
    module.add("STEP_VARIABLE", outlive::host::STEP_VARIABLE)?;
    module.add("TRACE_VARIABLE", outlive::run::TRACE_VARIABLE)?;
    module.add_class::<NativeRegistry>()?;
    module.add_class::<Handle>()?;
    module.add_function(wrap_pyfunction!(crate::blocking::before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(crate::blocking::after_fork_in_parent, module)?)?;
    module.add_function(wrap_pyfunction!(crate::blocking::after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(crate::blocking::begin_exit, module)?)?;
    module.add_function(wrap_pyfunction!(crate::blocking::limit_calls, module)?)?;
    module.add_function(wrap_pyfunction!(crate::blocking::wait_for_calls, module)?)?;
    module.add_function(wrap_pyfunction!(crate::inputs::inside, module)?)?;
    module.add_function(wrap_pyfunction!(crate::inputs::seconds, module)?)
}
