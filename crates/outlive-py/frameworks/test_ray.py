"""Ray: a real cluster of this machine. Ray binds every interface, so it runs in a network namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import outlive
import pytest
from conftest import kill_rounds, until

PROLOGUE = """
import os, sys, time
import outlive, outlive.ray, ray
ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)

@ray.remote
def part(number):
    run = outlive.current()
    run.verify()
    run.artifact(f"part-{number}")
    return run.id

@ray.remote(max_retries=3)
def once_killed(path):
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(20)

@ray.remote
def forever(path):
    open(path, "w").close()
    time.sleep(120)
"""


def start(tmp_path: Path, code: str) -> subprocess.Popen[str]:
    script = tmp_path / "driver.py"
    script.write_text(PROLOGUE + code)
    # A path of a socket has 107 characters at most.
    env = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp"}
    words = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return subprocess.Popen(
        [*words, sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def test_tasks_belong_to_the_run_of_their_driver(tmp_path: Path, registry: outlive.Registry) -> None:
    code = """
with outlive.ray.run("it") as run:
    refs = [part.options(**outlive.ray.options(run)).remote(n) for n in range(4)]
    assert set(outlive.ray.get(run, refs)) == {run.id}
"""
    process = start(tmp_path, code)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err[-3000:]
    view = registry.find("it")
    assert view.state == "succeeded" and sorted(view.artifacts) == [f"part-{n}" for n in range(4)]
    assert view.progress == {"done": 4, "total": 4} and view.labels["ray_job"]


def test_cancel_cancels_the_tasks(tmp_path: Path, registry: outlive.Registry) -> None:
    begun = tmp_path / "begun"
    code = f"""
with outlive.ray.run("it") as run:
    outlive.ray.get(run, [forever.options(**outlive.ray.options(run)).remote({str(begun)!r})])
"""
    process = start(tmp_path, code)
    until(begun.exists, 120)
    registry.cancel("it", "enough")
    _, err = process.communicate(timeout=120)
    assert "Cancelled" in err and registry.find("it").state == "cancelled", err[-3000:]


#: What the driver says of the processes that can be killed: itself, the one that does the task, and the raylet.
VICTIMS = """
def raylet():
    for each in os.listdir("/proc"):
        try:
            stat = open(f"/proc/{each}/stat").read()
        except OSError:
            continue
        if stat.split("(")[1].split(")")[0] == "raylet" and int(stat.rsplit(")")[1].split()[1]) == os.getpid():
            return int(each)
"""


@pytest.mark.parametrize("victim", ["driver", "worker", "raylet"])
@kill_rounds
def test_killed_process_is_seen(tmp_path: Path, registry: outlive.Registry, victim: str, round: int) -> None:
    begun = tmp_path / "begun"
    code = f"""
with outlive.ray.run("it", resume=False) as run:
    print(os.getpid(), raylet(), flush=True)
    outlive.ray.get(run, [once_killed.options(**outlive.ray.options(run)).remote({str(begun)!r})])
"""
    process = start(tmp_path, VICTIMS + code)
    assert process.stdout is not None
    driver, raylet = map(int, process.stdout.readline().split())
    until(lambda: begun.exists() and begun.read_text().endswith("\n"), 120)
    killed = {"driver": driver, "worker": int(begun.read_text()), "raylet": raylet}[victim]
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_alive(killed))
    if victim == "driver":
        process.wait(60)
        assert registry.find("it").state == "dead"
    process.communicate(timeout=120)
    view = registry.find("it")
    if victim == "worker":
        # The task is done again by another process.
        assert (process.returncode, view.state) == (0, "succeeded")
    # The raylet's worker may finish without it. Whatever comes of that, the record says what the driver has seen.
    assert view.is_over and (view.state == "succeeded") == (process.returncode == 0), (view.state, process.returncode)
    assert view.attempt == 1


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] not in "ZX"
    except OSError:
        return False
