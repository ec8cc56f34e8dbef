"""A registry that several hosts share, in a real PostgreSQL server: leases decide there, and a run can be lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import outlive
import pytest
from conftest import Script, until

READY = "print('ready', flush=True)"


def _as_user(words: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    return [*prefix, *words]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    binaries = installed[-1] if installed else Path(shutil.which("initdb") or "initdb").parent
    # The path of a socket has 107 characters at most, and the server's user must reach it.
    place = Path(tempfile.mkdtemp(prefix="outlive-pg-", dir="/tmp"))
    if os.getuid() == 0:
        os.chown(place, 65534, 65534)
    data = str(place / "data")
    made = _as_user([str(binaries / "initdb"), "-D", data, "-U", "tester", "-A", "trust", "--no-sync"])
    subprocess.run(made, check=True, capture_output=True, env={**os.environ, "HOME": str(place)})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-k", str(place), "-c", "listen_addresses=127.0.0.1", "-p", str(port), "-c", "fsync=off"]
    process = subprocess.Popen(_as_user([str(binaries / "postgres"), "-D", data, *options]), stderr=subprocess.DEVNULL)
    try:
        until((place / f".s.PGSQL.{port}").exists)
        yield f"postgres://tester@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def shared(server: str, request: pytest.FixtureRequest) -> Iterator[outlive.Registry]:
    schema = f"t{abs(hash(request.node.name)) % 10**9}"
    url = f"{server}?schema={schema}"

    def opened() -> outlive.Registry | None:
        try:
            return outlive.Registry(url)
        except outlive.Unavailable:
            return None

    registry = until(opened, 20)
    assert isinstance(registry, outlive.Registry)
    with registry:
        yield registry


def test_beats_go_on_while_native_code_holds_the_lock(script: Script, shared: outlive.Registry) -> None:
    process = script.start(
        f"""
        import ctypes
        with outlive.run('it', lease=2.4, beat=0.4) as run:
            {READY}
            ctypes.PyDLL(None).sleep(5)
        """,
        OUTLIVE_REGISTRY=shared.url,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    seen, began = set(), time.monotonic()
    while time.monotonic() - began < 4:
        view = shared.find("it")
        seen.add((view.state, view.health))
        time.sleep(0.1)
    assert seen <= {("running", "healthy")}, seen
    process.communicate(timeout=60)
    assert shared.find("it").state == "succeeded"


def test_lost_run_is_raised_and_not_recorded(script: Script, shared: outlive.Registry) -> None:
    code = f"""
        with outlive.run('it', lease=0.9, beat=0.3, resume=False) as run:
            {READY}
            sys.stdin.readline()
            run.save('too late')
        """
    process = script.start(code, OUTLIVE_REGISTRY=shared.url)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    reaped = until(lambda: shared.reap())
    assert reaped == [shared.find("it").id]
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate("go\n", timeout=60)
    assert process.returncode == 1 and "outlive.errors.Lost" in err, err
    view = shared.find("it")
    assert view.state == "dead" and view.checkpoint is None


def test_worker_does_what_is_queued(shared: outlive.Registry) -> None:
    queued = [shared.enqueue("square", labels={"n": n}) for n in range(5)]

    def square(run: outlive.OwnedRun) -> None:
        run.save(int(run.labels["n"]) ** 2)

    with outlive.Worker({"square": square}, slots=2, registry=shared):
        assert [shared.wait(each, "20s").checkpoint for each in queued] == [0, 1, 4, 9, 16]


def test_fork_leaves_the_parent_alone(script: Script, shared: outlive.Registry) -> None:
    done = script(
        """
        with outlive.run('parent') as run:
            for round in range(5):
                pid = os.fork()
                if pid == 0:
                    try:
                        run.save('child')
                    except outlive.ForkedRun:
                        with outlive.run(f'child {round}'):
                            os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
                run.save(round)
        """,
        OUTLIVE_REGISTRY=shared.url,
    )
    assert done.returncode == 0, done.stderr
    assert (shared.find("parent").state, shared.find("parent").checkpoint) == ("succeeded", 4)
