"""A registry that several hosts share, in a real PostgreSQL server: leases decide there, and a run can be lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import outlive
import pytest
from conftest import Script, until

READY = "print('ready', flush=True)"


@pytest.fixture
def shared(database: str, request: pytest.FixtureRequest) -> Iterator[outlive.Registry]:
    schema = f"t{abs(hash(request.node.name)) % 10**9}"
    url = f"{database}?schema={schema}"
    with outlive.Registry(url) as registry:
        yield registry


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
