"""Rows to parameters, and money back without the zeros that PostgreSQL fills it up with."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct
from psycopg import Connection, Cursor
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.numeric import NumericBinaryLoader

from pointsman.store.rows import Entity

Row = TypeVar("Row", bound=Struct)
MOST_KNOWN_AMOUNTS = 4096
_TYPES: dict[Any, str] = {
    str: "text",
    int: "integer",
    bool: "boolean",
    float: "double precision",
    datetime: "timestamptz",
    Decimal: "numeric",
}
_PLAIN = re.compile(r"(?!null$)[0-9A-Za-z_]+", re.IGNORECASE)
"""Text that may stand in an array as it is."""


class UsdLoader(Loader):
    """numeric(14, 6) comes as 1.500000 and is the amount 1.5, as it was stored."""

    def load(self, data: Buffer) -> Decimal:
        return _to_usd(bytes(data))


@lru_cache(maxsize=4096)
def _to_usd(data: bytes) -> Decimal:
    text = data.decode()
    return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


class UsdBinaryLoader(NumericBinaryLoader):
    """The same for rows, which come in binary."""

    _known: ClassVar[dict[bytes, Decimal]] = {}

    def load(self, data: Buffer) -> Decimal:
        key = bytes(data)
        amount = self._known.get(key)
        if amount is None:
            amount = _to_usd(str(super().load(data)).encode())
            if len(self._known) < MOST_KNOWN_AMOUNTS:
                self._known[key] = amount
        return amount


def adapt(connection: Connection[Any]) -> None:
    connection.adapters.register_loader("numeric", UsdLoader)
    connection.adapters.register_loader("numeric", UsdBinaryLoader)


_MAKERS: dict[tuple[str, int], Callable[[Sequence[Any]], Any]] = {}


def make_row(row_type: type[Row], query: str) -> Callable[[Cursor[Any]], Callable[[Sequence[Any]], Row]]:
    """Rows from what a query returns; columns that a newer version has added are left out."""

    def prepare(cursor: Cursor[Any]) -> Callable[[Sequence[Any]], Row]:
        # `cursor.description` would make an object of every column, every time.
        result = cursor.pgresult
        columns = result.nfields if result else 0
        maker = _MAKERS.get((query, columns))
        if maker is None:
            names = [(result.fname(index) or b"").decode() for index in range(columns)] if result else []
            known = [(index, name) for index, name in enumerate(names) if name in row_type.__struct_fields__]
            # Written out as one expression, this is twice as quick as a dictionary; only names of columns go into it.
            source = f"lambda row: row_type({', '.join(f'{name}=row[{index}]' for index, name in known)})"
            maker = _MAKERS[query, columns] = eval(source, {"row_type": row_type})  # noqa: S307
        return maker

    return prepare


def to_json(rows: Collection[Any]) -> str:
    """A whole batch: money as text, instants as ISO 8601, what is not set left out."""
    return msgspec.json.encode(list(rows)).decode()


def in_turns(rows: Sequence[Entity]) -> Iterable[Sequence[Entity]]:
    """One statement changes a row once: whoever moves twice in a batch does so in two statements."""
    if len({row.id for row in rows}) == len(rows):
        return (rows,)
    turns: list[dict[str, Entity]] = []
    for row in rows:
        turn = next((turn for turn in turns if row.id not in turn), None)
        if turn is None:
            turns.append(turn := {})
        turn[row.id] = row
    return [list(turn.values()) for turn in turns]


def update_of(rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> tuple[bytes, dict[str, Any]]:
    """The statement that stores these columns of rows whose revision was `moved` less, and its parameters.

    What all rows have in common is said once, which is nearly everything: rows of a batch have mostly made the same move.
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
def _write_update(row_type: type[Entity], columns: tuple[str, ...], differing: tuple[str, ...], moved: int) -> bytes:
    types = _find_types(row_type)
    table = row_type.__name__.lower()
    values = {name: f"new.{name}" if name in differing else f"%({name})s::{types[name]}" for name in (*columns, "revision")}
    changes = ", ".join(f"{column} = {values[column]}" for column in columns)
    arrays = ", ".join(f"%({name})s::{types[name]}[]" for name in differing)
    if differing == ("id",):
        source, which = "", f"{table}.id = ANY({arrays})"
    else:
        source, which = f" FROM unnest({arrays}) AS new ({', '.join(differing)})", f"{table}.id = new.id"
    # Only names of columns and tables are put in here.
    statement = f"UPDATE {table} SET {changes}{source} WHERE {which} AND {table}.revision = {values['revision']} - {moved}"  # noqa: S608
    return statement.encode()


@lru_cache
def _find_types(row_type: type[Entity]) -> dict[str, str]:
    return {
        name: _TYPES[candidate]
        for name, annotation in get_type_hints(row_type).items()
        for candidate in (annotation, *get_args(annotation))
        if candidate in _TYPES
    }


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
