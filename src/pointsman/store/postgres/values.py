"""Rows to parameters of PostgreSQL, and money back without the zeros that PostgreSQL appends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, ClassVar

from msgspec import Struct
from psycopg.abc import Buffer
from psycopg.types.numeric import NumericBinaryLoader

from pointsman.store.columns import Row, RowReader, compile_reader, moving_table_of, table_of, types_of
from pointsman.store.postgres.statements import Statement
from pointsman.store.rows import Entity
from pointsman.store.scripts import Dialect

MOST_KNOWN_AMOUNTS = 4096
_TYPES: dict[type, str] = {
    str: "text",
    int: "bigint",  # tokens are; the other columns take what fits them
    bool: "boolean",
    float: "double precision",
    datetime: "timestamptz",
    Decimal: "numeric",
}
_PLAIN = re.compile(r"(?!null$)[0-9A-Za-z_]+", re.IGNORECASE)
"""Text that needs no quotes in an array."""


class UsdLoader(NumericBinaryLoader):
    """Reads numeric(14, 6), which comes as 1.500000, as the amount that was stored, 1.5."""

    _known: ClassVar[dict[bytes, Decimal]] = {}

    def load(self, data: Buffer) -> Decimal:
        key = bytes(data)
        amount = self._known.get(key)
        if amount is None:
            text = str(super().load(data))
            amount = Decimal(text.rstrip("0").rstrip(".") if "." in text else text)
            if len(self._known) < MOST_KNOWN_AMOUNTS:
                self._known[key] = amount
        return amount


def _insert(row_type: type[Struct]) -> str:
    columns = ", ".join(row_type.__struct_fields__)
    return f"{table_of(row_type)} ({columns}) SELECT {columns} FROM {_rows(row_type)}"  # noqa: S608


def _rows(row_type: type[Struct]) -> str:
    """All rows of a batch come as one JSON parameter."""
    typed = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in types_of(row_type).items())
    return f"ROWS FROM (json_to_recordset(:rows) AS ({typed}))"


DIALECT = Dialect(parameter=":{}", any_of="= ANY(:{})", insert=_insert, rows=_rows)


@cache
def reader_of(row_type: type[Row], count: int) -> RowReader[Row]:
    """What makes a row of its first columns."""
    return compile_reader(row_type, count, {}, {})


def in_turns(rows: Sequence[Entity]) -> Iterable[Sequence[Entity]]:
    """One statement changes a row once, so a row that moves twice in a batch needs two statements."""
    if len({row.id for row in rows}) == len(rows):
        return (rows,)
    turns: list[dict[str, Entity]] = []
    for row in rows:
        turn = next((turn for turn in turns if row.id not in turn), None)
        if turn is None:
            turns.append(turn := {})
        turn[row.id] = row
    return [list(turn.values()) for turn in turns]


def update_of(rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> tuple[Statement, dict[str, Any]]:
    """The statement that stores these columns of rows whose revision was `moved` less, and its parameters.

    A value that all rows share is a single parameter. Most values are, because most rows of a batch make the same move.
    """
    names = ("id", "revision", *(column for column in columns if column != "revision"))
    values: dict[str, Any] = {}
    differing = []
    for name, column in zip(names, zip(*map(attrgetter(*names), rows), strict=True), strict=True):
        if name == "id" or column.count(column[0]) != len(column):
            differing.append(name)
            values[name] = to_array(column)
        else:
            values[name] = column[0]
    return _write_update(type(rows[0]), tuple(columns), tuple(differing), moved), values


@lru_cache(maxsize=4096)
def _write_update(row_type: type[Entity], columns: tuple[str, ...], differing: tuple[str, ...], moved: int) -> Statement:
    types = {name: _TYPES[kind] for name, kind in types_of(row_type).items()}
    table = moving_table_of(row_type)
    values = {name: f"new.{name}" if name in differing else f":{name}::{types[name]}" for name in (*columns, "revision")}
    changes = ", ".join(f"{column} = {values[column]}" for column in columns)
    arrays = ", ".join(f":{name}::{types[name]}[]" for name in differing)
    by_number = table != table_of(row_type)  # rows that move have no id: that is in the other row
    if differing == ("id",):
        ids = f"= ANY(ARRAY(SELECT number FROM task_spec WHERE id = ANY({arrays})))" if by_number else f"= ANY({arrays})"  # noqa: S608
        source, which = "", f"{table}.{'number' if by_number else 'id'} {ids}"
    else:
        source, which = f" FROM unnest({arrays}) AS new ({', '.join(differing)})", f"{table}.id = new.id"
        if by_number:
            source, which = f"{source} JOIN task_spec ON task_spec.id = new.id", f"{table}.number = task_spec.number"
    # Only names of columns and tables are put in here.
    return Statement(
        f"UPDATE {table} SET {changes}{source} WHERE {which} AND {table}.revision = {values['revision']} - {moved}"  # noqa: S608
    )


def to_array(values: Iterable[Any]) -> str:
    """An array as PostgreSQL reads it."""
    return "{" + ",".join(map(_to_element, values)) + "}"


def _to_element(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "t" if value else "f"
        case datetime():
            return f'"{value.isoformat()}"'
        case str():
            return value if _PLAIN.fullmatch(value) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case _:
            return str(value)
