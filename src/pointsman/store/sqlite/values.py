"""Rows to values that SQLite can store, and back: instants and money are whole millionths, truth is 0 and 1.

Both directions are compiled once for each statement, because every row of every batch passes through them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import fields

from pointsman.store.columns import Row, RowReader, compile_reader, moving_table_of, table_of, types_of
from pointsman.store.rows import ZERO_USD, Entity, Task
from pointsman.store.scripts import Dialect

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLION = Decimal(1_000_000)
_PARAMETER = re.compile(r":(\w+)")
_INSERT = re.compile(r"(INSERT INTO .* VALUES )(\(.*\))")
AT_ONCE = 16
"""How many rows a statement inserts, if it can. Each statement copies the pages that it changes, in case it fails."""

Encoder = Callable[[Struct], Sequence[Any]]


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


_FROM = {datetime: "None if {0} is None else from_instant({0})", Decimal: "None if {0} is None else from_usd({0})"}
_TO = {
    datetime: "None if {0} is None else to_instant({0})",
    Decimal: "None if {0} is None else to_usd({0})",
    bool: "{} == 1",
}


def _insert(row_type: type[Struct]) -> str:
    names = row_type.__struct_fields__
    return f"{table_of(row_type)} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


DIALECT = Dialect(parameter=":{}", any_of="IN (SELECT value FROM json_each(:{}))", insert=_insert)


@cache
def reader_of(row_type: type[Row], count: int) -> RowReader[Row]:
    return compile_reader(row_type, count, _TO, {"to_instant": to_instant, "to_usd": to_usd})


@cache
def encoder_of(statement: str, row_type: type[Struct]) -> Encoder:
    """A function that returns what to bind for a row: the columns that a statement names, in the order of first mention."""
    names = dict.fromkeys(_PARAMETER.findall(statement))
    types = types_of(row_type)
    # A new row has NULL where nothing is set; an update must not write what was not read.
    unset = {field.name for field in fields(row_type) if field.default is UNSET} if statement.startswith("INSERT") else ()
    values = [
        f"None if row.{name} is UNSET else row.{name}" if name in unset else _FROM.get(types[name], "{}").format(f"row.{name}")
        for name in names
    ]
    functions = {"from_instant": from_instant, "from_usd": from_usd, "UNSET": UNSET}
    compiled: Encoder = eval(f"lambda row: ({', '.join(values)},)", functions)  # noqa: S307 - only names of columns
    return compiled


@cache
def insert_several(statement: str) -> str | None:
    """The same for `AT_ONCE` rows, if all that it does is insert one."""
    found = _INSERT.fullmatch(statement)
    return found and found[1] + ", ".join([_PARAMETER.sub("?", found[2])] * AT_ONCE)


@lru_cache(maxsize=4096)
def update_of(row_type: type[Entity], columns: tuple[str, ...], *, moved: int) -> tuple[str, Encoder]:
    """The statement that stores these columns of a row whose revision was `moved` less, and what to bind to it."""
    changes = ", ".join(f"{column} = :{column}" for column in columns)
    found = "number = (SELECT number FROM task_spec WHERE id = :id)" if row_type is Task else "id = :id"
    statement = f"UPDATE {moving_table_of(row_type)} SET {changes} WHERE {found} AND revision = :revision - {moved}"  # noqa: S608
    return statement, encoder_of(statement, row_type)
