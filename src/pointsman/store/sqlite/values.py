"""Rows to what SQLite can hold, and back: instants and money are whole millionths, truth is 0 and 1.

Both ways are prepared once for each query, because every row of every batch goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from msgspec import Struct

from pointsman.store.rows import Entity

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLION = Decimal(1_000_000)
_PARAMETER = re.compile(r":(\w+)")

Row = TypeVar("Row", bound=Struct)


@lru_cache(maxsize=4096)
def from_instant(instant: datetime) -> int:
    return (instant - EPOCH) // _MICROSECOND


def to_instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@lru_cache(maxsize=4096)
def from_usd(amount: Decimal) -> int:
    return int(amount * _MILLION)


@lru_cache(maxsize=4096)
def to_usd(millionths: int) -> Decimal:
    return millionths / _MILLION


_FROM: dict[type, Callable[[Any], Any]] = {datetime: from_instant, Decimal: from_usd}
_TO: dict[type, Callable[[Any], Any]] = {datetime: to_instant, Decimal: to_usd, bool: bool}


class Encoder:
    """What to bind to a statement for a row: the columns that it names, in the order in which it first names them."""

    def __init__(self, statement: str, row_type: type[Struct]) -> None:
        names = tuple(dict.fromkeys(_PARAMETER.findall(statement)))
        converters = _find_converters(row_type, _FROM)
        self._get = attrgetter(*names)
        self._converted = tuple((index, converters[name]) for index, name in enumerate(names) if name in converters)

    def __call__(self, row: Struct) -> Sequence[Any]:
        values = list(self._get(row))
        for index, convert in self._converted:
            value = values[index]
            if value is not None:
                values[index] = convert(value)
        return values


@lru_cache(maxsize=4096)
def update_of(row_type: type[Entity], columns: tuple[str, ...], *, moved: int) -> tuple[str, Encoder]:
    """The statement that stores these columns of a row whose revision was `moved` less, and what to bind to it."""
    changes = ", ".join(f"{column} = :{column}" for column in columns)
    statement = f"UPDATE {row_type.__name__.lower()} SET {changes} WHERE id = :id AND revision = :revision - {moved}"  # noqa: S608
    return statement, Encoder(statement, row_type)


class Decoder(Generic[Row]):
    """Rows from what a query returns; columns that a newer version has added are left out."""

    def __init__(self, row_type: type[Row], columns: Sequence[str]) -> None:
        converters = _find_converters(row_type, _TO)
        known = set(row_type.__struct_fields__)
        self._row_type = row_type
        self._names = tuple(columns)
        self._unknown = tuple(name for name in columns if name not in known)
        self._converted = tuple((index, converters[name]) for index, name in enumerate(columns) if name in converters)

    def __call__(self, row: Sequence[Any]) -> Row:
        values = list(row)
        for index, convert in self._converted:
            value = values[index]
            if value is not None:
                values[index] = convert(value)
        fields = dict(zip(self._names, values, strict=True))
        for name in self._unknown:
            del fields[name]
        return self._row_type(**fields)


def _find_converters(row_type: type[Struct], converters: dict[type, Callable[[Any], Any]]) -> dict[str, Callable[[Any], Any]]:
    return {
        name: converters[candidate]
        for name, annotation in get_type_hints(row_type).items()
        for candidate in (annotation, *get_args(annotation))
        if isinstance(candidate, type) and candidate in converters
    }
