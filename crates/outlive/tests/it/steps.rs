//! Durable steps of a program: R10, on every store.

use std::cell::RefCell;
use std::time::Duration;

use outlive::error::{Code, Error};
use outlive::id::RunId;
use outlive::ownership::handle::RunHandle;
use outlive::ownership::step::StepError;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::testing::spec;

use crate::world::on_each;

/// A program of steps, with what was really done.
#[derive(Default)]
struct Program {
    done: RefCell<Vec<String>>,
}

impl Program {
    async fn step(&self, run: &RunHandle, name: &str, input: &str) -> String {
        let work = || {
            self.done.borrow_mut().push(name.into());
            Ok::<_, std::convert::Infallible>(format!("{name}({input})"))
        };
        run.step(name, input, work).await.unwrap()
    }

    /// What was done since this was last asked.
    fn done(&self) -> Vec<String> {
        self.done.take()
    }
}

async fn interrupted_and_resumed(registry: &Registry, run: RunHandle) -> RunHandle {
    let id = run.id();
    run.interrupt(None, "the machine goes down").await.unwrap();
    registry.resume(id, outlive::ResumeOptions::default()).await.unwrap()
}

async fn steps(registry: &Registry, run: RunId, attempt: u32) -> Vec<(String, StateName, bool)> {
    let run = registry.get(run).await.unwrap().run;
    let steps = registry.steps_of(&run).await.unwrap().into_iter();
    let told = |seen: outlive::lifecycle::health::RunStatus| {
        let step = seen.run.spec.step.as_ref().unwrap().clone();
        (step.attempt == attempt).then_some((step.name, seen.state, step.replays.is_some()))
    };
    // Those made at the same time come in any order.
    let mut steps: Vec<_> = steps.filter_map(told).collect();
    steps.sort_by(|one, other| one.0.cmp(&other.0));
    steps
}

#[test]
fn r10_succeeded_steps_are_replayed_on_resume() {
    on_each(async |world| {
        let (registry, program) = (world.process(), Program::default());
        let run = registry.start(spec("job")).await.unwrap();
        let id = run.id();
        assert_eq!(program.step(&run, "one", "x").await, "one(x)");
        world.clock.pass(Duration::from_secs(1));
        assert_eq!(program.step(&run, "two", "y").await, "two(y)");
        assert_eq!(program.done(), ["one", "two"]);
        let mut run = interrupted_and_resumed(&registry, run).await;
        for _ in 0..2 {
            assert_eq!(program.step(&run, "one", "x").await, "one(x)");
            world.clock.pass(Duration::from_secs(1));
            assert_eq!(program.step(&run, "two", "y").await, "two(y)");
            assert_eq!(program.done(), [""; 0]);
            run = interrupted_and_resumed(&registry, run).await;
        }
        let replayed = |name: &str| (name.to_owned(), StateName::Succeeded, true);
        assert_eq!(steps(&registry, id, 3).await, [replayed("one"), replayed("two")]);
        // A replay is told of as any run is.
        let run_now = registry.get(id).await.unwrap().run;
        let last = registry.steps_of(&run_now).await.unwrap().pop().unwrap().run;
        assert_eq!(world.actions(last.id).await, ["enqueue", "claim", "finish"]);
        assert!(world.record(last.id).await.run.created_at >= run_now.created_at);
    });
}

#[test]
fn r10_the_first_changed_step_and_all_after_it_are_done_anew() {
    on_each(async |world| {
        let (registry, program) = (world.process(), Program::default());
        let mut run = registry.start(spec("job")).await.unwrap();
        for name in ["one", "two", "three", "four"] {
            program.step(&run, name, "x").await;
        }
        program.done();
        run = interrupted_and_resumed(&registry, run).await;
        for (name, input) in [("one", "x"), ("two", "changed"), ("three", "x")] {
            program.step(&run, name, input).await;
        }
        assert_eq!(program.done(), ["two", "three"]);
        // The attempt never came to the fourth, whose result is from before the change all the same.
        run = interrupted_and_resumed(&registry, run).await;
        for (name, input) in [("one", "x"), ("two", "changed"), ("three", "x"), ("four", "x")] {
            program.step(&run, name, input).await;
        }
        assert_eq!(program.done(), ["four"]);
        // What a step once was is not what its effects are by now.
        run = interrupted_and_resumed(&registry, run).await;
        assert_eq!(program.step(&run, "two", "x").await, "two(x)");
        assert_eq!(program.done(), ["two"]);
        run.succeed().await.unwrap();
    });
}

#[test]
fn r10_a_step_that_is_new_makes_no_other_be_done_anew() {
    on_each(async |world| {
        let (registry, program) = (world.process(), Program::default());
        let run = registry.start(spec("job")).await.unwrap();
        program.step(&run, "last", "x").await;
        let run = interrupted_and_resumed(&registry, run).await;
        program.done();
        program.step(&run, "new", "x").await;
        program.step(&run, "last", "x").await;
        assert_eq!(program.done(), ["new"]);
    });
}

#[test]
fn r10_a_crash_inside_a_step_never_counts_as_done() {
    on_each(async |world| {
        let (registry, program) = (world.process(), Program::default());
        let run = registry.start(spec("job")).await.unwrap();
        let failed = run.step("one", "x", || Err::<(), _>("out of luck")).await;
        assert!(matches!(failed, Err(StepError::Work("out of luck"))));
        let crash = std::panic::AssertUnwindSafe(|| {
            let work = || -> Result<(), &str> { std::panic::resume_unwind(Box::new(())) };
            let _ = pollster::block_on(run.step("two", "x", work));
        });
        assert!(std::panic::catch_unwind(crash).is_err());
        registry.tick().await.unwrap();
        let id = run.id();
        let failed = |name: &str| (name.to_owned(), StateName::Failed, false);
        assert_eq!(steps(&registry, id, 1).await, [failed("one"), failed("two")]);
        let run = interrupted_and_resumed(&registry, run).await;
        program.step(&run, "one", "x").await;
        program.step(&run, "two", "x").await;
        assert_eq!(program.done(), ["one", "two"]);
    });
}

#[test]
fn step_begun_again_without_end_is_not_replayed() {
    on_each(async |world| {
        let (registry, program) = (world.process(), Program::default());
        let run = registry.start(spec("job")).await.unwrap();
        program.step(&run, "one", "x").await;
        let run = interrupted_and_resumed(&registry, run).await;
        run.step("one", "y", || Err::<String, _>("half done")).await.unwrap_err();
        let run = interrupted_and_resumed(&registry, run).await;
        program.done();
        assert_eq!(program.step(&run, "one", "x").await, "one(x)");
        assert_eq!(program.done(), ["one"]);
    });
}

#[test]
fn a_name_is_used_once_an_attempt() {
    on_each(async |world| {
        let registry = world.process();
        let run = registry.start(spec("job")).await.unwrap();
        run.step("one", "x", || Ok::<_, Error>(1)).await.unwrap();
        let Err(StepError::Registry(error)) = run.step("one", "x", || Ok::<_, Error>(2)).await else {
            panic!("a name was used twice");
        };
        assert_eq!(error.code(), Code::Invalid);
        assert!(error.to_string().contains("the step `one` was already used in attempt 1"), "{error}");
    });
}

/// Where a step was made is told and changes nothing: of a step that is done again, what is inside is replayed as any.
#[test]
fn r10_nested_step_says_so_and_is_replayed_with_its_outer_one() {
    on_each(async |world| {
        let (registry, program) = (world.process(), Program::default());
        let run = registry.start(spec("job")).await.unwrap();
        let id = run.id();
        let outer = async |run: &RunHandle, fails: bool| {
            let work = || {
                let inner = pollster::block_on(program.step(run, "inner", "x"));
                if fails { Err("no luck") } else { Ok(inner) }
            };
            run.step("outer", "y", work).await
        };
        assert!(matches!(outer(&run, true).await, Err(StepError::Work("no luck"))));
        program.step(&run, "beside", "z").await;
        assert_eq!(program.done(), ["inner", "beside"]);
        let run = interrupted_and_resumed(&registry, run).await;
        assert_eq!(outer(&run, false).await.unwrap(), "inner(x)");
        assert_eq!(program.done(), [""; 0], "what was inside is done again");
        let run = registry.get(id).await.unwrap().run;
        let steps: Vec<_> = registry.steps_of(&run).await.unwrap().into_iter().map(|seen| seen.run).collect();
        let step = |name: &str, attempt: u32| {
            let is_it = |run: &&outlive::run::Run| {
                run.spec.step.as_ref().is_some_and(|step| step.name == name && step.attempt == attempt)
            };
            let found = steps.iter().find(is_it).unwrap_or_else(|| panic!("no `{name}` in attempt {attempt}"));
            (found.id, found.spec.step.clone().unwrap())
        };
        for attempt in 1..=2 {
            assert_eq!(step("inner", attempt).1.parent, Some(step("outer", attempt).0));
            assert_eq!(step("outer", attempt).1.parent, None);
        }
        assert_eq!(step("beside", 1).1.parent, None, "it was made behind it, not inside");
        assert_eq!(step("inner", 2).1.replays, Some(step("inner", 1).0));
    });
}

#[test]
fn of_two_that_use_a_name_at_the_same_time_one_is_refused() {
    on_each(async |world| {
        let registry = world.process();
        let run = registry.start(spec("job")).await.unwrap();
        // The second has looked before the first is on record.
        let attempt = registry.attempt(run.id(), run.fence().epoch).await.unwrap();
        let late = registry.attempt(run.id(), run.fence().epoch).await.unwrap();
        let spec_of = |attempt: &outlive::ownership::steps::Attempt| {
            let next = attempt.next("one", "x").unwrap();
            attempt.spec("one", "x".into(), &next, None, registry.me().clone())
        };
        let (first, second) = (spec_of(&attempt), spec_of(&late));
        let step = registry.start_step(&attempt, first).await.unwrap();
        let error = registry.start_step(&late, second).await.unwrap_err();
        assert!(error.to_string().contains("already used"), "{error}");
        step.succeed().await.unwrap();
    });
}

#[test]
fn a_caller_that_has_lost_its_run_makes_no_step() {
    on_each(async |world| {
        let registry = world.process();
        let run = registry.start(spec("job")).await.unwrap();
        let (id, epoch) = (run.id(), run.fence().epoch);
        let run = interrupted_and_resumed(&registry, run).await;
        assert_eq!(registry.attempt(id, epoch).await.unwrap_err().code(), Code::Lost);
        run.succeed().await.unwrap();
    });
}

#[test]
fn a_result_that_cannot_be_kept_or_read_is_never_taken_for_one() {
    on_each(async |world| {
        let registry = world.process();
        let run = registry.start(spec("job")).await.unwrap();
        let large = run.step("large", "x", || Ok::<_, Error>("x".repeat(2 << 20))).await;
        let Err(StepError::Registry(error)) = large else { panic!("it was kept") };
        assert!(error.to_string().contains("result of a step"), "{error}");
        run.step("typed", "x", || Ok::<_, Error>("text".to_owned())).await.unwrap();
        let id = run.id();
        let run = interrupted_and_resumed(&registry, run).await;
        assert_eq!(run.step("large", "x", || Ok::<_, Error>("small".to_owned())).await.unwrap(), "small");
        assert_eq!(run.step("typed", "x", || Ok::<_, Error>(7)).await.unwrap(), 7);
        assert_eq!(steps(&registry, id, 2).await.len(), 2);
    });
}

#[test]
fn steps_are_found_by_their_run_alone() {
    on_each(async |world| {
        let registry = world.process();
        let run = registry.start(spec("job")).await.unwrap();
        let other = registry.start(spec("job")).await.unwrap();
        world.clock.pass(Duration::from_secs(1));
        run.step("one", "x", || Ok::<_, Error>(1)).await.unwrap();
        other.step("one", "x", || Ok::<_, Error>(1)).await.unwrap();
        assert_eq!(steps(&registry, run.id(), 1).await.len(), 1);
        assert_eq!(registry.find("@last").await.unwrap().run.id, other.id().max(run.id()));
    });
}
