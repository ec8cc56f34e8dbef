"""Dask: a real scheduler with real worker processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import dask
import distributed
import outlive
import outlive.dask
import pytest
from conftest import Script, kill_rounds, until


def part(number: int) -> tuple[str, int]:
    run = outlive.current()
    assert isinstance(run, outlive.AttachedRun)
    run.verify()
    run.artifact(f"part-{number}")
    return run.id, os.getpid()


def forever(path: str) -> None:
    open(path, "w").close()
    time.sleep(60)


def once_killed(path: str) -> int:
    """Waits to be killed; done again by another process, it answers with that."""
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(60)
    return os.getpid()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    # A cluster gives a worker up for good that it does not see 15 s after it was lost: also one that was back meanwhile,
    # was killed again, and is just being started.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}), distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster, distributed.Client(cluster) as client:
        yield client


def test_tasks_belong_to_the_run_of_their_client(client: Any, registry: outlive.Registry) -> None:
    with outlive.dask.run(client, "it", registry=registry.url) as run:
        found = client.gather(client.map(part, range(6), pure=False))
        assert {id for id, _ in found} == {run.id} and all(pid != os.getpid() for _, pid in found)
    view = registry.find("it")
    assert view.state == "succeeded" and sorted(view.artifacts) == [f"part-{n}" for n in range(6)]


def test_tasks_of_two_drivers_on_the_same_workers_know_their_own(client: Any, registry: outlive.Registry) -> None:
    with distributed.Client(client.scheduler.address, set_as_default=False) as second:
        with outlive.dask.run(client, "a", registry=registry.url) as a:
            early = client.map(part, range(4), pure=False)
            with outlive.dask.run(second, "b", registry=registry.url) as b:
                late = client.map(part, range(4, 8), pure=False), second.map(part, range(4), pure=False)
                assert {id for id, _ in second.gather(late[1])} == {b.id}
            # What is given to the first client inside the second block is of the second run.
            assert {id for id, _ in client.gather(late[0])} == {b.id}
            assert {id for id, _ in client.gather(early)} == {a.id}
            again = client.gather(client.map(part, range(4), pure=False))
            assert {id for id, _ in again} == {a.id}
    assert client.submit(lambda: outlive.current() is None, pure=False).result(timeout=60)


def test_cancel_cancels_the_futures(client: Any, registry: outlive.Registry, tmp_path: Any) -> None:
    with pytest.raises(outlive.Cancelled):
        with outlive.dask.run(client, "it", registry=registry.url):
            future = client.submit(forever, str(tmp_path / "begun"), pure=False)
            until((tmp_path / "begun").exists)
            registry.cancel("it", "enough")
            future.result(timeout=60)
    assert registry.find("it").state == "cancelled"
    client.restart()


def test_exception_of_a_task_fails_the_run(client: Any, registry: outlive.Registry) -> None:
    with pytest.raises(ZeroDivisionError):
        with outlive.dask.run(client, "it", registry=registry.url):
            client.submit(lambda: 1 / 0, pure=False).result(timeout=60)
    assert registry.find("it").error_type == "ZeroDivisionError"


@kill_rounds
def test_killed_worker_loses_no_task(client: Any, registry: outlive.Registry, tmp_path: Any, round: int) -> None:
    begun = tmp_path / "begun"
    with outlive.dask.run(client, "it", registry=registry.url):
        future = client.submit(once_killed, str(begun), pure=False)
        until(lambda: begun.exists() and begun.read_text().endswith("\n"))
        os.kill(int(begun.read_text()), signal.SIGKILL)
        view = registry.find("it")
        assert (view.state, view.health) == ("running", "healthy"), view.reason
        assert future.result(timeout=60) != int(begun.read_text())
    assert registry.find("it").state == "succeeded"


@kill_rounds
def test_killed_driver_is_dead_and_resumed_once(
    script: Script, registry: outlive.Registry, command: Any, round: int
) -> None:
    process = script.start(
        """
        import distributed, outlive.dask
        if __name__ == '__main__':
            cluster = distributed.LocalCluster(n_workers=1, host='127.0.0.1', dashboard_address=None)
            with distributed.Client(cluster) as client, outlive.dask.run(client, 'it') as run:
                print('ready', flush=True)
                client.submit(time.sleep, 60 if run.attempt == 1 else 0).result()
        """
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    view = registry.find("it")
    assert (view.state, view.attempt) == ("dead", 1), (view.health, view.reason)
    resumed = command("resume", "it")
    assert resumed.returncode == 0, resumed.stderr
    view = registry.wait("it", "60s")
    assert (view.state, view.attempt) == ("succeeded", 2)
    assert command("resume", "it").stdout == "nothing to resume\n"
