"""What can go wrong: a few kinds, each with a code for programs and a hint for people."""

from __future__ import annotations

from datetime import datetime

__all__ = [
    "Ambiguous",
    "Cancelled",
    "Contended",
    "Denied",
    "Error",
    "Forbidden",
    "ForkedRun",
    "Invalid",
    "KeyBusy",
    "LeaseOver",
    "Lost",
    "NotFound",
    "Refused",
    "Stopped",
    "StoreError",
    "TimedOut",
    "Unavailable",
    "UnknownOutcome",
    "Untrusted",
    "WorkerEnds",
]


class Error(Exception):
    """A call on a registry failed. Nothing was changed, unless it says so.

    >>> error = NotFound("no run `x`", hint="`outlive ps --all` lists every run of this registry")
    >>> error.code, error.hint
    ('not_found', '`outlive ps --all` lists every run of this registry')
    """

    code: str = "refused"
    hint: str | None = None
    #: The same call may succeed later: the store is away, full or throttled.
    passing: bool = False

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if hint is not None:
            self.add_hint(hint)

    def add_hint(self, hint: str) -> None:
        """Says what to do, in `hint` and below the traceback."""
        self.hint = hint
        # Python 3.10 has no notes.
        add_note = getattr(self, "add_note", None)
        if add_note is not None:
            add_note(f"hint: {hint}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), self.__dict__)


class NotFound(Error):
    """There is no such run, or no registry where one is looked for."""

    code = "not_found"


class Ambiguous(Error):
    """Several runs are meant."""

    code = "ambiguous"


class Invalid(Error):
    """The call makes no sense as it is."""

    code = "invalid"


class hinted:
    """A block in which an `Invalid` that the library raised without a hint gets one that means Python."""

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Invalid) and error.hint is None:
            error.add_hint(self._hint)


class Refused(Error):
    """The run does not allow it as it stands."""

    code = "refused"


class KeyBusy(Error):
    """A key that the run needs is held by others."""

    code = "busy"
    #: The ids of the runs that hold it.
    holders: tuple[str, ...] = ()
    #: When it is free, where a clock alone frees it.
    free_at: datetime | None = None


class Contended(Error):
    """Others kept changing the run while it was to be changed."""

    code = "busy"
    passing = True


class Forbidden(Error):
    """A server does not do this for the caller, or does not know the caller."""

    code = "forbidden"


class Untrusted(Error):
    """Another user made the run, or its record was tampered with."""

    code = "untrusted"


class ForkedRun(Error):
    """A forked child used a registry or a run of its parent. Nothing was changed."""

    code = "lost"
    hint = "open a registry in the child, or hand `run.ref` over and call `outlive.attach(ref)` there"


class StoreError(Error):
    """The store below the registry failed."""

    code = "unavailable"


class Unavailable(StoreError):
    """The store cannot be reached, has no room, or is asked for too much at once. Nothing was written."""

    passing = True


class UnknownOutcome(StoreError):
    """The store did not answer: what was to be written may have been."""

    passing = True


class Denied(StoreError):
    """The store may not be used, or cannot do what is needed."""

    code = "denied"


class Stopped(BaseException):
    """The work should stop. Like `asyncio.CancelledError` no `Exception`, so that `except Exception` does not swallow it."""

    code: str = "stopped"


class Cancelled(Stopped):
    """Somebody asked for it."""

    code = "cancelled"

    def __init__(self, by: str | None = None, reason: str | None = None) -> None:
        said = f"cancelled by {by}" if by else "cancelled"
        super().__init__(f"{said}: {reason}" if reason else said)
        self.by = by
        self.reason = reason


class Lost(Stopped):
    """The run is no longer this process's: it was reaped, resumed elsewhere, or ended."""

    code = "lost"


class TimedOut(Stopped):
    """The run took longer than its timeout."""

    code = "timed_out"


class LeaseOver(Stopped):
    """The registry could not be reached for so long that another process may soon own the run."""

    code = "lease_over"


class WorkerEnds(Stopped):
    """The worker that calls the handler was asked to end, and has waited for as long as its grace says."""

    code = "worker_ends"


_KINDS: dict[str, type[Error]] = {
    "not_found": NotFound,
    "ambiguous": Ambiguous,
    "invalid": Invalid,
    "refused": Refused,
    "busy": KeyBusy,
    "contended": Contended,
    "untrusted": Untrusted,
    "unavailable": Unavailable,
    "unknown": UnknownOutcome,
    "full": Unavailable,
    "throttled": Unavailable,
    "denied": Denied,
    "newer": Denied,
    "corrupt": StoreError,
    "forbidden": Forbidden,
    "unauthorised": Forbidden,
    "forked": ForkedRun,
}


def from_native(
    kind: str,
    code: str,
    message: str,
    hint: str | None,
    passing: bool,
    holders: list[str],
    free_at: str | None,
) -> BaseException:
    """The exception for an error of the library."""
    if kind == "lost":
        return Lost(message)
    kind_of = _KINDS.get(kind, Error)
    if kind == "forked":
        # The library's hint names a function of Rust.
        hint = ForkedRun.hint
    error = kind_of(message, code=code, hint=hint)
    error.passing = passing or error.passing
    if isinstance(error, KeyBusy):
        error.holders = tuple(holders)
        error.free_at = datetime.fromisoformat(free_at.replace("Z", "+00:00")) if free_at else None
    return error
