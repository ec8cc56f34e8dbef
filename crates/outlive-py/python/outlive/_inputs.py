"""What callers give, as the library takes it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import _outlive
from .errors import Invalid, hinted

if TYPE_CHECKING:
    from ._registry import Registry

#: Seconds, a timedelta, or text such as "90s", "1h30m" and "7d".
Duration = Union[float, timedelta, str]

#: What names the block that a resumed run is of, as JSON: its name and kind. Empty where every block belongs to the run.
BLOCK_VARIABLE = "OUTLIVE_BLOCK"

_RESUME_ON = ("crash", "interrupt", "failure", "never")
#: After what a supervisor starts the command line again.
ResumeOn = Union[str, Sequence[str]]

_STARTED_IN = os.getcwd() if os.path.isdir(".") else "/"


class Key(NamedTuple):
    """A key that limits concurrency: a lock by default.

    `Key("gpu", limit=2)` lets two runs hold it at a time, `Key("report", unique=True)` allows one run that has not ended,
    and `Key("api", limit=10, per="1m")` lets ten runs start a minute.
    """

    name: str
    limit: int = 1
    unique: bool = False
    per: Duration | None = None


class Artifacts(NamedTuple):
    """Where the artifacts of a run are, so that `outlive sweep` can clean up after it."""

    prefix: str
    shard_prefix: str = "shards"
    db_path_template: str = "db={db_id:05d}"
    run_id: str | None = None


Keys = Union[str, Key, Sequence[Union[str, Key]]]

if TYPE_CHECKING:
    from typing import TypedDict

    class RegistryOptions(TypedDict, total=False):
        """What `outlive.run` takes besides a name and a registry."""

        kind: str
        labels: Mapping[str, object] | None
        lease: Duration | None
        beat: Duration | None
        timeout: Duration | None
        stall_after: Duration | None
        max_attempts: int | None
        resume_on: ResumeOn | None
        key: Keys
        artifacts: str | Artifacts | None
        traceparent: str | None
        resume: bool | str
        strict: bool
        signals: bool

    class Options(RegistryOptions, total=False):
        """What `outlive.run` takes besides a name."""

        registry: str | Registry | None


def seconds(duration: Duration | None) -> float | None:
    """The seconds of a duration.

    >>> seconds("1h30m"), seconds(2), seconds(timedelta(minutes=1)), seconds(None)
    (5400.0, 2.0, 60.0, None)
    """
    if duration is None:
        return None
    if isinstance(duration, str):
        with hinted('give seconds, a timedelta, or text such as "90s" or "7d"'):
            return _outlive.seconds(duration)
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise Invalid(f"{duration!r} is no duration", hint='give seconds, a timedelta, or text such as "90s" or "7d"')
    return float(duration)


def dumped(value: Any, what: str) -> str:
    """JSON of a value that is to be kept."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        hint = "keep it in a file, and name that; or give what `json.dumps` takes"
        raise Invalid(f"the {what} cannot be kept as JSON: {error}", hint=hint) from error


def keys_of(keys: Keys) -> list[dict[str, Any]]:
    """Keys as the library takes them."""
    listed = [keys] if isinstance(keys, (str, Key)) else list(keys)
    given = [key if isinstance(key, Key) else Key(key) for key in listed]
    return [key._asdict() | {"per": seconds(key.per)} for key in given]


def output_of(artifacts: str | Artifacts | None) -> dict[str, Any] | None:
    """Where artifacts are, as the library takes it."""
    if artifacts is None:
        return None
    return (Artifacts(artifacts) if isinstance(artifacts, str) else artifacts)._asdict()


def labels_of(labels: Mapping[str, object]) -> dict[str, str]:
    """Labels as text."""
    return {str(label): str(value) for label, value in labels.items()}


def resume_on_of(resume_on: ResumeOn | None) -> list[str] | None:
    """After what a run is tried again, as the library takes it.

    >>> resume_on_of("crash"), resume_on_of(["crash", "failure"])
    (['crash'], ['crash', 'failure'])
    """
    if resume_on is None:
        return None
    given = [resume_on] if isinstance(resume_on, str) else list(resume_on)
    for each in given:
        if each not in _RESUME_ON:
            raise Invalid(f"`resume_on` has {each!r}", hint=f"give some of {', '.join(_RESUME_ON)}")
    return given


def own_command(name: str | None, kind: str) -> _outlive._Command | None:
    """The command line that starts this program again, and the block in it that the run is of; none where there is no such
    line, as for a program that was read from standard input."""
    words = list(getattr(sys, "orig_argv", []))
    processes = sys.modules.get("multiprocessing.process")
    is_child = processes is not None and processes.parent_process() is not None
    is_kernel = "ipykernel" in sys.modules or hasattr(sys, "ps1")
    if not has_program(words) or is_child or is_kernel or not sys.executable:
        return None
    env = {BLOCK_VARIABLE: json.dumps([name, kind])}
    return {"argv": [sys.executable, *words[1:]], "cwd": _STARTED_IN, "env": env}


def has_program(words: list[str]) -> bool:
    """Whether a command line of Python names a program that is there when it is started again.

    >>> [has_program(["python", *words.split()]) for words in ("x.py", "-u -W error x.py", "-m x", "-uc pass", "-Im x")]
    [True, True, True, True, True]
    >>> [has_program(["python", *words.split()]) for words in ("", "-u", "-u -", "-i x.py", "-X dev -", "/dev/fd/63")]
    [False, False, False, False, False, False]
    """
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            # What a shell puts there for `<(...)` is a pipe.
            return word != "-" and not word.startswith(("/dev/", "/proc/"))
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter == "i":
                return False
            if letter in "cm":
                return bool(word[at:]) or next(rest, None) is not None
            if letter in "WX":
                if not word[at:]:
                    next(rest, None)
                break
    return False
