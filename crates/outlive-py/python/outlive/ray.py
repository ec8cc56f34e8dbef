"""Ray: a run around the work of a driver.

    with outlive.ray.run("train") as run:
        refs = [work.options(**outlive.ray.options(run)).remote(part) for part in parts]
        outlive.ray.get(run, refs)

Tasks find the run with `outlive.current()`: its reference travels in their environment. They outlive their driver by seconds,
so a task calls `outlive.attach().verify()` before an effect that must not happen twice. A request to stop cancels the tasks
that `get` waits for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import outlive

from . import _outlive

if TYPE_CHECKING:
    ray: Any
else:
    import ray

_SLICE = 0.5


@contextlib.contextmanager
def run(name: str | None = None, **options: Any) -> Iterator[outlive.Run]:
    """A run of this driver. Takes what `outlive.run` takes."""
    labels = {**(options.pop("labels", None) or {}), "ray_job": ray.get_runtime_context().get_job_id()}
    with outlive.run(name, labels=labels, strict=True, **options) as begun:
        yield begun


def options(run: outlive.Run) -> dict[str, Any]:
    """Options of tasks and actors that belong to the run.

    Everybody who may look at the cluster reads them. A registry whose URL bears a secret is left out: name it to the
    workers as `OUTLIVE_REGISTRY` when the cluster is started.
    """
    env = run.child_env()
    if run.ref.url is None:
        del env[_outlive.REGISTRY_VARIABLE]
    return {"runtime_env": {"env_vars": env}}


def get(run: outlive.Run, refs: Sequence[Any], *, progress: bool = True) -> list[Any]:
    """What `ray.get` answers. Progress is counted from the references; a request to stop cancels those that are left."""
    waiting = list(refs)
    while waiting:
        if run.stop_requested is not None:
            for ref in waiting:
                _cancel(ref)
            run.check()
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_SLICE)
        if progress:
            run.progress(len(refs) - len(waiting), len(refs))
    results: list[Any] = ray.get(list(refs))
    return results


def _cancel(ref: Any) -> None:
    with contextlib.suppress(Exception):
        try:
            ray.cancel(ref, force=True)
        except ValueError:
            # A task of an actor cannot be forced: that would end the actor.
            ray.cancel(ref)
