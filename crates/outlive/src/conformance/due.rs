//! Promise 9: when the next run is due.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::scene::{Scene, failed};
use super::updates::waiting;
use super::{Ground, ensure};
use crate::model::filter::Filter;
use crate::model::run::{After, Release, Run, Spec};
use crate::model::time::Timestamp;
use crate::store::{Change, Order};
use crate::testing::spec;
use crate::util::sync::lock;

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) async fn the_next_due_time_is_that_of_the_first_run_to_come(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let next_due = async |kind: Option<&str>| {
        let filter = Filter { kinds: kind.map(|kind| [kind.to_owned()].into()), ..Filter::default() };
        scene.store.next_due(&filter).await.map_err(failed)
    };
    let parent = scene.enqueue(spec("job")).await?.run.id;
    ensure!(next_due(None).await?.is_none(), "a run that is due already is due next");
    let now: Mutex<Option<Timestamp>> = Mutex::default();
    let look = |_: &Run, at: Timestamp| -> Option<Change> {
        *lock(&now) = Some(at);
        None
    };
    scene.store.update(&waiting(Order::Claim, 1), &look).await.map_err(failed)?;
    let now = now.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or("the rule saw no time")?;
    let at = |hours: u32| Some(now.after(HOUR * hours));
    let after = vec![After { run: parent, release: Release::Success }];
    scene.enqueue(Spec { not_before: at(1), after, ..spec("job") }).await?;
    ensure!(next_due(None).await?.is_none(), "a run that waits for another is due by the clock");
    scene.enqueue(Spec { not_before: at(6), ..spec("late") }).await?;
    scene.enqueue(Spec { not_before: at(2), ..spec("job") }).await?;
    scene.enqueue(Spec { not_before: at(4), ..spec("job") }).await?;
    for (kind, hours) in [(None, 2), (Some("job"), 2), (Some("late"), 6)] {
        let left = next_due(kind).await?.ok_or_else(|| format!("nothing of {kind:?} is due next"))?;
        ensure!(left <= HOUR * hours, "of {kind:?} the first is due in {hours} h, and was promised in {left:?}");
        ensure!(left > HOUR * (hours - 1), "of {kind:?} the first is due in {hours} h, and was promised in {left:?}");
    }
    ensure!(next_due(Some("none")).await?.is_none(), "a run of another kind is due next");
    Ok(())
}
