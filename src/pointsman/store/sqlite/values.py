"""Rows to what SQLite can hold, and back: instants and money are whole millionths, truth is 0 and 1.

Both ways are prepared once for each query, because every row of every batch goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

from msgspec import Struct

from pointsman.store.rows import ZERO_USD, Entity

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLION = Decimal(1_000_000)
_PARAMETER = re.compile(r":(\w+)")

Row = TypeVar("Row", bound=Struct)


@lru_cache(maxsize=4096)
def from_instant(instant: datetime) -> int:
    return (instant - EPOCH) // _MICROSECOND


@lru_cache(maxsize=4096)
def to_instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@lru_cache(maxsize=4096)
def from_usd(amount: Decimal) -> int:
    return int(amount * _MILLION)


@lru_cache(maxsize=4096)
def to_usd(millionths: int) -> Decimal:
    return millionths / _MILLION if millionths else ZERO_USD


_FROM = {datetime: "from_instant", Decimal: "from_usd"}
_TO = {datetime: "to_instant", Decimal: "to_usd"}

Encoder = Callable[[Struct], Sequence[Any]]
Decoder = Callable[[Sequence[Any]], Row]


def compile_encoder(statement: str, row_type: type[Struct]) -> Encoder:
    """What to bind to a statement for a row: the columns that it names, in the order in which it first names them."""
    names = dict.fromkeys(_PARAMETER.findall(statement))
    types = _find_types(row_type)
    values = [_convert(f"row.{name}", _FROM.get(types[name])) for name in names]
    return _compile(f"lambda row: ({', '.join(values)},)", row_type)


def compile_decoder(row_type: type[Row], columns: Sequence[str]) -> Decoder[Row]:
    """A row from what a query returns; columns that a newer version has added are left out."""
    types = _find_types(row_type)
    values = [
        f"{name}=" + (f"row[{index}] == 1" if types[name] is bool else _convert(f"row[{index}]", _TO.get(types[name])))
        for index, name in enumerate(columns)
        if name in types
    ]
    return _compile(f"lambda row: row_type({', '.join(values)})", row_type)


def _convert(value: str, function: str | None) -> str:
    return f"None if {value} is None else {function}({value})" if function else value


def _compile(source: str, row_type: type[Struct]) -> Callable[[Any], Any]:
    """Written out as one expression, this is three times as quick as a loop; only names of columns and functions go into it."""
    names = {
        "row_type": row_type,
        "from_instant": from_instant,
        "to_instant": to_instant,
        "from_usd": from_usd,
        "to_usd": to_usd,
    }
    compiled: Callable[[Any], Any] = eval(source, names)  # noqa: S307
    return compiled


@lru_cache
def _find_types(row_type: type[Struct]) -> dict[str, type]:
    """By field: the type of its values, None aside."""
    return {
        name: next(candidate for candidate in (annotation, *get_args(annotation)) if isinstance(candidate, type))
        for name, annotation in get_type_hints(row_type).items()
        if name in row_type.__struct_fields__
    }


@lru_cache(maxsize=4096)
def update_of(row_type: type[Entity], columns: tuple[str, ...], *, moved: int) -> tuple[str, Encoder]:
    """The statement that stores these columns of a row whose revision was `moved` less, and what to bind to it."""
    changes = ", ".join(f"{column} = :{column}" for column in columns)
    statement = f"UPDATE {row_type.__name__.lower()} SET {changes} WHERE id = :id AND revision = :revision - {moved}"  # noqa: S608
    return statement, compile_encoder(statement, row_type)


@lru_cache(maxsize=4096)
def update_of_alike(row_type: type[Entity], columns: tuple[str, ...]) -> tuple[str, Encoder]:
    """The statement that stores these columns of a row that has moved in a list of rows, and what to bind after the list."""
    changes = ", ".join(f"{column} = :{column}" for column in columns)
    source = "(SELECT value FROM json_each(?1))"
    # The parameters are numbered as they appear, so the list comes first.
    statement = f"UPDATE {row_type.__name__.lower()} SET {changes} WHERE id IN {source} AND revision = :revision - 1"  # noqa: S608
    return _number(statement), compile_encoder(statement, row_type)


def _number(statement: str) -> str:
    """Names as numbers from 2 on, in the order in which they first appear."""
    numbers: dict[str, int] = {}
    return _PARAMETER.sub(lambda match: f"?{numbers.setdefault(match[1], len(numbers) + 2)}", statement)
