"""Rows to what SQLite can hold, and back: instants and money are whole millionths, truth is 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLION = Decimal(1_000_000)

Row = TypeVar("Row", bound=Struct)


@lru_cache(maxsize=4096)
def from_instant(instant: datetime) -> int:
    return (instant - EPOCH) // _MICROSECOND


def to_instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def from_usd(amount: Decimal) -> int:
    return int(amount * _MILLION)


def to_usd(millionths: int) -> Decimal:
    return millionths / _MILLION


_FROM: dict[type, Callable[[Any], Any]] = {datetime: from_instant, Decimal: from_usd}
_TO: dict[type, Callable[[Any], Any]] = {datetime: to_instant, Decimal: to_usd, bool: bool}


@lru_cache(maxsize=64)
def _converted(row_type: type[Struct], direction: str) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    converters = _FROM if direction == "from" else _TO
    return tuple(
        (name, converters[candidate])
        for name, annotation in get_type_hints(row_type).items()
        for candidate in (annotation, *get_args(annotation))
        if isinstance(candidate, type) and candidate in converters
    )


def encode(row: Struct) -> dict[str, Any]:
    """What to bind for a row, by column."""
    values = asdict(row)
    for name, convert in _converted(type(row), "from"):
        value = values[name]
        if value is not None:
            values[name] = convert(value)
    return values


def decode(row_type: type[Row], names: Iterable[str], row: Iterable[Any]) -> Row:
    """A row from what was read, by column."""
    values = dict(zip(names, row, strict=True))
    for name, convert in _converted(row_type, "to"):
        value = values.get(name)
        if value is not None:
            values[name] = convert(value)
    return row_type(**values)
