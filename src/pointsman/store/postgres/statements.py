"""Statements as libpq takes them: parameters have numbers, and their values are text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import Any

import psycopg

_PARAMETER = re.compile(r"(?<!:):(\w+)")
_RETURNS = re.compile(r"\s*(SELECT|SHOW|EXPLAIN)\b|.*\bRETURNING\b|\s*WITH\b(?!.*^INSERT INTO\b)", re.DOTALL | re.MULTILINE)
_numbers = count(1)
EXPECTED = "expected count"


class Statement:
    """One statement, which each connection prepares once. PostgreSQL finds out the types of its parameters."""

    __slots__ = ("_counting", "name", "names", "returns", "source", "text", "then")

    def __init__(self, text: str, then: Statement | None = None) -> None:
        """`text` has `:name` for a parameter."""
        self.source = text
        self.then = then
        """What is executed after it in the same round trip, without parameters."""
        self.names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        """The parameters in the order of their numbers."""
        numbers = {name: f"${number}" for number, name in enumerate(self.names, 1)}
        self.text = _PARAMETER.sub(lambda found: numbers[found[1]], text).encode()
        self.name = b"pointsman_%d" % next(_numbers)
        self.returns = _RETURNS.match(text) is not None
        """Whether it returns rows."""
        self._counting: Statement | None = None

    def counting(self) -> Statement:
        """The same write, which divides by zero unless it changes as many rows as its last parameter says.

        So the server itself stops what comes after it, and the transaction can be committed in the same round trip.
        """
        if self._counting is None:
            counting = Statement("")
            counting.names = (*self.names, EXPECTED)
            count = b"SELECT 1 / (count(*) = $%d::bigint)::integer FROM changed" % len(counting.names)
            counting.text = b"WITH changed AS (" + self.text + b" RETURNING 1) " + count
            self._counting = counting
        return self._counting

    def encode(self, values: Mapping[str, Any]) -> list[bytes | None]:
        """The values of its parameters in their order."""
        return [None if (value := values[name]) is None else _ENCODERS[type(value)](value) for name in self.names]


def _encode_text(value: str) -> bytes:
    if "\0" in value:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return value.encode()


def _encode_number(value: float | Decimal) -> bytes:
    return str(value).encode()


class _Encoders(dict[type, Callable[[Any], bytes]]):
    """By the type of a value."""

    def __missing__(self, kind: type) -> Callable[[Any], bytes]:
        """An enumeration of words is text."""
        if not issubclass(kind, str):
            raise TypeError(f"no parameter can be of type {kind.__name__}")
        return _encode_text


_ENCODERS = _Encoders(
    {
        str: _encode_text,
        int: _encode_number,
        float: _encode_number,
        Decimal: _encode_number,
        bool: lambda value: b"t" if value else b"f",
        datetime: lambda value: value.isoformat().encode(),
    }
)
