//! Handlers: the functions of a worker by kind, and how each is called.
//!
//! A blocking handler has a thread of the worker for as long as it takes. An async one is spawned on the caller's tokio
//! runtime; the thread that took its task takes the next at once.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use serde::de::DeserializeOwned;
use tokio::runtime;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Span, info_span};

use super::OnStart;
use super::dispatcher::Dispatcher;
use super::job::{BlockingJob, Job};
use super::outcome::{Done, Failed, IntoDone};
use super::task::{Task, TaskOutcome};
use crate::model::run::TraceParent;

type Returned = Result<Done, Failed>;
type Returning = Pin<Box<dyn Future<Output = Returned> + Send>>;

/// What does the runs of a kind.
pub(super) enum Handler {
    Blocking(Box<dyn Fn(&BlockingJob) -> Returned + Send + Sync>),
    Async(Box<dyn Fn(Arc<Task>) -> Returning + Send + Sync>),
}

impl Handler {
    pub(super) fn blocking<D: IntoDone, E: Into<Failed>>(
        handler: impl Fn(&BlockingJob) -> Result<D, E> + Send + Sync + 'static,
    ) -> Self {
        Self::Blocking(Box::new(move |job| handler(job).map_err(Into::into)?.into_done()))
    }

    pub(super) fn future<I, D, E, F>(handler: impl Fn(Job<I>) -> F + Send + Sync + 'static) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        D: IntoDone,
        E: Into<Failed>,
        F: Future<Output = Result<D, E>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        Self::Async(Box::new(move |task| {
            let handler = handler.clone();
            Box::pin(async move {
                // Called inside the future, so that a panic of its first lines is contained as well.
                let work = handler(Job::read(task)?);
                work.await.map_err(Into::into)?.into_done()
            })
        }))
    }

    pub(super) fn is_blocking(&self) -> bool {
        matches!(self, Self::Blocking(_))
    }
}

/// What every thread of a worker needs to have tasks done.
pub(super) struct Handlers {
    pub(super) by_kind: BTreeMap<String, Handler>,
    /// Where futures are spawned. There is one where any handler is async.
    pub(super) runtime: Option<runtime::Handle>,
    pub(super) on_start: OnStart,
}

impl Handlers {
    /// Does one task after the other, or has them done.
    pub(super) fn serve(&self, floor: &Arc<Dispatcher>) {
        while let Some(task) = floor.next() {
            (self.on_start)(&task.handle);
            let span = span_of(&task);
            let _entered = span.enter();
            let spec = task.handle.spec();
            let kind = &spec.kind;
            match (self.by_kind.get(kind), &self.runtime) {
                (Some(Handler::Async(handler)), Some(runtime)) => spawn(floor, runtime, task, handler),
                (Some(Handler::Blocking(handler)), _) => {
                    let call = || handler(&BlockingJob::new(task.clone()));
                    let returned = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked);
                    let answer = task.answer(returned);
                    floor.returned(&task, answer);
                }
                _ => {
                    let missing = Failed::new("kind", format!("its worker has no handler for kind `{kind}`"));
                    let answer = task.answer(Err(missing));
                    floor.returned(&task, answer);
                }
            }
        }
    }
}

/// The span of a task; none where the program collects none, as it takes a copy of the run.
fn span_of(task: &Task) -> Span {
    if LevelFilter::current() < LevelFilter::INFO {
        return Span::none();
    }
    let run = task.handle.run();
    let traceparent = run.spec.traceparent.as_ref().map(TraceParent::as_str);
    let (kind, attempt, epoch) = (&run.spec.kind, run.attempt, run.epoch.0);
    info_span!("outlive_job", run = %run.id, kind, attempt, epoch, traceparent)
}

/// Reports that a handler has returned, also where its future was dropped instead.
struct ReturnGuard {
    floor: Arc<Dispatcher>,
    task: Arc<Task>,
    answer: Option<TaskOutcome>,
}

impl ReturnGuard {
    fn say(mut self, returned: Returned) {
        self.answer = Some(self.task.answer(returned));
    }
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or_else(|| self.task.aborted());
        self.floor.returned(&self.task, answer);
    }
}

fn spawn(
    floor: &Arc<Dispatcher>,
    runtime: &runtime::Handle,
    task: Arc<Task>,
    handler: &(dyn Fn(Arc<Task>) -> Returning + Send + Sync),
) {
    let mut called = handler(task.clone());
    let report = ReturnGuard { floor: floor.clone(), task: task.clone(), answer: None };
    let work = Instrument::in_current_span(async move {
        let polled = poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| called.as_mut().poll(context)));
            polled.unwrap_or_else(|panic| Poll::Ready(panicked(panic)))
        });
        let returned = polled.await;
        report.say(returned);
    });
    // Where its run has ended already, what was made is dropped unbegun, which reports it.
    task.handle.spawn(|| runtime.spawn(work).abort_handle());
}

fn panicked(panic: Box<dyn Any + Send>) -> Returned {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let said = text.map_or_else(|| "its handler panicked".into(), |text| format!("its handler panicked: {text}"));
    Err(Failed::new("panic", said))
}
