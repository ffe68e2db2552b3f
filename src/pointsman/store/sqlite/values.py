"""Rows to what SQLite can hold, and back: instants and money are whole millionths, truth is 0 and 1.

Both ways are prepared once for each query, because every row of every batch goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from msgspec import Struct

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
    """What to bind to a query for a row: the columns that it names, in the order in which it first names them."""

    def __init__(self, query: str, row_type: type[Struct], constants: Mapping[str, Any]) -> None:
        names = tuple(dict.fromkeys(_PARAMETER.findall(query)))
        columns = [name for name in names if name not in constants]
        converters = _find_converters(row_type, _FROM)
        self._get = attrgetter(*columns)
        self._constants = tuple((index, constants[name]) for index, name in enumerate(names) if name in constants)
        self._converted = tuple((index, converters[name]) for index, name in enumerate(names) if name in converters)

    def __call__(self, row: Struct) -> Sequence[Any]:
        values = list(self._get(row))
        for index, constant in self._constants:
            values.insert(index, constant)
        for index, convert in self._converted:
            value = values[index]
            if value is not None:
                values[index] = convert(value)
        return values


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
