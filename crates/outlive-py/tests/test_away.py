"""A store that goes away under a program: the program ends within seconds, and the outcomes follow."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import outlive
import pytest
from conftest import Script
from servers import Bucket, Gate

#: What the end of a process may take, with a margin for a busy machine: stores alone take up to a minute.
LIMIT = 40.0


class Store:
    """A registry of a test's own, as it is reached directly and through a gate."""

    def __init__(self, url: str, port: int) -> None:
        self.url, self.gate = url, Gate(port)
        self.gated = url.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.gate.port}")
        assert self.gated != url


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[Store]:
    name = f"away{abs(hash(str(tmp_path))) % 10**9}"
    if request.param == "postgres":
        database: str = request.getfixturevalue("database")
        made = Store(f"{database}?schema={name}", urlsplit(database).port or 5432)
    else:
        bucket: Bucket = request.getfixturevalue("bucket")
        made = Store(bucket.url(name), urlsplit(bucket.endpoint).port or 80)
    yield made
    made.gate.end()


#: How the block ends, and what is recorded of it. A run without a block is ended by the exit of the interpreter.
ENDS: dict[str, tuple[str, str]] = {
    "return": ("", "succeeded"),
    "exception": ("raise ValueError('boom')", "failed"),
    "TERM": ("os.kill(os.getpid(), 15)", "interrupted"),
}


@pytest.mark.parametrize(
    ("store", "ends_by", "how"),
    [
        ("postgres", "return", "hangs"),
        ("postgres", "return", "refuses"),
        ("postgres", "TERM", "hangs"),
        ("s3", "exception", "hangs"),
    ],
    indirect=["store"],
)
def test_process_ends_while_its_store_is_away_and_outcomes_follow(
    script: Script, store: Store, ends_by: str, how: str
) -> None:
    code, state = ENDS[ends_by]
    process = script.start(
        f"""
        held = outlive.start('held')
        with outlive.run('it') as run:
            run.save(1)
            print('ready', flush=True)
            sys.stdin.readline()
            {code}
        """,
        OUTLIVE_REGISTRY=store.gated,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    store.gate.shut(how)
    _, err = process.communicate("\n", timeout=LIMIT)
    assert process.returncode == {"return": 0, "exception": 1, "TERM": -15}[ends_by], err
    # The next process of this home that opens the registry delivers them.
    with outlive.Registry(store.url) as registry:
        block, held = registry.find("it"), registry.find("held")
        assert (block.state, block.attempt, block.checkpoint) == (state, 1, 1), (block.reason, err)
        assert held.state == ("failed" if ends_by == "exception" else "interrupted"), (held.reason, err)
        for view in (block, held):
            ends = [event for event in registry.events(view) if event.state == view.state]
            assert len(ends) == 1, "its end is recorded once"


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_process_whose_store_never_answers_ends(script: Script, store: Store) -> None:
    with outlive.Registry(store.url):
        store.gate.shut("hangs")
    process = script.start(
        """
        with outlive.run('it') as run:
            assert run.save(1) is False
        print('done', flush=True)
        """,
        OUTLIVE_REGISTRY=store.gated,
    )
    out, err = process.communicate(timeout=LIMIT + LIMIT)
    assert (process.returncode, out) == (0, "done\n") and "and continues" in err, err


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_interrupt_gives_up_a_call_that_waits_for_its_store(script: Script, store: Store) -> None:
    with outlive.Registry(store.url):
        pass
    process = script.start(
        """
        registry = outlive.Registry()
        print('ready', flush=True)
        sys.stdin.readline()
        try:
            print('waits', flush=True)
            registry.find('it')
        except KeyboardInterrupt:
            print('given up', flush=True)
        """,
        OUTLIVE_REGISTRY=store.gated,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    store.gate.shut("hangs")
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert process.stdout.readline() == "given up\n"
    assert time.monotonic() - began < 15
    process.communicate(timeout=LIMIT)
