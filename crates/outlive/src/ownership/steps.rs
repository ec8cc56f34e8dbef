//! Steps: the parts of a run whose results outlive its attempts.
//!
//! A step is a run of its own, of the kind [`KIND`](crate::model::step::KIND), so that its death is noticed like any other. What it depends on is
//! digested into its fingerprint. A later attempt that comes to a step of the same name and fingerprint is given what the
//! earlier one brought about, and nothing is done again.

mod attempt;
mod making;

pub use self::attempt::{Attempt, Next, PastStep};
pub(crate) use self::making::{StepWriter, step_id, step_time};
