//! The sweeper: deletes artifacts that no run needs, and nothing else.
//!
//! What is to become of a run's artifacts is a pure function of its record, of what manifests and the pointer name, and of
//! the time ([`decide`]). Whatever cannot be read or understood is kept and reported. A run is marked before anything of it is
//! deleted, so that no worker resumes it meanwhile and no two sweep it at once.
//!
//! Whether a record may have anything read or deleted is not decided here but by [`crate::secrets::trust::may`] (ADR 0018).

mod forget;
mod grounds;
mod location;
mod manifest;
mod marks;
mod naming;
mod neighbours;
mod objects;
mod pass;
mod records;
mod trees;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::model::id::RunId;
use crate::model::run::{End, Run, State};
use crate::model::time::{Timestamp, show_duration};

pub use self::manifest::ManifestNames;
#[cfg(any(test, feature = "testing"))]
pub(crate) use self::objects::{Machine, Objects};
pub use self::pass::sweep;
#[cfg(any(test, feature = "testing"))]
pub(crate) use self::pass::sweep_from;

/// For how long nothing of a run is touched after its end, unless it is said otherwise.
pub const GRACE: Duration = Duration::from_secs(3_600);

/// What [`sweep`](crate::sweep) spares. Each part only ever spares more, the longer or the more it is.
#[derive(Debug, Clone)]
pub struct SweepPolicy {
    /// Runs that have ended less long ago.
    pub grace: Duration,
    /// Of the runs of each place the last so many that have ended.
    pub keep_last: usize,
    /// Runs that ended less long ago than this.
    pub older_than: Option<Duration>,
    /// All runs but these, where there are any.
    pub only: BTreeSet<RunId>,
    /// Objects that were put less long before the records were read: dates of objects are not exact, and the writer of one
    /// later may have a record that was not read.
    pub unsure: Duration,
    /// Records of runs of which nothing is left, unless they are over for this long; all of them, where it is unset.
    pub forget_after: Option<Duration>,
    /// Everything: the report says what would be deleted, and nothing is.
    pub dry_run: bool,
}

/// How exact the dates of objects are taken to be.
pub const UNSURE: Duration = Duration::from_secs(3);

impl SweepPolicy {
    /// What either spares.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        // Records are kept unless both would let them go, and where no owner is named all are meant.
        let forget_after = self.forget_after.zip(other.forget_after).map(|(one, other)| one.max(other));
        let only = match (self.only.is_empty(), other.only.is_empty()) {
            (true, _) => other.only.clone(),
            (_, true) => self.only.clone(),
            _ => self.only.intersection(&other.only).copied().collect(),
        };
        Self {
            grace: self.grace.max(other.grace),
            keep_last: self.keep_last.max(other.keep_last),
            older_than: self.older_than.max(other.older_than),
            only,
            unsure: self.unsure.max(other.unsure),
            forget_after,
            dry_run: self.dry_run || other.dry_run,
        }
    }
}

impl Default for SweepPolicy {
    fn default() -> Self {
        Self {
            grace: GRACE,
            keep_last: 0,
            older_than: None,
            only: BTreeSet::new(),
            unsure: UNSURE,
            forget_after: None,
            dry_run: false,
        }
    }
}

/// What is known of a run beside its record.
#[derive(Debug, Clone)]
pub struct SweepInput<'a> {
    /// The run.
    pub run: &'a Run,
    /// The records that its writer keeps of it.
    pub writers: &'a [Run],
    /// What its manifest names below the place; none where it has no manifest.
    pub manifest: Option<Result<&'a ManifestNames, &'a str>>,
    /// What the pointer's manifest names below the place, or why that cannot be known.
    pub pointer: Result<&'a ManifestNames, &'a str>,
    /// What manifests of other runs name below the place outside their own trees.
    pub borrowed: &'a ManifestNames,
    /// How many runs of the place have ended later.
    pub rank: usize,
    /// The store's time.
    pub now: Timestamp,
}

/// What becomes of a run's artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// They stay, and why.
    Keep(Reason),
    /// They are deleted, all but what these name, and why.
    Delete {
        /// What is needed. In a plain tree, that is also what they may mean.
        except: ManifestNames,
        /// Only attempts; what else is in the tree stays. A plain tree has none.
        attempts_only: bool,
        /// For people.
        reason: String,
    },
}

/// Why artifacts stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// As they should.
    Usual(String),
    /// Because something is not as it should be and needs a person's attention.
    Problem(String),
}

impl Decision {
    fn usual(why: impl Into<String>) -> Self {
        Self::Keep(Reason::Usual(why.into()))
    }

    fn problem(why: impl Into<String>) -> Self {
        Self::Keep(Reason::Problem(why.into()))
    }
}

/// Since when nothing more is to be expected of a run, and how it ended; why something is, where it is.
fn over_since(run: &Run, now: Timestamp) -> Result<(Timestamp, &'static str), String> {
    match &run.state {
        State::Pending(_) => Err("it waits to be tried".into()),
        State::Suspended(_) => Err("it is suspended, and may be woken".into()),
        State::Running(running) => {
            let owner = &running.owner;
            if !owner.lease.lapsed(owner.heard.silent_for) {
                return Err("it is in flight".into());
            }
            if !run.foreign {
                return Err(match run.copied {
                    true => "it belongs to the registry that this one was copied from".into(),
                    false => "its owner is silent; `outlive reap` marks it dead".into(),
                });
            }
            // A writer of another program ends its own record, or is silent for good.
            Ok((owner.heard.at.after(owner.lease.lasts()).min(now), "abandoned"))
        }
        State::Ended(ending) => match ending.how {
            End::Interrupted(_) => Err("it was interrupted, and may be resumed".into()),
            End::Succeeded => Ok((ending.at, "succeeded")),
            End::Failed(_) => Ok((ending.at, "failed")),
            End::Cancelled(_) => Ok((ending.at, "cancelled")),
            End::Dead(_) => Ok((ending.at, "dead")),
        },
    }
}

/// Since when nothing more is to be expected of a run and of its writer, and how it ended.
fn all_over_since(run: &Run, writers: &[Run], now: Timestamp) -> Result<(Timestamp, &'static str), String> {
    let (mut since, mut how) = over_since(run, now)?;
    for writer in writers {
        let (writer_since, writer_how) =
            over_since(writer, now).map_err(|why| format!("by the record of its writer, {why}"))?;
        since = since.max(writer_since);
        if writer_how == "succeeded" {
            how = writer_how;
        }
    }
    Ok((since, how))
}

/// What becomes of a run's artifacts: they stay unless everything speaks for it.
pub fn decide(facts: &SweepInput<'_>, spare: &SweepPolicy) -> Decision {
    let (run, now) = (facts.run, facts.now);
    let Some(output) = &run.spec.output else { return Decision::usual("it says of no artifacts") };
    let tree = match output.tree(run.id) {
        Ok(tree) => tree,
        Err(error) => return Decision::problem(error.to_string()),
    };
    let (since, how) = match all_over_since(run, facts.writers, now) {
        Ok(over) => over,
        Err(why) => return Decision::usual(why),
    };
    if !spare.only.is_empty() && !spare.only.contains(&run.id) {
        return Decision::usual("it was not named");
    }
    let ago = now.since(since);
    let younger = [Some(spare.grace), spare.older_than].into_iter().flatten().find(|limit| ago < *limit);
    if let Some(limit) = younger {
        return Decision::usual(format!("it is {how} for {}, not yet {}", show_duration(ago), show_duration(limit)));
    }
    if facts.rank < spare.keep_last {
        return Decision::usual(format!("it is one of the last {}", spare.keep_last));
    }
    let needed = match facts.pointer {
        Ok(pointer) => pointer.within(&tree).and(&facts.borrowed.within(&tree)),
        Err(why) => return Decision::problem(format!("the pointer cannot be read: {why}")),
    };
    match facts.manifest {
        Some(Err(why)) => Decision::problem(format!("its manifest cannot be read: {why}")),
        Some(Ok(names)) if !names.names_any_below(&tree) => {
            Decision::problem("its manifest names nothing of it".to_owned())
        }
        Some(Ok(names)) => Decision::Delete {
            except: names.within(&tree).and(&needed),
            attempts_only: !output.plain,
            reason: match output.plain {
                true => format!("{how}: what its manifest does not name"),
                false => format!("{how}: attempts that its manifest does not name"),
            },
        },
        None if how == "succeeded" => Decision::problem("it succeeded and names no manifest"),
        None => Decision::Delete {
            attempts_only: !output.plain && needed.names_any_below(&tree),
            except: needed,
            reason: format!("{how}, and it has no manifest"),
        },
    }
}

/// What [`sweep`](crate::sweep) did, or what it would do where it only looked.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(description = "What a sweep did, or would do."))]
pub struct SweepReport {
    /// Nothing was deleted.
    pub dry_run: bool,
    /// Runs whose artifacts are deleted, in part or all.
    pub swept: Vec<Line>,
    /// Runs whose artifacts stay.
    pub kept: Vec<Line>,
    /// What needs a person's attention. Nothing of it was touched.
    pub problems: Vec<SweepProblem>,
    /// How many objects are deleted.
    pub objects: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// How many could not be, and are left to the next sweep.
    pub left: u64,
    /// Runs whose records are deleted, because they ended long ago and nothing is left of them.
    pub forgotten: Vec<RunId>,
    /// Places that keep versions: what was deleted there is hidden, and takes room until their own rules remove it.
    pub versioned: Vec<String>,
}

/// One run of a sweep.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Line {
    /// The run.
    pub id: RunId,
    /// Its tree.
    pub prefix: String,
    /// The reason of the decision.
    pub reason: String,
    /// How many objects are deleted.
    pub objects: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// How many objects of the tree stay.
    pub kept: u64,
    /// How many could not be deleted.
    pub left: u64,
}

impl Line {
    fn new(id: RunId, prefix: String) -> Self {
        Self { id, prefix, reason: String::new(), objects: 0, bytes: 0, kept: 0, left: 0 }
    }
}

/// What is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SweepProblem {
    /// The object or record.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
}
