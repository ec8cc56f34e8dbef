"""A writer of sharded databases that shares a bucket on a real S3 server, written from its description alone."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import until
from outlive.shardyfusion import RunRegistry, manifest_store
from servers import Bucket
from test_shardyfusion import RunRecord

Command = Callable[..., "subprocess.CompletedProcess[str]"]


class Objects:
    """Objects below a prefix, written and read through the file interface of the server."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.prefix, self._base = f"s3://{Bucket.NAME}/{prefix}", f"{bucket.files}/buckets/{Bucket.NAME}/{prefix}"

    def put(self, key: str, text: str) -> None:
        request = urllib.request.Request(f"{self._base}/{key}", text.encode(), method="PUT")
        urllib.request.urlopen(request, timeout=30).read()

    def get(self, key: str) -> str | None:
        try:
            return str(urllib.request.urlopen(f"{self._base}/{key}", timeout=30).read(), "utf-8")
        except urllib.error.HTTPError as error:
            assert error.code == 404
            return None


class Manifests:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def publish(self, *, run_id: str, shards: list[str]) -> str:
        key = f"manifests/{run_id}.json"
        self._objects.put(key, json.dumps({"format_version": 1, "run_id": run_id, "shards": shards}))
        return f"{self._objects.prefix}/{key}"


def write(runs: Any, manifests: Any, objects: Objects, run_id: str, fails: bool = False) -> str:
    """Two attempts of one shard, of which the second wins; published, unless it fails before."""
    record = RunRecord(run_id, "python", objects.prefix)
    ref: str = runs.create(record)
    trees = [f"shards/run_id={run_id}/db=00000/attempt={attempt:02d}" for attempt in range(2)]
    for tree in trees:
        objects.put(f"{tree}/data", run_id)
    if fails:
        runs.update(ref, RunRecord(run_id, "python", objects.prefix, "failed", error_type="OSError", error_message="x"))
        return ref
    manifest = manifests.publish(run_id=run_id, shards=[f"{objects.prefix}/{trees[1]}"])
    runs.update(ref, RunRecord(run_id, "python", objects.prefix, "succeeded", manifest_ref=manifest))
    return ref


def test_writer_is_recorded_in_its_bucket_and_swept(
    bucket: Bucket, command: Command, home: Path
) -> None:
    url, objects = bucket.url("writer"), Objects(bucket, "writer")
    runs = RunRegistry(url)
    manifests = manifest_store(Manifests(objects), runs)
    won, lost = write(runs, manifests, objects, "won"), write(runs, manifests, objects, "lost", fails=True)
    # Who reads the records of such writers knows neither outlive nor its ids.
    assert won.startswith(f"{objects.prefix}/runs/") and won.endswith("/run.yaml")
    record = objects.get(won.removeprefix(f"{objects.prefix}/")) or ""
    for line in ('run_id: "won"', 'status: "succeeded"', f'manifest_ref: "{objects.prefix}/manifests/won.json"'):
        assert f"\n{line}\n" in record, record
    again = RunRegistry(url).load(lost)
    assert (again.state, again.error_type) == ("failed", "OSError")
    (home / "config.toml").write_text('[sweep]\ngrace = "1ms"\n')

    def left() -> list[tuple[str, int]]:
        swept = command("--registry", url, "sweep", "--yes")
        assert swept.returncode == 0, swept.stderr
        return [(run, attempt) for run in ("won", "lost") for attempt in (0, 1) if objects.get(_data(run, attempt))]

    # Ages are by the server's clock, which has whole seconds: a sweep within the second of an end spares it.
    until(lambda: left() == [("won", 1)])
    assert json.loads(objects.get("manifests/won.json") or "")["run_id"] == "won"


def _data(run: str, attempt: int) -> str:
    return f"shards/run_id={run}/db=00000/attempt={attempt:02d}/data"
