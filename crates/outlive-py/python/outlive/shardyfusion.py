"""Writers of sharded databases that keep run records, as seed writers of a bucket do: a registry for them to be given.

    config = WriteConfig(..., run_registry=RunRegistry(url), manifest_store=manifest_store(inner, registry))

`RunRegistry` has the methods `create`, `update` and `load` that such a writer calls. Heartbeats are the library's, so the
writer's own are ignored. The wrapper of the manifest store checks the claim before a manifest is published, and records its
reference before `publish` returns.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import outlive

from ._inputs import Artifacts
from ._owned import OwnedRun


class RunRegistry:
    """A registry of runs for a writer. It can be pickled: the other process opens the same URL, and owns no run."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._url, self._options = url, options
        self._turn = threading.Lock()
        self._runs: dict[str, OwnedRun] = {}
        self._by_writer: dict[str, OwnedRun] = {}
        self._records: dict[str, Any] = {}

    def create(self, record: Any) -> str:
        """Starts a run for the record of a writer. Answers with the URL of `run.yaml` in a bucket, elsewhere with the run's
        id."""
        artifacts = Artifacts(record.s3_prefix, record.shard_prefix, record.db_path_template, record.run_id)
        options = {"kind": record.writer_type, "artifacts": artifacts, "resume": False, "strict": True, **self._options}
        run = outlive.start(record.run_id, registry=self._url, **options)
        assert isinstance(run, OwnedRun)
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

    def load(self, ref: str) -> Any:
        """The record as the writer last told it; in another process the run as it stands."""
        found = self._records.get(ref)
        if found is not None:
            return copy.deepcopy(found)
        # The name of a record in a bucket has the run's id in it.
        return outlive.Registry(self._url).find(ref.partition("_run_id=")[2].partition("_")[0] or ref)

    def of_writer(self, run_id: str) -> OwnedRun | None:
        """The run that bears the writer's own id, where this process owns it."""
        return self._by_writer.get(run_id)

    @staticmethod
    def _publish(run: OwnedRun, manifest: str) -> None:
        run.manifest(manifest)
        run._record["manifest_ref"] = manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return (_opened, (self._url, self._options))


def _opened(url: str | None, options: dict[str, Any]) -> RunRegistry:
    return RunRegistry(url, **options)


class ManifestStore:
    """A manifest store that publishes only while the run owns its claim. Everything else is the inner store's."""

    def __init__(self, inner: Any, registry: RunRegistry) -> None:
        self._inner, self._outlive = inner, registry

    def publish(self, *, run_id: str, **arguments: Any) -> Any:
        run = self._outlive.of_writer(run_id)
        if run is not None:
            # A durable write with the claim: refused where another process owns the run by now.
            run.progress(message="publishing", flush=True)
            run.check()
        manifest = self._inner.publish(run_id=run_id, **arguments)
        if run is not None:
            RunRegistry._publish(run, str(manifest))
        return manifest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def manifest_store(inner: Any, registry: RunRegistry) -> ManifestStore:
    """Wraps the manifest store of a writer."""
    return ManifestStore(inner, registry)
