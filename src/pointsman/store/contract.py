"""What a store can do: one method for each query, the same on every database.

    Store ── begin() ──▶ Transaction ── commit() | rollback()
      │
      └──── read() ────▶ Reader

A method runs the query of its name. A store implements the primitives (`_all`, `_rows`, `_write` …) and the methods in which
the databases differ. Nothing here decides anything.

A `Transaction` belongs to the one writer of its store; a store may have many readers. A transaction that changes anything in a
run first locks the row of the run; turns of workers may share it (`Foresee.shares`). Runs are locked in the order of their ids,
workers after runs, breakers after workers. What is read below a locked run stays true. An allocation cannot keep this order, so
it passes over what is locked (`try_lock_…`).
Quotas are locked before all others.
Where that does not help (a claim that waits for a run), one of two transactions that wait for each other is ended by the
database, and the engine tries again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from enum import IntFlag
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from pointsman.errors import Conflict, Problem, RequestInvalid
from pointsman.kernel.machine import Kind, Machine
from pointsman.store.clock import NEVER, DatabaseTime
from pointsman.store.columns import (
    NOTICE_CONDITIONS,
    ROW_TYPES,
    RUN_CONDITIONS,
    TASK_CONDITIONS,
    WORKER_CONDITIONS,
    Row,
    moving_table_of,
    to_json,
)
from pointsman.store.law import RuleRow, StateRow, rule_rows, state_rows
from pointsman.store.rows import (
    Account,
    ApiKey,
    Attempt,
    AttemptTimes,
    BegunTask,
    Breaker,
    Contradiction,
    Dependency,
    DutyFailure,
    EndedTask,
    Entity,
    Lane,
    ListedNotice,
    MachineRow,
    Notice,
    OutboxCursor,
    OutboxEntry,
    OutboxScope,
    PlainMove,
    PlainReport,
    QueueFigures,
    Quota,
    Release,
    Result,
    Run,
    RunTag,
    Seal,
    Situation,
    StoredKey,
    StoredResponse,
    Subtasks,
    Task,
    Template,
    Tenant,
    Timer,
    Tombstone,
    Transition,
    TransitionTally,
    Use,
    WaitingTask,
    Worker,
    WorkerFigures,
)

FOREVER = datetime(9999, 12, 31, tzinfo=UTC)
ALL = 2**62
"""The limit of a list that is wanted as a whole."""
FIRST_ATTEMPT = '{{"worker_id":"{}","epoch":1}}'
"""What the audit trail says beside the first claim of a task."""
MOST_DIGITS = 19
"""A position has fewer, so that it fits into 64 bits."""


class Wakeup(IntFlag):
    """What a commit tells other processes, so that they need not poll."""

    NOTHING = 0
    TASKS = 1
    """A task may be claimable."""
    TIMERS = 2
    """A timer was set."""
    EVENTS = 4
    """An entity has moved."""
    WORKERS = 8
    """An attempt was canceled, paused or lost, or a worker was told to do something."""
    OUTBOX = 16
    """A notification is to be delivered."""
    KEYS = 32
    """An API key was revoked or has a new secret."""


class Query(NamedTuple):
    """One of several queries that `_together` runs."""

    name: str
    values: dict[str, Any]
    row_type: type[Struct] | None = None
    """Of the rows that it returns; None for tuples."""


def _clip(instant: datetime) -> datetime:
    """The same in UTC, and no earlier or later than any row. PostgreSQL takes no time zone that is more than 16 hours away."""
    return min(max(instant, NEVER), FOREVER).astimezone(UTC)


def read_position(after: object) -> int:
    """The position after which a reader of the stream continues; None is the beginning."""
    if after is None:
        return 0
    if not (isinstance(after, str) and after.isascii() and after.isdigit() and len(after) < MOST_DIGITS):
        message = f"{str(after)[:50]!a} is not a position of the event stream. Pass a position that was read from it."
        raise RequestInvalid([Problem("after", message)])
    return int(after)


class Reader(ABC):
    """Queries that change nothing. A query for a tenant sees no row of another tenant."""

    @abstractmethod
    def time(self) -> DatabaseTime:
        """The time of the database; within a transaction always the same."""

    def now(self) -> datetime:
        return self.time().now

    def find_run(self, tenant: str, run_id: str) -> Run | None:
        return self._one(Run, "find_run", tenant=tenant, id=run_id)

    def find_task(self, tenant: str, task_id: str) -> Task | None:
        return self._one(Task, "find_task", tenant=tenant, id=task_id)

    def find_worker(self, tenant: str, worker_id: str) -> Worker | None:
        """A worker that serves this tenant."""
        worker = self._one(Worker, "find_worker", tenant=tenant, id=worker_id)
        return worker and worker.seen_by(tenant)

    def find_breaker(self, tenant: str, tool: str) -> Breaker | None:
        return self._one(Breaker, "find_breaker", tenant=tenant, tool=tool)

    def find_account(self, tenant: str) -> Account | None:
        """What a tenant may spend and has spent; None if neither is known."""
        return self._one(Account, "find_account", tenant=tenant)

    def find_quota(self, tenant: str) -> Quota | None:
        """What a tenant may have unfinished at once; None for no limit."""
        return self._one(Quota, "find_quota", tenant=tenant)

    def measure_use(self, tenant: str) -> Use:
        """What a tenant has unfinished. Reads its unfinished runs and tasks, and no other ones."""
        ((runs, tasks, payload_bytes),) = self._rows("measure_use", tenant=tenant)
        return Use(runs=runs, tasks=tasks, payload_bytes=payload_bytes)

    def find_tenant(self, tenant: str) -> Tenant | None:
        return self._one(Tenant, "find_tenant", id=tenant)

    def list_tenants(self) -> list[Tenant]:
        return self._all(Tenant, "list_tenants")

    def find_key(self, tenant: str, key_id: str) -> ApiKey | None:
        return self._one(ApiKey, "find_key", tenant=tenant, id=key_id)

    def find_key_by_name(self, tenant: str, name: str) -> ApiKey | None:
        """One that is not revoked: there is at most one of a name."""
        return self._one(ApiKey, "find_key_by_name", tenant=tenant, name=name)

    def find_stored_key(self, key_id: str) -> StoredKey | None:
        """A key of any tenant with the hashes of its secrets, for authentication alone."""
        return self._one(StoredKey, "find_stored_key", id=key_id)

    def list_keys(self, tenant: str) -> list[ApiKey]:
        """The keys of a tenant by name, with those that are revoked or have expired."""
        return self._all(ApiKey, "list_keys", tenant=tenant)

    def list_all_keys(self) -> list[ApiKey]:
        """The same of all tenants."""
        return self._all(ApiKey, "list_all_keys")

    def find_template(self, tenant: str, name: str) -> Template | None:
        return self._one(Template, "find_template", tenant=tenant, name=name)

    def list_templates(self, tenant: str) -> list[Template]:
        return self._all(Template, "list_templates", tenant=tenant)

    def find_tombstone(self, tenant: str, task_id: str) -> Tombstone | None:
        return self._one(Tombstone, "find_tombstone", tenant=tenant, task_id=task_id)

    def list_runs(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        **conditions: str | None,
    ) -> list[Run]:
        """Newest first, behind the run `after`: those that fulfill RUN_CONDITIONS, have the `tag` and contain `text`."""
        wanted = {**dict.fromkeys(RUN_CONDITIONS), "tag": None, "text": None, **conditions}
        last = None if after is None else self.find_run(tenant, after)
        if after is not None and last is None:
            return []
        query = "list_runs"
        if wanted["tag"] is not None:
            query = "list_runs_of_tag"
        elif wanted["name"] is not None:
            query = "list_runs_of_name"
        elif self._excludes_success(Kind.RUN, wanted):
            query = "list_unfinished_runs"
        between = self._between(created_after, created_before, last)
        return self._all(Run, query, tenant=tenant, limit=limit, **between, **wanted)

    def search_tasks(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        **conditions: str | None,
    ) -> list[Task]:
        """Tasks of all runs without payloads and without those that were deleted: of the newest run first, and newest first.

        Both times and the `tag` are those of the run; `conditions` are TASK_CONDITIONS, `tag` and `text`.
        """
        wanted = {**dict.fromkeys(TASK_CONDITIONS), "tag": None, "text": None, **conditions}
        last = None if after is None else self.find_task(tenant, after)
        if after is not None and last is None:
            return []
        query = "search_unfinished_tasks" if self._excludes_success(Kind.TASK, wanted) else "search_tasks"
        between = self._between(created_after, created_before, self.find_run(tenant, last.run_id) if last else None)
        between["before_task"] = last.id if last else ""
        return self._all(Task, query, tenant=tenant, limit=limit, **between, **wanted)

    def _between(self, since: datetime | None, before: datetime | None, last: Run | None) -> dict[str, Any]:
        """The runs created from `since` on and before `before`, behind the last one of the page before."""
        end, end_id = _clip(before or FOREVER), ""
        if last and last.created_at < end:
            end, end_id = last.created_at, last.id
        return {"since": self._from_instant(_clip(since or NEVER)), "before": self._from_instant(end), "before_id": end_id}

    def _excludes_success(self, kind: Kind, wanted: Mapping[str, str | None]) -> bool:
        """Whether nothing that has succeeded can be among what is wanted: then an index has the rest."""
        phase, outcome, state = wanted["phase"], wanted["outcome"], wanted["state"]
        if phase not in (None, "done") or outcome not in (None, "success"):
            return True
        return state is not None and not self._value("may_have_succeeded", kind=str(kind), state=state)

    def list_tasks(self, tenant: str, run_id: str) -> list[Task]:
        return self._all(Task, "list_tasks", tenant=tenant, run_id=run_id)

    def list_tasks_in_brief(
        self, tenant: str, run_id: str, *, after: tuple[int, str] | None = None, limit: int = ALL
    ) -> list[Task]:
        """The tasks of a run, without their payloads, behind a position and an id."""
        position, task_id = after or (-1, "")
        values = {"tenant": tenant, "run_id": run_id, "after": position, "after_id": task_id, "limit": limit}
        return self._all(Task, "list_tasks_in_brief", **values)

    def count_tasks(self, tenant: str, run_ids: Collection[str]) -> list[tuple[str, str, str | None, int, datetime]]:
        """(run, phase, outcome, count, when the last of them moved) of the tasks of these runs."""
        rows = self._rows("count_tasks", tenant=tenant, run_ids=self._list(run_ids))
        return [(*counted, self._to_instant(moved)) for *counted, moved in rows]

    def find_runs(self, tenant: str, run_ids: Collection[str]) -> list[Run]:
        return self._all(Run, "find_runs", tenant=tenant, run_ids=self._list(run_ids))

    def match_runs(self, tenant: str, part: str, limit: int) -> list[Run]:
        """Runs whose id begins or ends with `part`, newest first; the prefix that tells its kind may be left out."""
        return self._all(Run, "match_runs", tenant=tenant, part=part, limit=limit)

    def list_held_tasks(self, tenant: str) -> list[Task]:
        """Every task that an attempt holds, in all runs, lost attempts included."""
        return self._all(Task, "list_held_tasks", tenant=tenant)

    def list_waiting_tasks(self, tenant: str, run_id: str | None, limit: int) -> list[WaitingTask]:
        """Unfinished tasks of unfinished runs, or of one of them, that wait for no other task.

        Of those that wait for the same reason only the first is listed, with how many they are; the oldest first.
        """
        return self._all(WaitingTask, "list_waiting_tasks", tenant=tenant, run_id=run_id, limit=limit)

    def list_machines(self) -> list[MachineRow]:
        return self._all(MachineRow, "list_machines")

    def list_lanes(self) -> list[Lane]:
        return self._all(Lane, "list_lanes")

    def list_workers(
        self, tenant: str, *, after: str | None = None, limit: int = ALL, **conditions: str | None
    ) -> list[Worker]:
        """The workers that serve this tenant, of any owner, behind an id: those that fulfill WORKER_CONDITIONS."""
        wanted = {**dict.fromkeys(WORKER_CONDITIONS), **conditions}
        found = self._all(Worker, "list_workers", tenant=tenant, after=after or "", limit=limit, **wanted)
        return [worker.seen_by(tenant) for worker in found]

    def list_breakers(self, tenant: str) -> list[Breaker]:
        return self._all(Breaker, "list_breakers", tenant=tenant)

    def list_results(self, tenant: str, run_id: str, names: Collection[str]) -> list[Result]:
        """The results of these tasks of a run, and of their subtasks."""
        return self._all(Result, "list_results", tenant=tenant, run_id=run_id, names=self._list(names))

    def list_attempt_times(self, tenant: str, run_id: str) -> list[AttemptTimes]:
        """Of the attempts of a run that have ended."""
        return self._all(AttemptTimes, "list_attempt_times", tenant=tenant, run_id=run_id)

    def list_attempts(self, tenant: str, task_id: str, *, after: int | None = None, limit: int = ALL) -> list[Attempt]:
        """Behind an epoch."""
        return self._all(Attempt, "list_attempts", tenant=tenant, task_id=task_id, after=after or 0, limit=limit)

    def list_dependencies(self, tenant: str, run_id: str) -> list[Dependency]:
        return self._all(Dependency, "list_dependencies", tenant=tenant, run_id=run_id)

    def list_timers(self, tenant: str) -> list[Timer]:
        return self._all(Timer, "list_timers", tenant=tenant)

    def list_history(self, tenant: str, entity_id: str, *, after: int | None = None, limit: int = ALL) -> list[Transition]:
        """Behind a revision."""
        behind = -1 if after is None else after
        return self._all(Transition, "list_history", tenant=tenant, entity_id=entity_id, after=behind, limit=limit)

    def list_transitions(self, tenant: str, *, after: str | None, limit: int, run_id: str | None) -> list[Transition]:
        """The stream after a position, in its one order, up to where it is settled: no running transaction can add to that."""
        values: dict[str, Any] = {"tenant": tenant, "limit": limit, "after": read_position(after), "end": self._stream_end()}
        if run_id is None:
            return self._all(Transition, "list_transitions", **values)
        return self._all(Transition, "list_run_transitions", run_id=run_id, **values)

    def list_all_transitions(self, *, after: str | None, limit: int) -> list[Transition]:
        """The same stream with the moves of all tenants."""
        return self._all(Transition, "list_all_transitions", limit=limit, after=read_position(after), end=self._stream_end())

    @abstractmethod
    def is_held_back(self) -> bool:
        """Whether committed moves are not shown yet, because a transaction that still runs may add earlier ones."""

    def list_duty_failures(self, since: datetime) -> list[DutyFailure]:
        """Duties of any process that have failed since then, the latest first."""
        return self._all(DutyFailure, "list_duty_failures", since=self._from_instant(since))

    def list_notices(
        self,
        tenant: str,
        *,
        after: int | None = None,
        limit: int,
        about: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        **conditions: str | None,
    ) -> list[ListedNotice]:
        """Newest first, before a position: those that fulfill NOTICE_CONDITIONS; those about a run are also about its tasks."""
        between = {
            "since": self._from_instant(_clip(created_after or NEVER)),
            "before": self._from_instant(_clip(created_before or FOREVER)),
        }
        wanted = {"about": about, **dict.fromkeys(NOTICE_CONDITIONS), **conditions}
        before = ALL if after is None else after
        return self._all(ListedNotice, "list_notices", tenant=tenant, after=before, limit=limit, **between, **wanted)

    def list_outbox_cursors(self) -> list[OutboxCursor]:
        return self._all(OutboxCursor, "list_outbox_cursors")

    def list_noteworthy_transitions(self, after: int, end: int, limit: int) -> list[Transition]:
        """Ends of runs, tasks that may wait for a person, breakers that may have opened: of all tenants, in their order."""
        return self._all(Transition, "list_noteworthy_transitions", after=after, end=end, limit=limit)

    def list_outbox(
        self, tenant: str, *, after: tuple[datetime, str] | None = None, limit: int, delivery: str | None = None
    ) -> list[OutboxEntry]:
        """Newest first, behind a time and an id: all, or those that are `due`, `dead` or `delivered`."""
        created_at, entry_id = after or (FOREVER, "")
        values = {"after": self._from_instant(_clip(created_at)), "after_id": entry_id, "delivery": delivery or "any"}
        return self._all(OutboxEntry, "list_outbox", tenant=tenant, limit=limit, **values)

    def find_outbox(self, tenant: str, ids: Collection[str]) -> list[OutboxEntry]:
        return self._all(OutboxEntry, "find_outbox", tenant=tenant, ids=self._list(ids))

    def next_due_outbox(self, scope: OutboxScope) -> datetime | None:
        """When the next of these is to be tried."""
        due = self._value("next_due_outbox", **self._within(scope))
        return None if due is None else self._to_instant(due)

    def count_outbox(self, scope: OutboxScope) -> int:
        """How many of these are neither delivered nor dead."""
        return int(self._value("count_outbox", **self._within(scope)))

    def _within(self, scope: OutboxScope) -> dict[str, Any]:
        return {"targets": self._list(scope.targets), "flows_of": scope.flows_of, "commands_of": scope.commands_of}

    def last_position(self) -> str | None:
        """The present end of the stream: a reader that continues from here sees only new moves."""
        position: str | None = self._value("last_position", end=self._stream_end())
        return position

    def count_overstayed(self, now: datetime, limits: Sequence[tuple[int, str, float]]) -> list[tuple[str, str, str, datetime]]:
        """(kind, id, state, entered_at) of every entity that has been in a state for longer than its limit.

        A limit is a machine, one of its states and a number of seconds.
        """
        rows = self._rows("count_overstayed", now=self._from_instant(now), limits=to_json(limits))
        return [(kind, entity_id, state, self._to_instant(entered)) for kind, entity_id, state, entered in rows]

    def next_due(self) -> datetime | None:
        """When the next timer is due."""
        due = self._value("next_due")
        return None if due is None else self._to_instant(due)

    def next_silence(self, since: datetime = NEVER) -> datetime | None:
        """When the next lease of a worker expires, unless the worker sends a heartbeat before.

        Every worker counts as heard of at `since`.
        """
        silence = self._value("next_silence", since=self._from_instant(since))
        return None if silence is None else self._to_instant(silence)

    def list_stalled_runs(self) -> list[tuple[str, str]]:
        """(id, tenant) of every active run in which no task moves and no person is asked."""
        return self._rows("list_stalled_runs")

    def list_unended_runs(self) -> list[tuple[str, str, int, str, bool]]:
        """(id, tenant, machine, state, has_checks) of every run that has not ended although all of its tasks have succeeded."""
        return self._rows("list_unended_runs")

    def list_failed_tasks(self, limit: int) -> list[Task]:
        """Tasks of all tenants that failed for good in runs that can still go on, newest first."""
        return self._all(Task, "list_failed_tasks", limit=limit)

    def find_tool(self, lane_id: int) -> str | None:
        tool: str | None = self._value("find_tool", id=lane_id)
        return tool

    def list_tripped_breakers(self) -> list[Breaker]:
        """The breakers of all tenants whose circuit is not closed."""
        return self._all(Breaker, "list_tripped_breakers")

    def list_disagreements(self) -> list[tuple[str, str, str]]:
        """(kind, id, description) of every stored value that a recount does not confirm."""
        return self._rows("list_disagreements")

    def list_contradictions(self) -> list[Contradiction]:
        """Every task that has not succeeded although its run has, of all tenants."""
        return [Contradiction(*row) for row in self._rows("list_contradictions")]

    def assess_runs(self, run_ids: Collection[str]) -> list[Situation]:
        """What the machines of these runs need to know about their tasks."""
        return self._of(Situation, "assess_runs", run_ids)

    def last_seal(self) -> Seal | None:
        return self._one(Seal, "last_seal")

    def list_seals(self, after: int, limit: int) -> list[Seal]:
        """The seals of the audit trail after a position, in their order."""
        return self._all(Seal, "list_seals", after=after, limit=limit)

    def read_trail(self, after: int, end: int, limit: int) -> tuple[int, bytes] | None:
        """The last position, and one line of JSON for each transition of any tenant after a position; None without any."""
        ((last, text),) = self._rows("read_trail", after=after, end=end, limit=limit)
        return None if last is None else (last, text if isinstance(text, bytes) else text.encode())

    def list_broken_trails(self) -> list[tuple[str, str, str]]:
        """(kind, id, description) of every entity that its audit trail does not explain."""
        return self._rows("list_broken_trails")

    def list_states(self) -> list[StateRow]:
        return self._all(StateRow, "list_states")

    def list_rules(self) -> list[RuleRow]:
        return self._all(RuleRow, "list_rules")

    def measure_transitions(self, tenant: str) -> list[tuple[str, str | None, str, int, float]]:
        """(machine, from, to, count, mean seconds in the state left) of every move that was made."""
        return self._rows("measure_transitions", tenant=tenant)

    def count_claimable(self, tenant: str | None, most: int) -> int:
        """How many tasks of a tenant, or of all, wait for a worker; it counts no further than `most`."""
        if tenant is None:
            return int(self._value("count_claimable_of_all", most=most))
        return int(self._value("count_claimable", tenant=tenant, most=most))

    # Metrics, of all tenants.

    def tally_transitions(self, after: int, end: int) -> list[TransitionTally]:
        """The moves in a range of the stream; `end` must not be behind `last_position`."""
        return self._all(TransitionTally, "tally_transitions", after=after, end=end)

    def measure_queues(self) -> list[QueueFigures]:
        """The tenants that have tasks to claim."""
        return self._all(QueueFigures, "measure_queues")

    def measure_workers(self) -> list[WorkerFigures]:
        return self._all(WorkerFigures, "measure_workers")

    def list_all_breakers(self) -> list[Breaker]:
        return self._all(Breaker, "list_all_breakers")

    def list_accounts(self) -> list[Account]:
        return self._all(Account, "list_accounts")

    # The primitives: what a database does in its own way.

    @abstractmethod
    def _rows(self, query: str, **values: Any) -> list[Any]:
        """Run a query; its rows as tuples, if it returns any."""

    @abstractmethod
    def _all(self, row_type: type[Row], query: str, **values: Any) -> list[Row]:
        """Run a query that returns the fields of a row type in their order, perhaps without the last ones."""

    def _together(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Run several queries in their order, in one round trip if the database is a server; the rows of each.

        The error of the first that fails is raised; the caller rolls back.
        """
        return [
            self._rows(name, **values) if row_type is None else self._all(row_type, name, **values)
            for name, values, row_type in queries
        ]

    @abstractmethod
    def _stream_end(self) -> int:
        """The position up to which the stream is settled."""

    @staticmethod
    @abstractmethod
    def _list(values: Collection[Any]) -> str:
        """The parameter for `IN :list`."""

    @staticmethod
    @abstractmethod
    def _from_instant(instant: datetime) -> Any: ...

    @staticmethod
    @abstractmethod
    def _to_instant(value: Any) -> datetime: ...

    def _one(self, row_type: type[Row], query: str, **values: Any) -> Row | None:
        found = self._all(row_type, query, **values)
        return found[0] if found else None

    def _value(self, query: str, **values: Any) -> Any:
        return self._rows(query, **values)[0][0]

    def _column(self, query: str, **values: Any) -> list[str]:
        return [value for (value,) in self._rows(query, **values)]

    def _of(self, row_type: type[Row], query: str, ids: Collection[str]) -> list[Row]:
        """The rows for these ids; without any, the database is not asked."""
        return self._all(row_type, query, ids=self._list(ids)) if ids else []

    def _rows_of(self, query: str, ids: Collection[str]) -> list[Any]:
        return self._rows(query, ids=self._list(ids)) if ids else []

    def _column_of(self, query: str, ids: Collection[str]) -> list[str]:
        return [value for (value,) in self._rows_of(query, ids)]


class Transaction(Reader):
    """Everything that one commit reads and writes. Writing methods take whole batches, and do nothing for empty ones.

    A store may send a write that answers nothing together with the next statement. So its error, or the `Conflict` of `move` or
    `update`, may come from a later method, at the latest from `commit`, which then commits nothing.
    """

    has_quotas: bool
    """Whether any tenant had a quota when the transaction began: read with the clock, so it costs no statement."""
    shares_runs = False
    """Whether it goes on beside others in the same runs (`Foresee.shares`)."""
    _is_over = False
    _lanes: int
    """Read with the clock, too."""
    _time: DatabaseTime

    def commit(self, wakeup: Wakeup = Wakeup.NOTHING) -> None:
        """Make the changes durable, and send `wakeup` to every process that listens."""
        self._is_over = True
        self._end("COMMIT", wakeup)

    def rollback(self) -> None:
        """Undo everything; a transaction whose commit failed has been rolled back already."""
        if not self._is_over:
            self._is_over = True
            self._end("ROLLBACK", Wakeup.NOTHING)

    def time(self) -> DatabaseTime:
        return self._time

    def correct_clock(self, time: DatabaseTime) -> None:
        """Store the correction of `time`, and go by it. Raises `Conflict` when another transaction has corrected the clock."""
        values = {"revision": time.revision, "offset_seconds": time.offset_seconds}
        if not self._rows("correct_clock", **values, corrected_at=self._from_instant(time.corrected_at)):
            raise Conflict("Another process has corrected the clock first.")
        self._time = time

    def limit_idle(self, seconds: float) -> None:
        """From now on, when this process is stopped within a transaction, end that transaction after so many seconds.

        Not on SQLite: there, only the process itself can release its locks.
        """

    @abstractmethod
    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        """Store these columns of rows of one kind that have made one move, so that their revision is one higher.

        Raises `Conflict` when another transaction has moved one of the rows since it was read; so does `update`.
        """

    @abstractmethod
    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        """Store these columns of rows of one kind that have not moved."""

    def insert_machine(self, machine: Machine, *, fingerprint: str, definition: str) -> MachineRow:
        row = MachineRow(
            id=self._next_machine_id(),
            name=machine.name,
            version=machine.version,
            kind=machine.kind.value,
            fingerprint=fingerprint,
            lifecycle=machine.lifecycle,
            definition=definition,
        )
        self._write("insert_states", state_rows(row.id, machine))
        self._write("insert_rules", rule_rows(row.id, machine))
        self._write("insert_machine", [row])
        return row

    def list_unguarded_machines(self) -> list[MachineRow]:
        """Machines of runs without any move for which the database checks their tasks."""
        return self._all(MachineRow, "list_unguarded_machines")

    def guard_rules(self, machine_id: int, machine: Machine) -> None:
        """Let the database check what these moves wait for: a machine that an older version stored lacks that.

        Rules are not changed otherwise: the law is lifted for this, which only the owner of the tables can do.
        """
        waiting = [rule for rule in rule_rows(machine_id, machine) if rule.needs_dependencies]
        if not waiting:
            return
        with self._lawless(RuleRow.TABLE):
            for rule in waiting:
                key = {"from_state": rule.from_state, "to_state": rule.to_state, "trigger": rule.trigger}
                self._rows("guard_rule", machine_id=machine_id, **key)

    def _next_machine_id(self) -> int:
        return int(self._value("next_machine_id"))

    def count_lanes(self) -> int:
        """The number of lanes of all tenants when the transaction began, and of those that it has added."""
        return self._lanes

    def insert_lane(self, tenant: str, tool: str | None, capabilities: str, *, fails_fast: bool) -> Lane:
        """The lane of that description, new or known."""
        described = {"tenant": tenant, "tool": tool, "capabilities": capabilities, "fails_fast": fails_fast}
        if self._rows("insert_lane", **described):
            self._lanes += 1
        else:
            self._lanes = int(self._value("count_lanes"))  # another transaction has added it, perhaps since this one began
        return self._all(Lane, "find_lane", **described)[0]

    def ensure_tenant(self, tenant: str, now: datetime) -> None:
        self._rows("ensure_tenant", id=tenant, now=self._from_instant(now))

    def save_template(self, template: Template) -> None:
        """Store a template, in place of one with the same name."""
        self._write("save_templates", [template])

    def insert_tombstone(self, tombstone: Tombstone) -> None:
        """Mark a task as deleted, unless it is already."""
        self._write("insert_tombstones", [tombstone])

    def insert_key(self, key: StoredKey) -> None:
        if not self._write("insert_keys", [key]):
            raise Conflict(f"Another process created the key '{key.name}' first.")

    def rotate_key(self, key: ApiKey, secret_hash: str) -> None:
        """Store a new secret. The present one stays valid until `previous_expires_at` of the key, if that is set."""
        values = {
            name: None if (instant := getattr(key, name)) is None else self._from_instant(instant)
            for name in ("expires_at", "previous_expires_at")
        }
        keeps_previous = key.previous_expires_at is not None
        named = {"tenant": key.tenant, "id": key.id, "secret_hash": secret_hash, "keeps_previous": keeps_previous}
        if not self._rows("rotate_key", **named, **values):
            raise Conflict(f"Another process has revoked the key '{key.name}'.")

    def revoke_key(self, tenant: str, key_id: str, now: datetime) -> None:
        """Revoke a key for good, unless it is revoked already."""
        self._rows("revoke_key", tenant=tenant, id=key_id, now=self._from_instant(now))

    def note_key_use(self, key_id: str, now: datetime, before: datetime) -> None:
        """Keep when a key was used, unless that was noted after `before`."""
        self._rows("note_key_use", id=key_id, now=self._from_instant(now), before=self._from_instant(before))

    def lock_runs(self, run_ids: Collection[str], of_tasks: Collection[str] = ()) -> list[Run]:
        """Lock these runs and the runs of these tasks. Unknown ids are left out."""
        if not run_ids and not of_tasks:
            return []
        return self._all(Run, "lock_runs", ids=self._list(run_ids), task_ids=self._list(of_tasks))

    def insert_runs(self, runs: Sequence[Run]) -> None:
        self._write("insert_runs", runs)

    def insert_run_tags(self, tags: Sequence[RunTag]) -> None:
        self._write("insert_run_tags", tags)

    def try_lock_run(self, run_id: str) -> Run | None:
        """Lock a run, unless another transaction has locked it."""
        return self._one(Run, "try_lock_run", id=run_id)

    def list_allocatable_runs(self, limit: int) -> list[tuple[str, str]]:
        """(id, tenant) of runs that wait for allocated workers, or have lost some of them; the oldest first."""
        return self._rows("list_allocatable_runs", limit=limit)

    def open_runs(self, run_ids: Collection[str], *, is_open: bool) -> None:
        """Let the tasks of these runs start, or keep them from it."""
        if run_ids:
            self._rows("open_runs", ids=self._list(run_ids), is_open=is_open)

    def select_tasks(self, task_ids: Collection[str]) -> list[Task]:
        return self._of(Task, "select_tasks", task_ids)

    def select_run_tasks(self, run_id: str, phases: Collection[str]) -> list[Task]:
        return self._all(Task, "select_run_tasks", run_id=run_id, phases=self._list(phases))

    def find_task_names(self, run_id: str) -> dict[str, str]:
        """The ids of a run's tasks by their names."""
        return dict(self._rows("find_task_names", run_id=run_id))

    def select_to_claim(self, task_ids: Collection[str]) -> list[Task]:
        """These tasks with their payload."""
        return self._of(Task, "select_to_claim", task_ids)

    def end_plain_tasks(
        self, tenant: str, reports: Sequence[PlainReport], moves: Sequence[PlainMove], now: datetime, key_id: str | None = None
    ) -> list[EndedTask]:
        """End those of these tasks, whose runs are locked, that are plain and still belong to the attempt that reports.

        A report with a key ends only what workers of that key hold.
        Nothing is read first: the statement that writes verifies what is assumed, and leaves out whatever differs.
        """
        if not reports or not moves:
            return []
        told = {"reports": to_json(reports), "moves": to_json(moves), "now": self._from_instant(now)}
        return self._all(EndedTask, "end_plain_tasks", tenant=tenant, key_id=key_id, **told)

    def begin_plain_tasks(
        self,
        worker: Worker,
        tenant: str,
        lane_ids: Sequence[int],
        limit: int,
        moves: Sequence[PlainMove],
        now: datetime,
        run_id: str | None = None,
    ) -> list[BegunTask]:
        """Begin the plain ones among the tasks whose turn it is, of one run, which is locked, or of any, in their order.

        Their runs are locked, and those that another transaction locks are passed over. Nothing is begun while a lost attempt
        waits for a claim, or the tenant has a budget.
        """
        if not lane_ids or not moves or limit <= 0:
            return []
        told = {
            "moves": to_json(moves),
            "now": self._from_instant(now),
            "worker_id": worker.id,
            "metadata": FIRST_ATTEMPT.format(worker.id),
        }
        begun = self._begin_plain(tenant, lane_ids, limit, run_id, told)
        return sorted(begun, key=lambda task: (-task.priority, task.id))

    @abstractmethod
    def _begin_plain(
        self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None, told: dict[str, Any]
    ) -> list[BegunTask]: ...

    @abstractmethod
    def select_claimable(self, lane_ids: Sequence[int], limit: int) -> list[Task]:
        """The first claimable tasks of these lanes by priority and age, without those of runs that other transactions lock.

        A lane belongs to one tenant, so there is no need to ask for that.
        """

    @abstractmethod
    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        """The same within one run, which is locked."""

    @abstractmethod
    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        """The same for a worker that is allocated to a run."""

    @abstractmethod
    def select_reclaimable(self, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        """Active tasks, of one run or of any, whose attempt is lost and whose machine lets the next claim take them over."""

    def find_claimable_runs(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Runs with claimable tasks, locked or not."""
        return self._column("find_claimable_runs", lane_ids=self._list(lane_ids), limit=limit)

    def find_waiting_tenants(self, after: str, limit: int) -> list[str]:
        """The next tenants in alphabetical order that have tasks to claim or to reclaim."""
        return self._column("find_waiting_tenants", after=after, limit=limit)

    def insert_tasks(self, tasks: Sequence[Task]) -> None:
        self._write("insert_tasks", tasks)

    def insert_dependencies(self, dependencies: Sequence[Dependency]) -> None:
        self._write("insert_dependencies", dependencies)

    def release_dependents(self, task_ids: Collection[str]) -> list[str]:
        """Count these tasks as succeeded for all that depend on them; returns those that have no open dependency left."""
        released = self._write("release_dependents", self._of(Release, "count_dependents", task_ids))
        return sorted(task_id for task_id, still_open in released if still_open == 0)

    def find_doomed(self, task_ids: Collection[str]) -> list[str]:
        """Those of these tasks that depend on a task that has failed for good."""
        return self._column_of("find_doomed", task_ids)

    def find_dependents(self, task_ids: Collection[str]) -> list[str]:
        return self._column_of("find_dependents", task_ids)

    def recount_dependencies(self, task_ids: Collection[str]) -> None:
        """Count the open dependencies of these tasks again; of those that run, none is open."""
        self._rows_of("recount_dependencies", task_ids)

    def restore(self, kind: Kind, ids: Collection[str]) -> None:
        """Put rows back to where their audit trails end.

        That is no move: the law is lifted for this one statement, which only the owner of the tables can do.
        """
        with self._lawless(moving_table_of(ROW_TYPES[kind])):
            self._rows_of(f"restore_{kind}s", ids)

    @abstractmethod
    def _lawless(self, table: str) -> AbstractContextManager[None]:
        """Without the triggers of a table, for this transaction and a while."""

    def assess_subtasks(self, parent_ids: Collection[str]) -> list[Subtasks]:
        return self._of(Subtasks, "assess_subtasks", parent_ids)

    def lock_workers(self, worker_ids: Collection[str]) -> list[Worker]:
        return self._of(Worker, "lock_workers", worker_ids)

    def try_lock_workers(self, worker_ids: Collection[str], limit: int) -> list[Worker]:
        """Lock the first of these workers that no other transaction has locked."""
        return self._all(Worker, "try_lock_workers", ids=self._list(worker_ids), limit=limit) if worker_ids else []

    def insert_workers(self, workers: Sequence[Worker]) -> None:
        self._write("insert_workers", workers)

    def count_held(self, worker_ids: Collection[str]) -> dict[str, int]:
        """How many tasks each of these workers holds; workers without any are left out."""
        return dict(self._rows_of("count_held", worker_ids))

    def find_held_tasks(self, worker_ids: Collection[str]) -> list[tuple[str, str, str]]:
        """(worker, task, run) of every attempt that these workers have under way."""
        return self._rows_of("find_held_tasks", worker_ids)

    def find_silent_workers(self, now: datetime, limit: int, since: datetime = NEVER) -> list[str]:
        """Workers whose lease has expired and that have not been declared missing yet; each counts as heard of at `since`."""
        instants = {"now": self._from_instant(now), "since": self._from_instant(since)}
        return self._column("find_silent_workers", **instants, limit=limit)

    def was_heard(self, after: datetime, until: datetime) -> bool:
        """Whether any worker has sent a heartbeat in this interval."""
        return bool(self._value("was_heard", after=self._from_instant(after), until=self._from_instant(until)))

    def find_free_workers(
        self, tenant: str, limit: int, capabilities: Collection[str] = (), run_id: str | None = None
    ) -> list[str]:
        """Workers with these capabilities that serve this tenant, may take tasks, hold none and are allocated to no run.

        For a run, those that work for another run only are left out.
        """
        return self._column("find_free_workers", tenant=tenant, limit=limit, needed=to_json(capabilities), run_id=run_id)

    def find_run_workers(self, run_ids: Collection[str]) -> list[str]:
        return self._column_of("find_run_workers", run_ids)

    def lock_breakers(self, tenant: str, tools: Collection[str]) -> list[Breaker]:
        return self._all(Breaker, "lock_breakers", tenant=tenant, tools=self._list(tools)) if tools else []

    def list_guarded_breakers(self, tenant: str) -> list[Breaker]:
        """Breakers that are not closed or have a limit, without a lock."""
        return self._all(Breaker, "list_guarded_breakers", tenant=tenant)

    def count_at_work(self, tenant: str, tool: str) -> int:
        """How many attempts use a tool now, without those that are lost."""
        return int(self._value("count_at_work", tenant=tenant, tool=tool))

    def insert_breakers(self, breakers: Sequence[Breaker]) -> None:
        if len(self._write("insert_breakers", breakers)) != len(breakers):
            raise Conflict(f"Another process declared one of these tools first: {', '.join(each.tool for each in breakers)}.")

    def lock_quotas(self, tenants: Collection[str]) -> list[Quota]:
        """The quotas of these tenants. Who holds them may count what these tenants have: nobody else adds to it."""
        return self._all(Quota, "lock_quotas", tenants=self._list(tenants))

    def save_quota(self, quota: Quota) -> None:
        self._write("save_quotas", [quota])

    def drop_quota(self, tenant: str) -> None:
        self._rows("drop_quota", tenant=tenant)

    def add_spending(self, spent: Sequence[Account]) -> None:
        """Add to what tenants have spent; their budgets stay. The last statement of a transaction, in the order of tenants."""
        self._write("add_spending", spent)

    def set_account_budgets(self, accounts: Sequence[Account]) -> None:
        """Set the budgets of tenants; for a tenant that is known, nothing else changes."""
        self._write("set_account_budgets", accounts)

    def set_timers(self, timers: Sequence[Timer]) -> None:
        """Set these timers; if one is set twice, the second counts."""
        self._write("set_timers", list({(timer.entity_id, timer.purpose): timer for timer in timers}.values()))

    def drop_timers(self, entity_ids: Collection[str]) -> None:
        self._rows_of("drop_timers", entity_ids)

    def find_due_timers(self, now: datetime, limit: int) -> list[Timer]:
        return self._all(Timer, "find_due_timers", now=self._from_instant(now), limit=limit)

    def take_timers(self, timers: Sequence[Timer]) -> list[Timer]:
        """Remove these timers; returns only those that still existed, so that each fires once."""
        taken = set(self._write("take_timers", timers))
        return [timer for timer in timers if (timer.entity_id, timer.purpose) in taken]

    def end_usage_limit(self, tenant: str, tool: str, now: datetime) -> None:
        """The tasks of a tool that wait for the end of its usage limit, as their metadata says, are due now."""
        pattern = '{"usage_limit":true%'
        self._rows("end_usage_limit", tenant=tenant, tool=tool, pattern=pattern, now=self._from_instant(now))

    def insert_notices(self, notices: Sequence[Notice]) -> None:
        self._write("insert_notices", notices)

    def insert_seal(self, seal: Seal) -> bool:
        """Whether it was stored: another process may have sealed the same transitions first."""
        sealed_at = self._from_instant(seal.sealed_at)
        values = {"position": seal.position, "previous": seal.previous, "digest": seal.digest, "sealed_at": sealed_at}
        return bool(self._rows("insert_seal", **values))

    def save_duty_failure(self, failure: DutyFailure) -> None:
        self._write("save_duty_failures", [failure])

    def drop_duty_failures(self, name: str, process: str, before: datetime) -> None:
        """Those of a duty in a process, and all that are older than an instant."""
        self._rows("drop_duty_failures", name=name, process=process, before=self._from_instant(before))

    def open_outbox_cursor(self, cursor: OutboxCursor) -> None:
        """Begin to fill the outbox for a target here, unless another process has begun."""
        self._rows("open_outbox_cursor", origin=cursor.origin, target=cursor.target, position=cursor.position)

    def advance_outbox_cursor(self, cursor: OutboxCursor, position: int) -> bool:
        """Whether it was advanced: another process may have done it first."""
        values = {"origin": cursor.origin, "target": cursor.target, "after": cursor.position, "position": position}
        return bool(self._rows("advance_outbox_cursor", **values))

    def insert_outbox(self, entry: OutboxEntry) -> None:
        """Unless there is one for this transition and target."""
        assert entry.due_at is not None
        self._rows(
            "insert_outbox",
            id=entry.id,
            position=entry.position,
            origin=entry.origin,
            target=entry.target,
            method=entry.method,
            tenant=entry.tenant,
            run_id=entry.run_id,
            event=entry.event,
            subject=entry.subject,
            body=entry.body,
            created_at=self._from_instant(entry.created_at),
            due_at=self._from_instant(entry.due_at),
        )

    def select_due_outbox(self, scope: OutboxScope, now: datetime, limit: int) -> list[OutboxEntry]:
        """The first of these that are due, without those that another transaction locks."""
        return self._all(OutboxEntry, "select_due_outbox", now=self._from_instant(now), limit=limit, **self._within(scope))

    def claim_outbox(self, entry_id: str, claimed_by: str, due_at: datetime) -> None:
        """Count a try, and let no other process try before `due_at`."""
        self._rows("claim_outbox", id=entry_id, claimed_by=claimed_by, due_at=self._from_instant(due_at))

    def settle_outbox(self, entry: OutboxEntry) -> bool:
        """Store how a try ended; False when another process has claimed it since."""
        instants = {
            name: None if (instant := getattr(entry, name)) is None else self._from_instant(instant)
            for name in ("due_at", "delivered_at", "dead_at")
        }
        values = {"id": entry.id, "claimed_by": entry.claimed_by, "tries": entry.tries, "error": entry.error}
        return bool(self._rows("settle_outbox", **values, **instants))

    def retry_outbox(self, tenant: str, ids: Collection[str], now: datetime) -> list[str]:
        """Let these be tried again now, with all their tries; returns those that no process delivers at the moment."""
        return self._column("retry_outbox", tenant=tenant, ids=self._list(ids), now=self._from_instant(now))

    def purge_outbox(self, before: datetime, limit: int) -> None:
        """Forget what was delivered before."""
        self._rows("purge_outbox", before=self._from_instant(before), limit=limit)

    def find_response(self, tenant: str, endpoint: str, key: str) -> StoredResponse | None:
        return self._one(StoredResponse, "find_response", tenant=tenant, endpoint=endpoint, key=key)

    def insert_response(self, response: StoredResponse) -> bool:
        """Whether it was stored: another request with the same key may have committed first."""
        return bool(self._write("insert_response", [response]))

    def purge_responses(self, now: datetime, limit: int) -> int:
        return len(self._rows("purge_responses", now=self._from_instant(now), limit=limit))

    @abstractmethod
    def _write(self, query: str, rows: Sequence[Struct]) -> list[Any]:
        """Run a statement for a batch of rows, perhaps an empty one; the tuples that it returns, if any."""

    @abstractmethod
    def _end(self, word: str, wakeup: Wakeup) -> None:
        """Commit or roll back."""


class Foresee(NamedTuple):
    """What a transaction will probably be asked, so that it can be asked together with BEGIN."""

    ask: Callable[[Transaction, datetime], None]
    """Calls methods as they will be called, with the instant as the time of the transaction. What they return means nothing."""
    most: int | None = None
    """How many questions at most."""
    shares: bool = False
    """Whether that is all that it will ask, and it writes no run. Then it may go on beside others of that kind."""

    def alone(self) -> Foresee:
        """The same for a transaction that has its runs for itself."""
        return self._replace(shares=False)


class Store(Protocol):
    """A database. `begin` is for the one writer; `read` may be called from any thread."""

    url: str
    is_remote: bool
    """Whether a network is between: then questions that are asked together save round trips."""

    def begin(self, foresee: Foresee | None = None) -> Transaction:
        """With `foresee`, any method of the transaction may raise `Unforeseen`, and so may this.

        One that shares its runs is `StoreBusy` while another transaction waits for a run.
        """
        ...

    def read(self) -> AbstractContextManager[Reader]: ...
    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        """Call `heard` for the wake-ups of every commit of any process, until the returned function is called.

        `heard` must not block.
        """
        ...

    def close(self) -> None: ...
