//! What an owner says its attempt has used: noted with its other writes, and no event of its own.

use std::sync::Arc;

use super::checks::check_fence;
use super::{Fence, Refusal};
use crate::model::run::{POINTS, Run, State, Usage};

/// The run with what its attempt has used so far, said by the owner that presents `fence`. A course that is too long is
/// left out.
pub(crate) fn note_usage(run: &Run, fence: &Fence, usage: &Arc<Usage>) -> Result<Run, Refusal> {
    let State::Running(held) = &run.state else { return Err(super::lost(run, fence)) };
    check_fence(run, held, fence)?;
    let usage = if usage.points.len() <= POINTS { usage.clone() } else { Arc::new(usage.without_points()) };
    Ok(Run { usage: Some(usage), ..run.clone() })
}
