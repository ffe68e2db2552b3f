"""The state of one transaction: the rows it has loaded, the moves it has decided, and what is still to follow from them.

    load ──▶ decide (moves, changes) ──▶ flush ──▶ what follows ──▶ decide …  until nothing is left to follow

Rows are changed in place. A row that moves twice is written twice, in order, because the law checks each move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from operator import attrgetter, is_
from typing import Any, Generic, TypeVar

import msgspec

from pointsman.engine.machines import Machines
from pointsman.engine.quotas import Quotas
from pointsman.errors import NotFound
from pointsman.kernel.machine import Kind, Machine, Outcome, Phase, Refusal, State, Transition
from pointsman.kernel.step import Snapshot, step
from pointsman.store.contract import Transaction, Wakeup
from pointsman.store.rows import (
    Account,
    BegunTask,
    Breaker,
    Dependency,
    Entity,
    Lane,
    Notice,
    Run,
    RunTag,
    Subtasks,
    Task,
    Timer,
    Worker,
)
from pointsman.world import World

_TEXT = {each: each.value for each in (*Phase, *Outcome)}
Row = TypeVar("Row", bound=Entity)
Changes = tuple[list[Row], list[str]]
"""Rows, and the columns that have changed in all of them."""
ENGINE = "engine"
"""The actor of what nobody else has asked for."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Who caused a move, and why; stored with it in the audit trail."""

    actor: str = ENGINE
    reason: str | None = None
    metadata: dict[str, Any] | None = None

    def sign(self, event: str) -> str:
        """The message of a notice: what happened, and who wanted it, and why."""
        return f"{event} By {self.actor}" + (f": {self.reason}" if self.reason else ".")

    def after_retries(self, count: int) -> Cause:
        """The same cause for an entity that was retried so often. No retries are not stored, so that usual moves stay small."""
        return replace(self, metadata={**(self.metadata or {}), "retry_count": count}) if count else self


@cache
def _reader_of(row_type: type[Entity]) -> Callable[[Entity], tuple[Any, ...]]:
    return attrgetter(*row_type.CHANGING)


class Table(Generic[Row]):
    """The rows of one kind that the transaction has loaded."""

    def __init__(self, row_type: type[Row]) -> None:
        self.rows: dict[str, Row] = {}
        self._columns = row_type.CHANGING
        self._read = _reader_of(row_type)
        self._stored: dict[str, tuple[Any, ...]] = {}
        """The values of each row in the database, once all earlier waves are written."""
        self._new: dict[str, Row] = {}
        self.created: set[str] = set()
        """Rows that this transaction has added, written or not."""
        self._waves: list[dict[str, Row]] = []
        self._moves: dict[str, int] = {}
        self._changed: dict[str, Row] = {}

    def hold(self, rows: Iterable[Row]) -> None:
        """Add rows that were read. A row that was loaded before may have changed since, and is kept."""
        for row in rows:
            if row.id not in self.rows:
                self.rows[row.id] = row
                self._stored[row.id] = self._read(row)

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in dict.fromkeys(names) if name not in self.rows]

    def add(self, row: Row) -> None:
        self.rows[row.id] = row
        self._new[row.id] = row
        self.created.add(row.id)

    def before_move(self, row: Row) -> None:
        """Call this before a move changes a row: it keeps the row as an earlier move left it."""
        made = self._moves.get(row.id, 0)
        if made:
            self._waves[made - 1][row.id] = copy(row)
        elif row.id in self._new:
            self._new[row.id] = copy(row)
        if made == len(self._waves):
            self._waves.append({})
        self._waves[made][row.id] = row
        self._moves[row.id] = made + 1
        self._changed.pop(row.id, None)

    def create_moved(self, apart: Set[str]) -> None:
        """Let new rows that were made ready at once be inserted as they are now, which saves a second write for each.

        Rows `apart` get something else between the two.
        """
        for row_id, created in self._new.items():
            row = self.rows[row_id]
            at_once = self._moves.get(row_id) == 1 and row.phase == Phase.QUEUED and row.entered_at == row.created_at
            if (
                at_once
                and row_id not in apart
                and (row.actor, row.reason, row.metadata) == (created.actor, created.reason, None)
            ):
                self._new[row_id] = row
                del self._waves[0][row_id], self._moves[row_id]

    def change(self, row: Row) -> None:
        """Note that a row was changed without a move."""
        if row.id not in self._moves and row.id not in self._new:
            self._changed[row.id] = row

    def take_new(self) -> list[Row]:
        if not self._new:
            return []
        new, self._new = list(self._new.values()), {}
        for row in new:
            self._stored[row.id] = self._read(row)
        return new

    def take_moved(self) -> list[Changes[Row]]:
        """Wave by wave, so that the first move of a row is written before its second."""
        waves, self._waves = self._waves, []
        self._moves.clear()
        return [changes for wave in waves for changes in self._sort(wave.values())]

    def forget(self, names: Iterable[str]) -> None:
        """Read these rows again when they are needed; none has unwritten changes."""
        for name in names:
            self.rows.pop(name, None)
            self._stored.pop(name, None)

    def take_changed(self) -> list[Changes[Row]]:
        changed, self._changed = self._changed, {}
        return [changes for changes in self._sort(changed.values()) if changes[1]]

    @property
    def is_dirty(self) -> bool:
        return bool(self._new or self._waves or self._changed)

    def _sort(self, rows: Iterable[Row]) -> list[Changes[Row]]:
        """Group rows by the columns that have changed: most rows of a batch share them, and only these are written."""
        kinds: dict[bytes, list[Row]] = {}
        for row in rows:
            values = self._read(row)
            same = bytes(map(is_, values, self._stored[row.id]))
            self._stored[row.id] = values
            kinds.setdefault(same, []).append(row)
        return [(rows, [name for name, is_same in zip(self._columns, same) if not is_same]) for same, rows in kinds.items()]  # noqa: B905


class Lanes:
    """Lanes that are known to be committed. No lane is ever deleted."""

    def __init__(self) -> None:
        self._by_id: dict[int, Lane] = {}
        self._by_tenant: defaultdict[str, list[Lane]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            if lane.id not in self._by_id:
                self._by_id[lane.id] = lane
                self._by_tenant[lane.tenant].append(lane)

    def get(self, lane_id: int) -> Lane | None:
        return self._by_id.get(lane_id)

    def of(self, tenant: str) -> Sequence[Lane]:
        return self._by_tenant.get(tenant, ())


class Accounts:
    """What tenants may spend and have spent, with what this transaction adds. Only its last statements lock any of it."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._known: dict[str, Account] = {}
        self._added: dict[str, Account] = {}
        self._budgets: dict[str, Account] = {}

    def get(self, tenant: str) -> Account:
        if tenant not in self._known:
            self._known[tenant] = self._transaction.find_account(tenant) or Account(tenant=tenant)
        return self._known[tenant]

    def add(self, tenant: str) -> Account:
        """What this transaction adds to the account of a tenant."""
        return self._added.setdefault(tenant, Account(tenant=tenant))

    def set_budget(self, tenant: str, budget_usd: Decimal | None) -> None:
        self.get(tenant).budget_usd = budget_usd
        self._budgets[tenant] = Account(tenant=tenant, budget_usd=budget_usd)

    def write(self) -> None:
        """Last in a transaction: whoever waits for an account holds nothing that its owner still needs."""
        self._transaction.set_account_budgets([self._budgets[tenant] for tenant in sorted(self._budgets)])
        self._transaction.add_spending([self._added[tenant] for tenant in sorted(self._added)])


class Work:
    """The state of one transaction."""

    def __init__(  # noqa: PLR0915 - one line for each kind of thing
        self, transaction: Transaction, machines: Machines, world: World, lanes: Lanes, tenants: Set[str]
    ) -> None:
        self.transaction = transaction
        self.now: datetime = transaction.now()
        self.world = world
        self.machines = machines
        self.runs = Table(Run)
        self.tasks = Table(Task)
        self.workers = Table(Worker)
        self.breakers = Table(Breaker)
        self.accounts = Accounts(transaction)
        self.quotas = Quotas(transaction)
        self.lanes = lanes
        self.new_lanes: dict[int, Lane] = {}
        """Lanes that this transaction has read or inserted."""
        self._has_all_lanes = False
        self._tenants = tenants
        self.new_tenants: set[str] = set()
        self.subtasks_of: dict[str, Subtasks] = {}
        self.ended_plain: set[str] = set()
        """Tasks that the short way has ended, and that are not loaded."""
        self.asked_to_begin: defaultdict[str, list[tuple[str, Sequence[int], str | None, bool]]] = defaultdict(list)
        """By worker: the tenant, lanes and run of which it was to begin plain tasks, and whether there were enough."""
        self.busy_runs: set[str] = set()
        """Runs in which the short way has begun a task."""
        self.wakeups = Wakeup.NOTHING
        # To be written besides the rows that move.
        self.tags: list[RunTag] = []
        self.dependencies: list[Dependency] = []
        self.timers: dict[tuple[str, str], Timer] = {}
        self.dropped_timers: set[str] = set()
        self.ended_limits: set[tuple[str, str]] = set()
        """Tenants and tools whose usage limit a person has declared ended."""
        self.notices: list[Notice] = []
        # What is still to follow.
        self.waiting: list[str] = []
        """Tasks that may be ready."""
        self.freed: set[str] = set()
        """Tasks whose last dependency has succeeded in this transaction."""
        self.added: set[str] = set()
        """Tasks that a running task, or the run itself, has added in this transaction."""
        self.succeeded, self.failed = list[str](), list[str]()
        self.behind: list[str] = []
        """Queued tasks that wait for a dependency, which may have failed already."""
        self.parents: set[str] = set()
        self.unsettled_runs: set[str] = set()
        self.struck_runs: set[str] = set()
        """Runs in which a task has failed in this transaction."""
        self.reviewed_workers: set[str] = set()
        self.lost: dict[str, list[str]] = {}
        """By worker: tasks that it has lost and that no claim has taken over yet."""
        self.leases_lost: list[tuple[str, str, int, str | None]] = []
        """(run, task, epoch, worker) of attempts that were lost."""
        self.key_hits = self.key_misses = 0
        self.allocation_wanted = False
        self.passed_over: set[str] = set()
        """Runs that could not get their workers, because another transaction held a lock."""
        self._held, self._at_work = dict[str, int](), dict[str, int]()
        self.held_change: defaultdict[str, int] = defaultdict(int)
        """By worker: how many more tasks it holds than when the transaction began."""

    def ensure_tenant(self, tenant: str) -> None:
        """Store a tenant when it gets its first row."""
        if tenant not in self._tenants and tenant not in self.new_tenants:
            self.transaction.ensure_tenant(tenant, self.now)
            self.new_tenants.add(tenant)

    # loaded rows

    def load(self, *, task_ids: Collection[str] = (), run_ids: Collection[str] = ()) -> None:
        """Lock these runs and the runs of these tasks, and read both. Unknown ids are left out."""
        task_ids = self.tasks.missing(task_ids)
        self.lock_runs(run_ids, of_tasks=task_ids)
        self.read_tasks(task_ids)

    def lock_runs(self, run_ids: Collection[str], of_tasks: Collection[str] = ()) -> None:
        run_ids = self.runs.missing(run_ids)
        if run_ids or of_tasks:
            self.runs.hold(self.transaction.lock_runs(sorted(run_ids), of_tasks=of_tasks))

    def try_lock_run(self, run_id: str) -> Run | None:
        """A run, unless another transaction has locked it."""
        if run_id not in self.runs.rows and (run := self.transaction.try_lock_run(run_id)):
            self.runs.hold([run])
        return self.runs.rows.get(run_id)

    def read_tasks(self, task_ids: Collection[str]) -> None:
        """Read tasks whose runs are locked."""
        if missing := self.tasks.missing(task_ids):
            self.tasks.hold(self.transaction.select_tasks(missing))

    def load_workers(self, worker_ids: Collection[str]) -> None:
        if missing := self.workers.missing(worker_ids):
            self.workers.hold(self.transaction.lock_workers(sorted(missing)))

    def try_lock_workers(self, worker_ids: Collection[str], limit: int) -> list[Worker]:
        """The first of these workers that no other transaction has locked."""
        locked = self.transaction.try_lock_workers(worker_ids, limit)
        self.workers.hold(locked)
        return [self.workers.rows[worker.id] for worker in locked]

    def load_breakers(self, tenant: str, tools: Collection[str]) -> None:
        known = {breaker.tool for breaker in self.breakers.rows.values() if breaker.tenant == tenant}
        if missing := set(tools) - known:
            self.breakers.hold(self.transaction.lock_breakers(tenant, sorted(missing)))

    def load_subtasks(self, parent_ids: Collection[str]) -> None:
        """Read how far the subtasks of these tasks are, as written so far."""
        if parent_ids:
            for subtasks in self.transaction.assess_subtasks(parent_ids):
                self.subtasks_of[subtasks.parent_task_id] = subtasks

    def count_held(self, worker_ids: Collection[str]) -> dict[str, int]:
        """How many tasks these workers hold: read once, and counted here from then on."""
        if missing := [worker_id for worker_id in worker_ids if worker_id not in self._held]:
            self.flush()
            held = self.transaction.count_held(missing)
            self._held |= {worker_id: held.get(worker_id, 0) for worker_id in missing}
        return {worker_id: self._held[worker_id] for worker_id in worker_ids}

    def change_held(self, worker_id: str, change: int) -> None:
        """A worker got a task, or lost one."""
        if worker_id in self._held:
            self._held[worker_id] += change
        self.held_change[worker_id] += change
        self.reviewed_workers.add(worker_id)

    def count_at_work(self, breaker: Breaker) -> int:
        """How many attempts of a tool are running; its breaker is locked. Read once, and counted here as others start."""
        if breaker.id not in self._at_work:
            self.flush()
            self._at_work[breaker.id] = self.transaction.count_at_work(breaker.tenant, breaker.tool)
        return self._at_work[breaker.id]

    def begin_at_work(self, breaker: Breaker) -> None:
        if breaker.id in self._at_work:
            self._at_work[breaker.id] += 1

    def forget_at_work(self, breaker: Breaker) -> None:
        """An attempt has ended: the next count is read from the database."""
        self._at_work.pop(breaker.id, None)

    def add_child(self, parent_id: str) -> None:
        """Note that a task has a new, open subtask, also for a report about it in the same commit."""
        parent = self.tasks.rows[parent_id]
        parent.has_subtasks = True
        self.tasks.change(parent)
        self.subtasks_of[parent_id] = Subtasks(parent_task_id=parent_id, open=True, failed=False)

    def task(self, tenant: str, task_id: str) -> Task:
        return _found(self.tasks.rows.get(task_id), "task", tenant, task_id)

    def run(self, tenant: str, run_id: str) -> Run:
        return _found(self.runs.rows.get(run_id), "run", tenant, run_id)

    def worker(self, tenant: str, worker_id: str) -> Worker:
        return _found(self.workers.rows.get(worker_id), "worker", tenant, worker_id)

    def breaker(self, tenant: str, tool: str) -> Breaker | None:
        return next((row for row in self.breakers.rows.values() if row.tool == tool and row.tenant == tenant), None)

    def tool_of(self, task: Task) -> str | None:
        return self.lane(task).tool

    def known_lanes(self, tenant: str) -> list[Lane]:
        return [*self.lanes.of(tenant), *(lane for lane in self.new_lanes.values() if lane.tenant == tenant)]

    def lanes_of(self, tenant: str) -> list[Lane]:
        """Every lane of a tenant. Other processes add lanes: then there are more than are known here."""
        if not self._has_all_lanes and len(self.lanes) + len(self.new_lanes) != self.transaction.count_lanes():
            self._read_lanes()
        self._has_all_lanes = True
        return self.known_lanes(tenant)

    def lane(self, task: Task) -> Lane:
        lane = self.lanes.get(task.lane_id) or self.new_lanes.get(task.lane_id)
        if lane is None:
            self._read_lanes()
            lane = self.new_lanes[task.lane_id]
        return lane

    def _read_lanes(self) -> None:
        self.new_lanes = {lane.id: lane for lane in self.transaction.list_lanes() if self.lanes.get(lane.id) is None}

    # moves

    def machine(self, row: Entity) -> Machine:
        return self.machines.known(row.machine_id) or self.machines.machine(row.machine_id, self.transaction)

    def decide(self, row: Entity, signal: str, facts: object) -> tuple[Transition, ...] | Refusal:
        """The transitions that `signal` leads to, as the kernel decides."""
        decided = step(self.machine(row), Snapshot(row.state, row.entered_at), signal, facts, self.now)
        return decided if isinstance(decided, Refusal) else decided.taken

    def takes(self, row: Entity, signal: str) -> bool:
        """Whether the state of `row` takes `signal`, guards aside."""
        return (row.state, signal) in self.machine(row).moves_on

    def was_told(self, row: Entity, signal: str) -> bool:
        """Whether `signal` led `row` to its present state."""
        moves = self.machine(row).transitions
        return any((move.to_state, move.trigger, move.signal) == (row.state, row.trigger, signal) for move in moves)

    def move(self, row: Entity, transition: Transition, cause: Cause) -> State:
        """Put a row into the state that a transition leads to. Callers call `before_move` first, and do what its kind needs."""
        state = self.machine(row).state(transition.to_state)
        row.state = state.name
        row.phase = _TEXT[state.phase]
        row.outcome = _TEXT[state.outcome] if state.outcome else None
        row.revision += 1
        row.trigger = transition.trigger
        row.reason = cause.reason
        row.actor = cause.actor
        row.metadata = msgspec.json.encode(cause.metadata).decode() if cause.metadata else None
        # Clocks of several machines may disagree a little: a move is never earlier than the one before.
        row.entered_at = max(self.now, row.entered_at)
        if state.phase is Phase.ACTIVE and row.started_at is None:
            row.started_at = row.entered_at
        row.completed_at = row.entered_at if state.phase is Phase.DONE else None
        return state

    # timers

    def set_timer(self, row: Entity | BegunTask, kind: Kind, purpose: str, due_at: datetime, run_id: str | None = None) -> None:
        """Set a timer that fires only if the row has not moved by then."""
        self.timers[row.id, purpose] = Timer(
            entity_id=row.id,
            purpose=purpose,
            kind=kind.value,
            tenant=row.tenant,
            run_id=run_id,
            revision=row.revision,
            due_at=due_at,
        )
        self.wakeups |= Wakeup.TIMERS

    def drop_timers(self, row: Entity) -> None:
        self.dropped_timers.add(row.id)
        for key in [key for key in self.timers if key[0] == row.id]:
            del self.timers[key]

    def watch_stay(self, row: Entity, kind: Kind, state: State, run_id: str | None) -> None:
        """If the state has a longest stay, set a timer for its end."""
        if state.longest_stay_seconds is not None:
            self.set_timer(row, kind, "overstay", self.now + timedelta(seconds=state.longest_stay_seconds), run_id)

    # notices

    def give_notice(self, row: Entity, kind: str, run_id: str | None, *, subject: str, message: str) -> None:
        """Keep an event that moved nothing."""
        self.notices.append(
            Notice(
                tenant=row.tenant,
                kind=kind,
                entity_id=row.id,
                run_id=run_id,
                subject=subject,
                message=message,
                at=self.now,
            )
        )

    # writing

    def flush(self) -> None:
        """Write everything that was decided, tasks before runs, because a run succeeds only with its tasks."""
        rows = self.runs.is_dirty or self.tasks.is_dirty or self.workers.is_dirty or self.breakers.is_dirty
        if not (
            rows or self.tags or self.dependencies or self.timers or self.dropped_timers or self.ended_limits or self.notices
        ):
            return
        write = self.transaction
        self._insert(self.runs, write.insert_runs)
        if self.tags:
            tags, self.tags = self.tags, []
            write.insert_run_tags(tags)
        self._insert(self.workers, write.insert_workers)
        self._insert(self.breakers, write.insert_breakers)
        self.tasks.create_moved({each.task_id for each in self.dependencies})
        self._insert(self.tasks, write.insert_tasks)
        if self.dependencies:
            dependencies, self.dependencies = self.dependencies, []
            write.insert_dependencies(dependencies)
        for table in (self.tasks, self.runs, self.workers, self.breakers):
            if table.is_dirty:
                self._store(table)
        if self.dropped_timers:
            dropped, self.dropped_timers = self.dropped_timers, set()
            write.drop_timers(sorted(dropped))
        if self.timers:
            timers, self.timers = self.timers, {}
            write.set_timers(list(timers.values()))
        while self.ended_limits:
            write.end_usage_limit(*self.ended_limits.pop(), self.now)
        if self.notices:
            notices, self.notices = self.notices, []
            write.insert_notices(notices)

    def _insert(self, table: Table[Row], write: Callable[[Sequence[Row]], None]) -> None:
        if new := table.take_new():
            self.wakeups |= Wakeup.EVENTS
            write(new)

    def _store(self, table: Table[Any]) -> None:
        for rows, columns in table.take_moved():
            self.wakeups |= Wakeup.EVENTS
            self.transaction.move(rows, columns)
        for rows, columns in table.take_changed():
            self.transaction.update(rows, columns)


def _found(row: Row | None, kind: str, tenant: str, name: str) -> Row:
    if row is None or row.tenant != tenant:
        raise NotFound(kind, name)
    return row
