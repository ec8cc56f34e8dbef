//! The conformance suite: what the [`Store`] trait means, as checks that every store must pass.
//!
//! A backend brings its [`Ground`], on which stores can be made and time can pass, and runs [`CHECKS`] on it. Each
//! check names the promise of the trait's *Contract* that it holds the store to. A check answers instead of panicking,
//! so that the suite can be held to account itself: stores with one defect each must fail it, at the promise they break.
//!
//! Not here: that [`Error::Unknown`](crate::store::Error::Unknown) is distinguished from other failures. That takes a
//! backend whose wire can be cut, and is proved by the simulation and by each backend's own tests.

mod beats;
mod due;
mod events;
mod heads;
mod keys;
mod lists;
mod notifications;
mod rates;
mod scene;
mod unique;
mod updates;
mod writes;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::store::Store;

/// Work that runs beside other work: what [`Ground`] is given to run at once.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer of a check: nothing, or what the store did wrong.
pub type CheckOutcome<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Where stores of one kind are made, and where time passes for them.
#[async_trait]
pub trait Ground: Send + Sync {
    /// A new store with nothing in it.
    async fn fresh(&self) -> Arc<dyn Store>;

    /// The store that was made last, through another connection where there are connections: what one process holds
    /// apart by a lock of its own is not yet held apart for two.
    async fn again(&self) -> Arc<dyn Store>;

    /// Lets time pass by the clock of the stores.
    async fn pass(&self, duration: Duration);

    /// Lets time pass in which no store of this ground can receive a heartbeat: an outage, a night of sleep.
    async fn deafen(&self, duration: Duration);

    /// A time that is long beside what a few calls take, and short enough to be waited for.
    fn stretch(&self) -> Duration;

    /// Whether its stores tell a deleted run from one that they never kept: a beat then calls it lost, not unknown.
    fn knows_deletions(&self) -> bool {
        false
    }

    /// Does all of this work at once and returns when it is done. A ground whose stores need a runtime of their own
    /// does it there.
    async fn at_once(&self, work: Vec<Work>) {
        std::thread::scope(|scope| {
            for work in work {
                scope.spawn(|| pollster::block_on(work));
            }
        });
    }
}

/// One thing that every store must do. Run each of [`CHECKS`] on a fresh [`Ground`].
#[derive(Clone, Copy)]
pub struct Check {
    /// What, as a sentence without spaces.
    pub name: &'static str,
    /// The promise of the contract of [`Store`] that it belongs to.
    pub promise: u8,
    /// Does the store do it?
    pub run: fn(&dyn Ground) -> CheckOutcome<'_>,
}

/// Ends a check with what the store did wrong.
macro_rules! ensure {
    ($holds:expr, $($wrong:tt)+) => {
        if !$holds {
            return Err(format!($($wrong)+));
        }
    };
}
use ensure;

/// Declares the checks once: as the table, and as a macro that makes a test of each.
macro_rules! table {
    ($dollar:tt $($promise:literal: $($module:ident::$check:ident),+;)+) => {
        /// All checks, by promise.
        pub const CHECKS: &[Check] = &[$($(
            Check { name: stringify!($check), promise: $promise, run: |ground| Box::pin($module::$check(ground)) },
        )+)+];

        /// Makes a test of every check, which calls the given function with its name. For the tests of a store of your own:
        /// the function makes a [`Ground`](crate::conformance::Ground) for it and runs the check of that name.
        ///
        /// ```
        /// # use std::sync::Arc;
        /// # use std::time::Duration;
        /// use outlive::conformance::{CHECKS, Ground};
        /// use outlive::store::{Store, memory::MemoryStore};
        /// use outlive::testing::ManualClock;
        ///
        /// struct MyGround { clock: Arc<ManualClock>, store: MemoryStore } // … your store instead …
        ///
        /// #[async_trait::async_trait]
        /// impl Ground for MyGround {
        ///     async fn fresh(&self) -> Arc<dyn Store> { Arc::new(MemoryStore::new(self.clock.clone())) }
        ///     async fn again(&self) -> Arc<dyn Store> { Arc::new(self.store.clone()) }
        ///     async fn pass(&self, duration: Duration) { self.clock.pass(duration) }
        ///     async fn deafen(&self, duration: Duration) { self.clock.pass(duration) }
        ///     fn stretch(&self) -> Duration { Duration::from_secs(60) }
        /// }
        ///
        /// fn holds(name: &str) {
        ///     let clock = ManualClock::new();
        ///     let ground = MyGround { store: MemoryStore::new(clock.clone()), clock };
        ///     let check = CHECKS.iter().find(|check| check.name == name).expect("a check of that name");
        ///     pollster::block_on((check.run)(&ground)).expect("the store keeps the promise");
        /// }
        ///
        /// outlive::conformance_tests!(holds);
        /// ```
        #[macro_export]
        macro_rules! conformance_tests {
            ($dollar run:path) => {
                $($(
                    #[test]
                    fn $check() {
                        $dollar run(stringify!($check));
                    }
                )+)+
            };
        }
    };
}

table! { $
    1: writes::a_written_run_is_read_back_whole,
       writes::a_duplicate_id_conflicts,
       writes::a_stale_revision_conflicts,
       writes::a_write_that_lost_leaves_no_trace,
       writes::writes_of_a_batch_are_independent,
       writes::of_many_made_at_once_only_those_that_are_there_are_refused,
       writes::revisions_only_rise,
       writes::of_many_writers_one_wins,
       updates::an_update_ends_at_its_limit,
       updates::an_update_goes_in_order,
       updates::an_update_takes_only_its_selection,
       updates::an_update_of_what_is_due_offers_nothing_else,
       updates::an_update_passes_over_what_the_rule_refuses,
       updates::an_update_tells_what_it_wrote,
       updates::of_many_updaters_each_run_has_one,
       heads::an_update_of_a_share_offers_nothing_else;
    2: keys::a_key_has_no_more_holders_than_its_limit,
       keys::a_holder_keeps_its_key_while_it_reports,
       keys::whatever_ends_a_run_frees_its_keys,
       keys::an_update_respects_keys,
       keys::of_many_takers_of_a_key_one_holds_it,
       unique::a_unique_key_is_held_from_making_to_end,
       unique::a_run_that_ended_gets_its_unique_key_back_only_if_it_is_free,
       unique::keys_of_one_name_that_are_held_for_different_times_are_different,
       unique::of_many_makers_of_a_unique_run_one_makes_it,
       rates::no_more_start_than_a_rate_says_until_its_time_has_passed,
       rates::every_attempt_is_a_start_and_nothing_else_is,
       rates::an_update_respects_rates,
       rates::of_many_that_start_at_once_a_rate_lets_its_number;
    3: notifications::a_claim_counts_as_a_beat,
       notifications::silence_lasts_until_the_next_beat,
       notifications::every_beat_is_counted,
       notifications::rules_are_given_the_last_heartbeat,
       notifications::an_outage_is_not_silence;
    4: beats::a_beat_touches_no_run,
       beats::a_beat_moves_only_its_own_worker,
       beats::a_beat_never_revives,
       beats::a_beat_names_lost_runs,
       beats::a_beat_names_unknown_runs,
       beats::a_beat_names_cancelled_runs,
       beats::a_beat_names_forgotten_runs,
       beats::attention_misses_nothing,
       beats::a_worker_that_leaves_is_forgotten_unless_it_owns;
    5: events::a_record_bears_the_stamp_of_its_last_write;
    6: events::events_are_read_in_order_each_once,
       events::event_logs_do_not_mix;
    7: lists::a_list_is_what_the_filter_matches,
       lists::pages_neither_overlap_nor_leave_out,
       lists::lists_are_in_order,
       lists::counts_are_those_of_the_lists;
    8: events::a_missing_run_is_an_absence;
    9: due::the_next_due_time_is_that_of_the_first_run_to_come;
    10: heads::heads_are_the_oldest_due_runs_of_each_share;
}
