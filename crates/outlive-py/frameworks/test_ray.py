"""Ray: a real cluster of this machine. Ray binds every interface, so it runs in a network namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import outlive
import pytest
from conftest import COMMAND, kill_rounds, until

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
    return alone(tmp_path, sys.executable, str(script))


def alone(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """Starts a program in a network namespace of its own."""
    # A path of a socket has 107 characters at most.
    env = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp"}
    within = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    pipe = subprocess.PIPE
    return subprocess.Popen([*within, *words], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=env)


def resume(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    process = alone(tmp_path, str(COMMAND), "resume", "it", "--failed")
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


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
def test_killed_process_is_seen_and_its_run_resumed_once(
    tmp_path: Path, registry: outlive.Registry, victim: str, round: int
) -> None:
    begun = tmp_path / "begun"
    code = f"""
with outlive.ray.run("it") as run:
    run.save(run.attempt)
    print(os.getpid(), raylet(), flush=True)
    outlive.ray.get(run, [once_killed.options(**outlive.ray.options(run)).remote({str(begun)!r})])
"""
    process = start(tmp_path, VICTIMS + code)
    assert process.stdout is not None
    driver, raylet = map(int, process.stdout.readline().split())
    cluster = os.readlink(f"/proc/{driver}/ns/net")
    try:
        until(lambda: begun.exists() and begun.read_text().endswith("\n"), 600)
        killed = {"driver": driver, "worker": int(begun.read_text()), "raylet": raylet}[victim]
        os.kill(killed, signal.SIGKILL)
        until(lambda: not is_alive(killed))
        if victim == "driver":
            process.wait(60)
            is_settled(registry, cluster)
        process.communicate(timeout=600)
        # A task may hold on to the run for as long as it outlives its driver. It is named until then.
        until(lambda: is_settled(registry, cluster), 600)
        view = registry.find("it")
        if victim == "worker":
            # The task is done again by another process.
            assert (process.returncode, view.state) == (0, "succeeded")
        # The raylet's worker may finish without it. Whatever comes of that, the record says what the driver has seen.
        said = (view.state, process.returncode)
        assert view.is_over and (view.state == "succeeded") == (process.returncode == 0), said
        assert (view.attempt, view.checkpoint) == (1, 1), said
        if view.state == "succeeded":
            return
        resumed = resume(tmp_path)
        assert resumed.returncode == 0, resumed.stderr
        view = registry.wait("it", "600s")
        assert (view.state, view.attempt, view.checkpoint) == ("succeeded", 2, 2), view.raw
        assert resume(tmp_path).stdout == "nothing to resume\n"
    finally:
        end(cluster)


def is_settled(registry: outlive.Registry, cluster: str) -> bool:
    """Whether the run of a driver that is gone is over. If not, it is orphaned, and processes of its cluster are named."""
    view = registry.find("it")
    if not view.is_over:
        said = (view.state, view.health, view.reason, view.leftovers)
        assert (view.state, view.health) == ("running", "orphaned") and view.leftovers, said
        assert all(namespace(pid) in (cluster, None) for pid in view.leftovers), said
    return view.is_over


def namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def end(cluster: str) -> None:
    """Ends what is left of a cluster: agents of Ray outlive a killed driver by minutes."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if namespace(int(pid)) == cluster:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] not in "ZX"
    except OSError:
        return False
