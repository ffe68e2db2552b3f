"""Rows to one parameter of JSON, and money back without the zeros that PostgreSQL fills it up with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from pointsman.store.rows import Attempt, Entity

Value = TypeVar("Value")


class UsdLoader(Loader):
    """numeric(14, 6) comes as 1.500000 and is the amount 1.5, as it was stored."""

    def load(self, data: Buffer) -> Decimal:
        text = bytes(data).decode()
        return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


def adapt(connection: Connection[Any]) -> None:
    connection.adapters.register_loader("numeric", UsdLoader)


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


def in_sum(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Several notes of one attempt as one: costs add up, and what was said last holds."""
    noted: dict[tuple[str, int], Attempt] = {}
    for attempt in attempts:
        key = (attempt.task_id, attempt.epoch)
        if before := noted.get(key):
            noted[key] = replace(
                attempt,
                cost_usd=before.cost_usd + attempt.cost_usd,
                exit_code=before.exit_code if attempt.exit_code is None else attempt.exit_code,
                session_id=attempt.session_id or before.session_id,
                log_path=attempt.log_path or before.log_path,
            )
        else:
            noted[key] = attempt
    return list(noted.values())
