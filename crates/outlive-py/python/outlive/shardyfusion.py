"""Writers of sharded databases that keep run records, as seed writers of a bucket do: a registry for them to be given.

    config = WriteConfig(..., run_registry=RunRegistry(url), manifest_store=manifest_store(inner, registry))

`RunRegistry` has the methods `create`, `update` and `load` that such a writer calls. Heartbeats are the library's, so the
writer's own are ignored. The wrapper of the manifest store checks the claim before a manifest is published, and records its
reference before `publish` returns.

>>> from types import SimpleNamespace
>>> runs = RunRegistry("memory:")
>>> record = SimpleNamespace(run_id="w1", writer_type="python", s3_prefix="s3://bucket/data", shard_prefix="shards",
...     db_path_template="db={db_id:05d}", status="running", manifest_ref=None)
>>> ref = runs.create(record)
>>> record.status = "succeeded"
>>> runs.update(ref, record)
>>> runs.load(ref).status
'succeeded'
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import outlive

from ._inputs import Artifacts
from ._owned import OwnedRun
from ._registry import opened
from ._views import RunRef

#: How many records of runs that have ended are kept, as the writer last told them.
_MOST_RECORDS = 16


class RunRegistry:
    """A registry of runs for a writer. It can be pickled: the other process opens the same URL and owns no run, but knows
    the claims of this one."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._url, self._options = url, options
        #: The claims that another process has handed over, by the writer's own ids.
        self._claims: dict[str, RunRef] = {}
        self._turn = threading.Lock()
        self._runs: dict[str, OwnedRun] = {}
        self._by_writer: dict[str, OwnedRun] = {}
        self._records: dict[str, Any] = {}

    def create(self, record: Any) -> str:
        """Starts a run for the record of a writer. Answers with the URL of `run.yaml` in a bucket, elsewhere with the run's
        id."""
        artifacts = Artifacts(record.s3_prefix, record.shard_prefix, record.db_path_template, record.run_id)
        options = {"kind": record.writer_type, "artifacts": artifacts, "resume": False, "strict": True, **self._options}
        # The writer's run is its own also inside `outlive run`, which records the program.
        run = outlive.run(record.run_id, registry=self._url, **options)._own()
        ref = run.registry._native.record_url(run.id) or run.id
        with self._turn:
            self._runs[ref] = self._by_writer[record.run_id] = run
            # A writer changes its record in place.
            self._records[ref] = copy.deepcopy(record)
        return ref

    def update(self, ref: str, record: Any) -> None:
        """Records the manifest and the end that the record tells of."""
        run = self._runs.get(ref)
        if run is None or run.is_over:
            return
        if record.manifest_ref and run._record.get("manifest_ref") != record.manifest_ref:
            self._publish(run, record.manifest_ref)
        self._records[ref] = copy.deepcopy(record)
        if record.status == "succeeded":
            run.succeed()
        elif record.status == "failed":
            run.fail(record.error_type or "error", record.error_message or "")
        if run.is_over:
            self._forget(ref, run)

    def _forget(self, ref: str, run: OwnedRun) -> None:
        """Keeps no more than the last records of runs that have ended here."""
        with self._turn:
            self._runs.pop(ref, None)
            self._by_writer = {writer: known for writer, known in self._by_writer.items() if known is not run}
            ended = [known for known in self._records if known not in self._runs]
            for old in ended[:-_MOST_RECORDS]:
                del self._records[old]

    def load(self, ref: str) -> Any:
        """The record as the writer last told it; in another process the run as it stands."""
        found = self._records.get(ref)
        if found is not None:
            return copy.deepcopy(found)
        # The name of a record in a bucket has the run's id in it.
        return opened(self._url).find(ref.partition("_run_id=")[2].partition("_")[0] or ref)

    def of_writer(self, run_id: str) -> OwnedRun | None:
        """The run that bears the writer's own id, where this process owns it."""
        return self._by_writer.get(run_id)

    def claim_of(self, run_id: str) -> outlive.Run | None:
        """The run that bears the writer's own id, for a process that may not own it; none where the writer has none,
        because the registry was away when it began."""
        owned = self._by_writer.get(run_id)
        if owned is not None:
            return owned
        claim = self._claims.get(run_id)
        registry = opened(self._url)
        if claim is None:
            # It began after this process was handed the registry.
            found = next(registry.list(name=run_id, states=["running"]), None)
            claim = None if found is None else RunRef(None, found.id, found.epoch)
        return None if claim is None else outlive.attach(claim, registry=registry)

    @staticmethod
    def _publish(run: outlive.Run, manifest: str) -> None:
        run.manifest(manifest)
        run._record["manifest_ref"] = manifest

    def __reduce__(self) -> tuple[Any, ...]:
        with self._turn:
            claims = {writer: RunRef(None, run.id, run.epoch) for writer, run in self._by_writer.items()}
        return (_opened, (self._url, self._options, self._claims | claims))


def _opened(url: str | None, options: dict[str, Any], claims: dict[str, RunRef]) -> RunRegistry:
    registry = RunRegistry(url, **options)
    registry._claims = claims
    return registry


class ManifestStore:
    """A manifest store that publishes only while the run owns its claim. Everything else is the inner store's."""

    def __init__(self, inner: Any, registry: RunRegistry) -> None:
        self._inner, self._outlive = inner, registry

    def publish(self, *, run_id: str, **arguments: Any) -> Any:
        run = self._outlive.claim_of(run_id)
        if run is not None:
            # A durable write with the claim: refused where another process owns the run by now.
            run.progress(message="publishing", flush=True)
            run.check()
        manifest = self._inner.publish(run_id=run_id, **arguments)
        if run is not None:
            RunRegistry._publish(run, str(manifest))
        return manifest

    def __getattr__(self, name: str) -> Any:
        # A copy is asked for its methods before it has an inner store.
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._inner, name)


def manifest_store(inner: Any, registry: RunRegistry) -> ManifestStore:
    """Wraps the manifest store of a writer."""
    return ManifestStore(inner, registry)
