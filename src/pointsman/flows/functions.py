"""The functions of expressions, and the limits on their results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pointsman.errors import ExpressionFailed

MAX_TEXT = 1_000_000
MAX_NODES = 100_000
MAX_RANGE = 10_000
MAX_NESTING = 200


@dataclass(frozen=True, slots=True)
class Function:
    """A function, with the number of arguments that it takes."""

    name: str
    call: Callable[..., Any]
    least: int = 1
    most: int = 1

    def check_count(self, count: int) -> None:
        if not self.least <= count <= self.most:
            wanted = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            raise ExpressionFailed(f"`{self.name}` takes {wanted} argument{'s' * (self.most > 1)}, but got {count}.")

    def __call__(self, *arguments: Any) -> Any:
        try:
            return plain(self.call(*arguments))
        except (TypeError, ValueError, OverflowError, RecursionError, MemoryError):
            given = ", ".join(describe(argument) for argument in arguments)
            raise ExpressionFailed(f"`{self.name}` does not work with {given}.") from None


def describe(value: object) -> str:
    """A value as shown in messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 40 else f"{value[:39]}…")
        case int() | float():
            return f"{value}"[:40]
        case list() | tuple():
            return f"a list of {len(value)}"
        case Mapping():
            return f"an object with {len(value)} keys" if len(value) != 1 else "an object with 1 key"
        case _:
            return f"a {type(value).__name__}"


def plain(value: Any) -> Any:
    """Return the value if JSON can represent it and it is not too large."""
    match value:
        case bool() | None:
            return value
        case int() if not -(2**63) <= value < 2**63:
            raise ExpressionFailed("A number is too large: integers have 64 bits.")
        case float() if not math.isfinite(value):
            raise ExpressionFailed("A number is too large, or not a number.")
        case str() if len(value) > MAX_TEXT:
            raise ExpressionFailed(f"A text has {len(value):,} characters; the limit is {MAX_TEXT:,}.")
        case _:
            return value


def check_size(value: Any) -> None:
    """Raise ExpressionFailed for a value that is too large or nested too deeply."""
    level, nodes = [value], 0
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        nodes += len(level)
        for each in level:
            plain(each)
            if isinstance(each, Mapping):
                below += each.values()
            elif isinstance(each, list | tuple):
                below += each
            if nodes + len(below) > MAX_NODES:
                raise ExpressionFailed(f"The value has more than {MAX_NODES:,} parts. Put large values into a file.")
        if not below:
            return
        level = below
    raise ExpressionFailed(f"The value is nested more than {MAX_NESTING} levels deep.")


def as_text(value: Any) -> str:
    """A value as part of a text: JSON for lists and objects, empty for null."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return _json(value)


def _json(value: Any) -> str:
    check_size(value)
    return json.dumps(value, ensure_ascii=False, default=dict)


def _len(value: Any) -> int:
    if isinstance(value, str | list | tuple | Mapping):
        return len(value)
    raise TypeError


def _int(value: Any) -> int:
    if isinstance(value, str | int | float):
        return int(value)
    raise TypeError


def _float(value: Any) -> float:
    if isinstance(value, str | int | float):
        return float(value)
    raise TypeError


def _join(values: Any, separator: Any = " ") -> str:
    if not isinstance(values, list | tuple) or not isinstance(separator, str):
        raise TypeError
    texts = [as_text(value) for value in values]
    if sum(len(text) + len(separator) for text in texts) > MAX_TEXT:
        raise ExpressionFailed(f"The joined text has more than {MAX_TEXT:,} characters.")
    return separator.join(texts)


def _range(*bounds: Any) -> list[int]:
    if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds):
        raise TypeError
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise ExpressionFailed(f"`range` gives at most {MAX_RANGE:,} numbers.")
    return list(numbers)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise TypeError


def _sorted(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return sorted(value)
    raise TypeError


FUNCTIONS: Mapping[str, Function] = {
    function.name: function
    for function in (
        Function("len", _len),
        Function("str", as_text),
        Function("int", _int),
        Function("float", _float),
        Function("json", _json),
        Function("join", _join, 1, 2),
        Function("range", _range, 1, 3),
        Function("keys", lambda value: list(_mapping(value))),
        Function("values", lambda value: list(_mapping(value).values())),
        Function("sorted", _sorted),
    )
}
