"""Inputs and results: JSON, or the dataclass or pydantic model that a handler names."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from .errors import Invalid


def _is_dataclass(kind: Any) -> bool:
    # To ask `dataclasses` would import it, and with it `inspect`, for every program.
    return isinstance(kind, type) and hasattr(kind, "__dataclass_fields__")


def plain(value: Any) -> Any:
    """A value as JSON has it: of a dataclass or a pydantic model its fields.

    >>> import dataclasses
    >>> plain(dataclasses.make_dataclass("Point", ["x", "y"])(1, 2))
    {'x': 1, 'y': 2}
    """
    if _is_dataclass(type(value)):
        import dataclasses

        return dataclasses.asdict(value)
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else value


def input_type(handler: Callable[..., Any]) -> Any:
    """The type of the input that a handler takes as its second parameter: `Any` where it does not say, none where it
    takes no input.

    >>> input_type(lambda run: None) is None, input_type(lambda run, input: None) is Any
    (True, True)
    """
    import inspect

    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or positional[1].default is not inspect.Parameter.empty:
        return None
    try:
        hints = typing.get_type_hints(handler)
    except (NameError, TypeError):
        hints = {}
    return hints.get(positional[1].name, Any)


def read_as(wanted: Any, value: Any) -> Any:
    """The input as the type that a handler asks for. What does not fit is refused."""
    validate = getattr(wanted, "model_validate", None)
    try:
        if callable(validate):
            return validate(value)
        if _is_dataclass(wanted):
            return wanted(**value)
    except (TypeError, ValueError) as error:
        hint = "enqueue the run again with an input that its handler takes"
        raise Invalid(f"the input cannot be read as {getattr(wanted, '__name__', wanted)}: {error}", hint=hint) from error
    return value
