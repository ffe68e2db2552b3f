"""A turn that shares its runs is sent in fewer statements than it asks questions: each update would cost a trigger.

    asked   BEGIN   start   runs   worker   ends   what it holds   claim
    sent    BEGIN   └─── OPEN ──┘  worker   └──────── turn ───────────┘

The worker is locked before the statement that counts its tasks. The law sees those that end and those that begin together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pointsman.store.postgres.queries import NO_WAITER, SHARED, START_COLUMNS
from pointsman.store.postgres.session import Question
from pointsman.store.postgres.statements import Statement
from pointsman.store.postgres.values import reader_of
from pointsman.store.rows import BegunTask, EndedTask, Run

LOCK_RUNS, LOCK_WORKERS, COUNT_HELD, END = (
    SHARED[name] for name in ("lock_runs", "lock_workers", "count_held", "end_plain_tasks")
)
CLAIMS = SHARED["begin_plain_tasks"], SHARED["begin_plain_tasks_of_run"]
# Before anything is locked.
START = Statement(f"SELECT {', '.join(START_COLUMNS)} WHERE 1 / ({NO_WAITER})::integer = 1")
OPEN = Statement(
    LOCK_RUNS.source.replace("SELECT ", f"SELECT {', '.join(START_COLUMNS)}, ", 1).replace(
        " WHERE ", f" WHERE (SELECT 1 / ({NO_WAITER})::integer) = 1 AND ", 1
    )
)
STARTED, ENDED, BEGUN, LOCKED = (
    len(START_COLUMNS),
    *(len(row_type.__struct_fields__) for row_type in (EndedTask, BegunTask, Run)),
)
MOST_TOGETHER = 20
"""A claim of more tasks is a statement of its own. It locks in vain what others have begun since it began, and they wait when
they end it. So that statement should be short, and a large one gains little from being sent with the ends."""
_PARAMETER = re.compile(r"(?<!:):(\w+)")


class Turn(NamedTuple):
    """The questions of a turn, and what is sent instead of them."""

    asked: Mapping[Statement, Question]
    """In their order."""
    sent: Sequence[Question]

    def deal(self, answers: Sequence[list[Any]]) -> tuple[Sequence[Any], list[list[Any]]] | None:
        """What START says, and the answer to each question; None if none of the runs is there."""
        opened, workers, turned = answers
        if not opened:
            return None
        claim, values, _ = list(self.asked.values())[-1]
        read_run, read_ended, read_begun = reader_of(Run, LOCKED), reader_of(EndedTask, ENDED), reader_of(BegunTask, BEGUN)
        ended = [read_ended(row[1 : ENDED + 1]) for row in turned if row[1] is not None]
        held = turned[0][0] - sum(task.worker_id == values["worker_id"] for task in ended)
        dealt: dict[Statement, list[Any]] = {
            LOCK_RUNS: [read_run(row[STARTED:]) for row in opened] if LOCK_RUNS in self.asked else [],
            LOCK_WORKERS: workers,
            END: ended,
            COUNT_HELD: [(values["worker_id"], held)],
            claim: [read_begun(row[ENDED + 1 :]) for row in turned if row[ENDED + 1] is not None],
        }
        return opened[0][:STARTED], [dealt[statement] for statement in self.asked]


def pack(questions: Sequence[Question]) -> Turn | None:
    """The turn that asks these questions, if it is a usual one and not too large."""
    asked = {question[0]: question for question in questions}
    claim, values, _ = questions[-1]
    is_usual = len(asked) == len(questions) and {LOCK_WORKERS, COUNT_HELD} <= asked.keys() and claim in CLAIMS
    if not is_usual or values["limit"] > MOST_TOGETHER:
        return None
    values = {**values, **asked[COUNT_HELD][1]}
    if END in asked:
        values |= {f"end_{name}": value for name, value in asked[END][1].items()}
    opening = (OPEN, asked[LOCK_RUNS][1], None) if LOCK_RUNS in asked else (START, {}, None)
    return Turn(asked, (opening, asked[LOCK_WORKERS], (_turn(claim, ends=END in asked), values, None)))


@cache
def _turn(claim: Statement, *, ends: bool) -> Statement:
    """Ends tasks, and begins others: how many the worker held before, in the first row; the ended ones; the begun ones.

    UNION ALL executes them in this order. So a transaction that has locked tasks to begin them does not wait for those to end.
    """
    ended, begun = ", ".join(["NULL"] * ENDED), ", ".join(["NULL"] * BEGUN)
    parts, source = [f"begun AS ({claim.source})"], ""
    if ends:
        parts.insert(0, "ended AS (" + _PARAMETER.sub(r":end_\1", END.source) + ")")
        ended, source = "ended.*", " FROM (VALUES (0)) AS one LEFT JOIN ended ON true"
    # Only texts of queries are put in here.
    return Statement(
        f"WITH {', '.join(parts)} "  # noqa: S608
        f"SELECT coalesce((SELECT count FROM ({COUNT_HELD.source}) AS held), 0), {ended}, {begun}{source} "
        f"UNION ALL SELECT NULL, {', '.join(['NULL'] * ENDED)}, begun.* FROM begun"
    )
