"""A stand-in for a writer of sharded databases, written from its description alone: it keeps a run record."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import outlive
import pytest
from conftest import Script
from outlive.shardyfusion import RunRegistry, manifest_store


@dataclass
class RunRecord:
    run_id: str
    writer_type: str
    s3_prefix: str
    status: str = "running"
    shard_prefix: str = "shards"
    db_path_template: str = "db={db_id:05d}"
    manifest_ref: str | None = None
    error_type: str | None = None
    error_message: str | None = None


class Manifests:
    def __init__(self) -> None:
        self.published: list[str] = []

    def publish(self, *, run_id: str, shards: list[str]) -> str:
        self.published.append(run_id)
        return f"s3://bucket/data/manifests/{run_id}"

    def list_manifests(self) -> list[str]:
        return self.published


def write(runs: Any, manifests: Any, run_id: str, fails: bool = False) -> str:
    """What such a writer does: create, beat, publish, end. An error is recorded and raised."""
    record = RunRecord(run_id, "python", "s3://bucket/data")
    ref: str = runs.create(record)
    try:
        runs.update(ref, record)
        if fails:
            raise OSError("a shard is missing")
        record = replace(record, manifest_ref=manifests.publish(run_id=run_id, shards=["a"]))
        runs.update(ref, replace(record, status="succeeded"))
    except Exception as error:
        failed = replace(record, status="failed", error_type=type(error).__name__, error_message=str(error))
        runs.update(ref, failed)
        raise
    return ref


def test_writer_is_recorded_with_its_manifest(registry: outlive.Registry) -> None:
    runs, inner = RunRegistry(registry.url), Manifests()
    manifests = manifest_store(inner, runs)
    ref = write(runs, manifests, "w1")
    view = registry.find(ref)
    assert (view.state, view.kind, view.manifest) == ("succeeded", "python", "s3://bucket/data/manifests/w1")
    assert view.raw["spec"]["output"]["run_id"] == "w1"
    assert manifests.list_manifests() == ["w1"] and runs.load(ref).status == "succeeded"


def test_writer_that_fails_is_recorded(registry: outlive.Registry) -> None:
    runs = RunRegistry(registry.url)
    with pytest.raises(OSError):
        write(runs, manifest_store(Manifests(), runs), "w2", fails=True)
    view = registry.find("w2")
    assert (view.state, view.error_type, view.error_message) == ("failed", "OSError", "a shard is missing")


def test_manifest_is_not_published_without_the_claim(registry: outlive.Registry) -> None:
    runs, inner = RunRegistry(registry.url), Manifests()
    ref = runs.create(RunRecord("w3", "python", "s3://bucket/data"))
    registry.cancel(ref, "too late")
    run = runs.of_writer("w3")
    assert run is not None and run.wait_for_stop("30s") is not None
    with pytest.raises(outlive.Cancelled):
        manifest_store(inner, runs).publish(run_id="w3", shards=[])
    assert inner.published == []
    run.interrupt("a test")


def test_record_that_its_writer_changes_is_loaded_as_it_was_told(registry: outlive.Registry) -> None:
    runs, record = RunRegistry(registry.url), RunRecord("w5", "python", "s3://bucket/data")
    ref = runs.create(record)
    early = runs.load(ref)
    record.status, record.error_type, record.error_message = "failed", "OSError", "a shard is missing"
    assert (early.status, runs.load(ref).status, registry.find(ref).state) == ("running", "running", "running")
    runs.update(ref, record)
    assert (early.status, runs.load(ref).status, registry.find(ref).state) == ("running", "failed", "failed")


def test_registry_of_a_writer_is_pickled_with_its_config(registry: outlive.Registry) -> None:
    runs = pickle.loads(pickle.dumps(RunRegistry(registry.url)))
    assert registry.find(write(runs, Manifests(), "w4")).state == "succeeded"


def test_writer_inside_the_command_has_a_run_of_its_own(
    script: Script, registry: outlive.Registry, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script.path.write_text(
        "import outlive, types\n"
        "from outlive.shardyfusion import RunRegistry\n"
        "runs, record = RunRegistry(), types.SimpleNamespace(run_id='w6', writer_type='python', s3_prefix='s3://b/d',\n"
        "    status='running', shard_prefix='shards', db_path_template='db={db_id:05d}', manifest_ref=None)\n"
        "ref = runs.create(record)\n"
        "record.status = 'succeeded'\n"
        "runs.update(ref, record)\n"
    )
    done = command("run", "--name", "outer", "--", sys.executable, str(script.path))
    assert done.returncode == 0, done.stderr
    assert {view.name: view.state for view in registry.list()} == {"outer": "succeeded", "w6": "succeeded"}


def test_manifest_is_not_published_by_another_process_without_the_claim(registry: outlive.Registry) -> None:
    runs, inner = RunRegistry(registry.url), Manifests()
    before = pickle.dumps(manifest_store(inner, runs))
    ref = runs.create(RunRecord("w7", "python", "s3://bucket/data"))
    run = runs.of_writer("w7")
    assert run is not None
    handed = pickle.loads(pickle.dumps(manifest_store(inner, runs)))
    assert handed.publish(run_id="w7", shards=[]).endswith("w7") and registry.find(ref).manifest is not None
    # One that was handed over before the run began finds it by the writer's own id.
    assert pickle.loads(before).publish(run_id="w7", shards=[]).endswith("w7")
    registry.cancel(ref, "too late")
    for store in (handed, pickle.loads(before)):
        with pytest.raises(outlive.Cancelled):
            store.publish(run_id="w7", shards=[])
    run.interrupt("a test")
    with pytest.raises(outlive.Lost):
        handed.publish(run_id="w7", shards=[])
    # A writer whose registry was away when it began has no run to ask.
    assert pickle.loads(before).publish(run_id="unknown", shards=[]).endswith("unknown")


def test_store_of_manifests_is_copied(registry: outlive.Registry) -> None:
    store = manifest_store(Manifests(), RunRegistry(registry.url))
    assert copy.copy(store).list_manifests() == [] and copy.deepcopy(store).list_manifests() == []
    with pytest.raises(AttributeError):
        store.no_such_method()


def test_registry_of_a_writer_keeps_few_records_of_what_has_ended(registry: outlive.Registry) -> None:
    runs = RunRegistry(registry.url)
    held = runs.create(RunRecord("held", "python", "s3://bucket/data"))
    refs = [write(runs, Manifests(), f"n{number}") for number in range(20)]
    assert len(runs._records) == 17 and list(runs._runs) == [held] and list(runs._by_writer) == ["held"]
    assert runs.load(held).status == "running" and runs.load(refs[-1]).status == "succeeded"
    assert runs.load(refs[0]).state == "succeeded", "what is not kept is read"
    runs.of_writer("held").interrupt("a test")  # type: ignore[union-attr]
