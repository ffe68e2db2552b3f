"""Rows as SQL sees them: tables, columns, types and row readers, all from the declarations in `rows.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from pointsman.store.law import RuleRow, StateRow
from pointsman.store.rows import (
    Account,
    ApiKey,
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
    TaskKey,
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
    if row_type is TaskKey:
        computed = {"started": "task.started_at IS NOT NULL", "plain": _plain_task()}
    names = row_type.__struct_fields__[: len(row_type.__struct_fields__) - leave_out]
    return ", ".join(f"{computed[name]} AS {name}" if name in computed else f"{table}.{name}" for name in names)


def _plain_task() -> str:
    """That a task has its default wherever tasks that move in bulk must be equal. A new column is compared, too."""
    ignored = TaskKey.MAY_DIFFER | set(TaskKey.__struct_fields__)
    defaults = {
        field.name: field.default for field in fields(Task) if field.default is not NODEFAULT and field.name not in ignored
    }
    return " AND ".join(_equals(f"task.{name}", default) for name, default in defaults.items())


def _equals(column: str, value: object) -> str:
    """A comparison with a constant, in a form that both databases understand."""
    match value:
        case None:
            return f"{column} IS NULL"
        case bool():
            return column if value else f"NOT {column}"
        case str():
            return f"{column} = '{value}'"
        case _:
            return f"{column} = {value}"


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
TASK_CONDITIONS = {name: f"task.{name}" for name in ("state", "phase", "outcome", "name")} | {"lifecycle": "run.lifecycle"}
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


SELECT_LISTS = {table: select_list(row_type) for table, row_type in ROW_TYPES.items()} | {
    "task_in_brief": select_list(Task, leave_out=2),
    "task_to_claim": select_list(Task, leave_out=1),
    "task_key": select_list(TaskKey, leave_out=3),
    "task_key_to_claim": select_list(TaskKey),
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
