"""The run registry's contract as seed 001 tells it: one YAML record per run, a lease, three words of status."""

import re
import sys
import uuid
from datetime import datetime, timedelta

import yaml

KEY = re.compile(r"^.*/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)_run_id=(.+)_([0-9a-f]{32})/run\.yaml$")
TEXTS = ["run_id", "writer_type", "status", "s3_prefix", "shard_prefix", "db_path_template"]
NULLABLE = ["manifest_ref", "error_type", "error_message"]
TIMES = ["started_at", "updated_at", "lease_expires_at"]


def moment(text):
    assert isinstance(text, str), text
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def load(payload):
    record = yaml.safe_load(payload)
    assert isinstance(record, dict)
    assert record["format_version"] == 1
    for name in TEXTS:
        assert isinstance(record[name], str), name
    for name in NULLABLE:
        assert record[name] is None or isinstance(record[name], str), name
    assert record["status"] in ("running", "succeeded", "failed")
    started, updated, expires = (moment(record[name]) for name in TIMES)
    assert started <= updated, (started, updated)
    assert updated <= expires, (updated, expires)
    if record["status"] == "failed":
        assert record["error_type"], record
    else:
        assert record["error_type"] is None and record["error_message"] is None
    return record


def read(now):
    record = load(sys.stdin.buffer.read())
    expired = moment(record["lease_expires_at"]) < moment(now)
    manifest = record["manifest_ref"]
    assert manifest is None or re.match(r"[a-z0-9]+://", manifest), manifest
    if record["status"] == "running":
        view = "abandoned" if expired else "active"
    else:
        view = "terminal"
    print(record["run_id"], record["writer_type"], record["status"], view, record["s3_prefix"])


def lease(now):
    """How many seconds a reader of the record leaves its writer alone for from now on."""
    record = load(sys.stdin.buffer.read())
    print((moment(record["lease_expires_at"]) - moment(now)).total_seconds())


def fields(*names):
    """The values of these fields, each on a line."""
    record = load(sys.stdin.buffer.read())
    for name in names:
        print(record[name])


def create(run_id, prefix, now, seconds):
    now = moment(now)
    spelt = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    record = {
        "format_version": 1,
        "run_id": run_id,
        "writer_type": "spark",
        "status": "running",
        "started_at": now.isoformat(),
        "updated_at": now.isoformat(),
        "lease_expires_at": (now + timedelta(seconds=int(seconds))).isoformat(),
        "s3_prefix": prefix,
        "shard_prefix": "shards",
        "db_path_template": "db={db_id:05d}",
        "manifest_ref": None,
        "error_type": None,
        "error_message": None,
    }
    print(f"runs/{spelt}_run_id={run_id}_{uuid.uuid4().hex}/run.yaml")
    sys.stdout.write(yaml.safe_dump(record, sort_keys=True))


def update(now, **fields):
    """The record of standard input, put again by its writer."""
    record = load(sys.stdin.buffer.read())
    assert record["status"] == "running", record
    record.update(fields, updated_at=moment(now).isoformat())
    sys.stdout.write(yaml.safe_dump(record, sort_keys=True))


def beat(now, seconds):
    update(now, lease_expires_at=(moment(now) + timedelta(seconds=int(seconds))).isoformat())


def succeed(now, manifest_ref):
    update(now, status="succeeded", manifest_ref=manifest_ref)


def fail(now, error_type, error_message):
    update(now, status="failed", error_type=error_type, error_message=error_message)


def in_order():
    text = sys.stdin.read()
    keys = [line.split(":")[0] for line in text.splitlines() if line and not line.startswith((" ", "-"))]
    assert keys == sorted(keys), keys
    print("ok")


def key(name):
    assert KEY.match(name), name
    print("ok")


verbs = {f.__name__: f for f in (read, lease, fields, create, beat, succeed, fail, key)} | {"sorted": in_order}
verbs[sys.argv[1]](*sys.argv[2:])
