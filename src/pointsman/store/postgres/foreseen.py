"""Questions that a transaction will probably be asked, written down before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from pointsman.store.postgres.session import Question
from pointsman.store.postgres.statements import Statement

NOW = datetime.max.replace(tzinfo=UTC)
"""Stands for the time of a transaction that has not begun."""


class Recorder:
    """Stands for a session, and notes what it is asked."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def ask(self, statement: Statement, values: Mapping[str, Any], row_type: type[Struct] | None = None) -> list[Any]:
        self.questions.append((statement, values, row_type))
        return []


def put_instant(questions: Sequence[Question], instant: datetime | str) -> list[Question]:
    """The same questions with the time of the transaction."""
    return [
        (statement, {name: instant if value is NOW else value for name, value in values.items()}, row_type)
        for statement, values, row_type in questions
    ]
