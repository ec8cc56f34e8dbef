"""Spark: a run around the jobs of a session.

    with outlive.spark.run(spark, "report") as run:
        spark.range(10).count()

The jobs of the block are one job group that bears the run's id. A request to stop cancels the group, and progress is counted
from its stages. Tasks attach with a reference: `outlive.spark.attach(broadcast)`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import outlive

from ._attached import AttachedRun


@contextlib.contextmanager
def run(spark: Any, name: str | None = None, *, progress: bool = True, **options: Any) -> Iterator[outlive.Run]:
    """A run of the jobs that this thread starts. Takes what `outlive.run` takes."""
    context = spark.sparkContext
    labels = {**(options.pop("labels", None) or {}), "spark_application": context.applicationId}
    with outlive.run(name, labels=labels, strict=True, **options) as begun:
        context.setJobGroup(begun.id, name or "outlive", interruptOnCancel=True)
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(context, begun, over, progress), daemon=True)
        watcher.start()
        try:
            yield begun
        except Exception:
            # A job that a stop has cancelled fails with an error of Spark; what is recorded is why.
            begun.check()
            raise
        finally:
            over.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)


def broadcast(spark: Any, run: outlive.Run) -> Any:
    """The run's reference, for tasks."""
    return spark.sparkContext.broadcast(run.ref)


def attach(reference: Any) -> AttachedRun:
    """In a task: the run whose reference was broadcast. Raises `Lost` where another attempt has begun."""
    return outlive.attach(reference.value)


def _watch(context: Any, begun: outlive.Run, over: threading.Event, progress: bool) -> None:
    """Cancels the job group when the run should stop, and counts the tasks that are done."""
    tracker = context.statusTracker()
    while not over.wait(0.3):
        if begun.stop_requested is not None:
            # Jobs that are submitted meanwhile are cancelled by the next pass.
            context.cancelJobGroup(begun.id)
            continue
        if progress:
            with contextlib.suppress(Exception):
                _count(tracker, begun)


def _count(tracker: Any, begun: outlive.Run) -> None:
    done = total = 0
    for job in tracker.getJobIdsForGroup(begun.id):
        known = tracker.getJobInfo(job)
        for stage in known.stageIds if known else []:
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
    if total:
        begun.progress(done, total)
