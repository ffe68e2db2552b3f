"""Rows as SQL sees them: tables, columns, types and row readers, all from the declarations in `rows.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from pointsman.store.law import RuleRow, StateRow
from pointsman.store.rows import (
    Account,
    ApiKey,
    BegunTask,
    Breaker,
    Dependency,
    DutyFailure,
    Lane,
    ListedNotice,
    MachineRow,
    Notice,
    OutboxCursor,
    OutboxEntry,
    Quota,
    Run,
    RunTag,
    Seal,
    StoredKey,
    StoredResponse,
    Task,
    Template,
    Tenant,
    Timer,
    Tombstone,
    Transition,
    Worker,
)

Row = TypeVar("Row", bound=Struct)
RowReader = Callable[[Sequence[Any]], Row]


def table_of(row_type: type[Struct]) -> str:
    return getattr(row_type, "TABLE", row_type.__name__.lower())


def moving_table_of(row_type: type[Struct]) -> str:
    """The table whose rows move."""
    return getattr(row_type, "MOVING_TABLE", table_of(row_type))


@cache
def types_of(row_type: type[Struct]) -> dict[str, type]:
    """The fields of a row in their order, each with the type of its values, without None."""
    hints = get_type_hints(row_type)
    return {
        name: next(candidate for candidate in (hints[name], *get_args(hints[name])) if isinstance(candidate, type))
        for name in row_type.__struct_fields__
    }


def select_list(row_type: type[Struct], leave_out: int = 0) -> str:
    """The columns of a row in the order of its fields, perhaps without the last ones."""
    table = table_of(row_type)
    computed = getattr(row_type, "COMPUTED", {})
    names = row_type.__struct_fields__[: len(row_type.__struct_fields__) - leave_out]
    return ", ".join(f"{computed[name]} AS {name}" if name in computed else f"{table}.{name}" for name in names)


ROW_TYPES = {
    table_of(row_type): row_type
    for row_type in (
        Run,
        RunTag,
        Task,
        Worker,
        Breaker,
        Tenant,
        Account,
        Quota,
        StoredKey,
        Dependency,
        Lane,
        Timer,
        Transition,
        Seal,
        Notice,
        DutyFailure,
        OutboxEntry,
        OutboxCursor,
        StoredResponse,
        Template,
        Tombstone,
        MachineRow,
        StateRow,
        RuleRow,
    )
}
RUN_CONDITIONS = {name: f"run.{name}" for name in ("state", "phase", "outcome", "lifecycle", "name")}
TASK_CONDITIONS = {name: f"task.{name}" for name in ("state", "phase", "outcome", "name")} | {
    "lifecycle": "run.lifecycle",
    "flow": "run.name",
}
WORKER_CONDITIONS = {name: f"worker.{name}" for name in ("state", "phase", "name")}
NOTICE_CONDITIONS = {"subject": "notice.subject"}
"""By parameter of a list: the column that must have its value, if one is given."""


def _write_equalities(columns: Mapping[str, str]) -> list[str]:
    """Conditions that hold where their parameters are null."""
    return [f"(CAST(:{name} AS TEXT) IS NULL OR {column} = CAST(:{name} AS TEXT))" for name, column in columns.items()]


def _write_conditions(columns: Mapping[str, str], searched: str) -> str:
    """The same; `tag` is one of the run, `text` is searched in some columns."""
    equal = _write_equalities(columns)
    texts = [f"coalesce({searched}.{name}, '')" for name in ("id", "name", "reason", "error")]
    found = [f"replace({text}, CAST(:text AS TEXT), '') <> {text}" for text in texts]
    tagged = (
        "EXISTS (SELECT 1 FROM run_tag WHERE run_tag.tenant = run.tenant AND run_tag.tag = CAST(:tag AS TEXT) "
        "AND run_tag.created_at = run.created_at AND run_tag.run_id = run.id)"
    )
    equal.append(f"(CAST(:tag AS TEXT) IS NULL OR {tagged})")
    return " AND ".join([*equal, f"(CAST(:text AS TEXT) IS NULL OR {' OR '.join(found)})"])


IS_PLAIN_TO_BEGIN = (
    "task.epoch = 0 AND task.retry_count = 0 AND spec.budget_usd IS NULL AND task.session_id IS NULL AND task.question IS NULL "
    "AND task.answer IS NULL AND task.comment IS NULL AND task.cancel_requested_at IS NULL AND NOT task.keep_session "
    "AND NOT task.has_checks AND NOT task.review_wanted AND (SELECT tool IS NULL FROM lane WHERE lane.id = task.lane_id)"
)
"""That a task was never tried, and that nothing is asked for that a claim would have to decide about or tell its worker."""

SELECT_LISTS = {table: select_list(row_type) for table, row_type in ROW_TYPES.items()} | {
    "task_in_brief": select_list(Task, leave_out=2),
    "task_to_claim": select_list(Task, leave_out=1),
    "begun_task": ", ".join(f"{'spec' if name in Task.SPEC else 'task'}.{name}" for name in BegunTask.__struct_fields__[:-3]),
    "spec_columns": ", ".join(Task.SPEC),
    "state_columns": ", ".join(name for name in Task.__struct_fields__ if name not in Task.SPEC),
    "is_plain_to_begin": IS_PLAIN_TO_BEGIN,
    "api_key_in_brief": select_list(ApiKey),
    "run_conditions": _write_conditions(RUN_CONDITIONS, "run"),
    "task_conditions": _write_conditions(TASK_CONDITIONS, "task"),
    "worker_conditions": " AND ".join(_write_equalities(WORKER_CONDITIONS)),
    "notice_conditions": " AND ".join(_write_equalities(NOTICE_CONDITIONS)),
    "listed_notice": select_list(ListedNotice),
}
"""By the names that queries use: `{task_in_brief}` is a task without payload and output."""


def compile_reader(
    row_type: type[Row], count: int, conversions: Mapping[type, str], names: Mapping[str, Any]
) -> RowReader[Row]:
    """A function that makes a row of the first `count` fields from a tuple of their values.

    It is one expression, which is three times as fast as a loop. Only names of fields and `conversions` go into it.
    """
    values = [
        f"{name}={conversions.get(kind, '{}').format(f'row[{index}]')}"
        for index, (name, kind) in enumerate(list(types_of(row_type).items())[:count])
    ]
    compiled: RowReader[Row] = eval(f"lambda row: row_type({', '.join(values)})", {"row_type": row_type, **names})  # noqa: S307
    return compiled


def to_json(values: Collection[Any]) -> str:
    """A batch of rows or values: money as text, instants as ISO 8601, unset fields left out."""
    return msgspec.json.encode(list(values)).decode()
