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
_RETURNS = re.compile(r"\s*(SELECT|WITH|SHOW|EXPLAIN)\b|.*\bRETURNING\b", re.DOTALL)
_numbers = count(1)


class Statement:
    """One statement, which each connection prepares once. PostgreSQL finds out the types of its parameters."""

    __slots__ = ("name", "names", "returns", "text")

    def __init__(self, text: str) -> None:
        """`text` has `:name` for a parameter."""
        self.names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        """The parameters in the order of their numbers."""
        numbers = {name: f"${number}" for number, name in enumerate(self.names, 1)}
        self.text = _PARAMETER.sub(lambda found: numbers[found[1]], text).encode()
        self.name = b"pointsman_%d" % next(_numbers)
        self.returns = _RETURNS.match(text) is not None
        """Whether it returns rows."""

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
