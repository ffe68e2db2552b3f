"""A store for tests, with every shipped machine, one tenant and one lane, and methods to fill it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace
from tests.databases import open_store
from tests.rooms.store.outsider import Outsider, outsider

from pointsman.kernel.machine import Machine, Phase, State
from pointsman.kernel.machine import Transition as Move
from pointsman.lifecycles import load_machine, machine_names
from pointsman.store.contract import Store, Transaction, Wakeup
from pointsman.store.rows import (
    ZERO_USD,
    Attempt,
    BegunTask,
    Breaker,
    EndedTask,
    Entity,
    Run,
    StoredResponse,
    Task,
    Timer,
    Worker,
)

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ACME = "acme"
GLOBEX = "globex"
HAND = "worker_of_the_fixture"
"""The worker of ACME where a test does not name one; the first claim creates it."""
WORDS = 'Weichenwärter „Ω“ 転轍手 🚂\n\'; DROP TABLE run; --\t"%s" :id {} \\'
JSON = '{"k": ["ü", 1.5, null, true]}'
TEXTS = {"payload": "null", "output": None}
MACHINES = {name: load_machine(name) for name in machine_names()}

E = TypeVar("E", bound=Entity)


@contextmanager
def open_store_fixture(url: str) -> Iterator[StoreFixture]:
    """A database is filled once, and may be opened again."""
    with closing(open_store(url)) as store, outsider(url) as prompt:
        yield StoreFixture(url, store, prompt)


@contextmanager
def transaction(store: Store, wakeup: Wakeup = Wakeup.NOTHING) -> Iterator[Transaction]:
    """Commit at the end, or roll back after an exception."""
    begun = store.begin()
    try:
        yield begun
    except BaseException:
        begun.rollback()
        raise
    begun.commit(wakeup)


class StoreFixture:
    def __init__(self, url: str, store: Store, prompt: Outsider) -> None:
        self.url = url
        self.store = store
        self.prompt = prompt
        """A plain connection to the same database."""
        ((entities,),) = prompt.ask("SELECT count(*) FROM transition WHERE revision = 0")
        self._numbers = count(1 + entities)
        with self.transaction() as begun:
            begun.ensure_tenant(ACME, AT)
            rows = begun.list_machines() or [
                begun.insert_machine(machine, fingerprint="f", definition="d") for machine in MACHINES.values()
            ]
            self.lane_id = begun.insert_lane(ACME, None, "[]", fails_fast=False).id
        self._lane_ids = {ACME: self.lane_id}
        self.machine_ids = {row.name: row.id for row in rows}
        self._machines = {row.id: MACHINES[row.name] for row in rows}

    @contextmanager
    def transaction(self, wakeup: Wakeup = Wakeup.NOTHING) -> Iterator[Transaction]:
        with transaction(self.store, wakeup) as begun:
            yield begun

    # Rows that are not stored yet.

    def run(self, machine: str = "standard.run", **columns: Any) -> Run:
        return Run(**{**self._beginning(machine), "name": "nightly", "lifecycle": machine.partition(".")[0], **columns})

    def task(self, run: Run, machine: str = "standard.task", **columns: Any) -> Task:
        begins = self._beginning(machine)
        known = {**begins, "run_id": run.id, "name": begins["id"], **TEXTS, **columns}
        if "lane_id" not in known:
            known["lane_id"] = self._lane_of(known["tenant"])
        return Task(**known)

    def worker(self, machine: str = "standard.worker", **columns: Any) -> Worker:
        named = {"name": "bob", "lifecycle": machine.partition(".")[0], "heartbeat_at": AT}
        return Worker(**{**self._beginning(machine), **named, **columns})

    def breaker(self, machine: str = "standard.breaker", **columns: Any) -> Breaker:
        begins = self._beginning(machine)
        return Breaker(**{**begins, "tool": f"tool of {begins['id']}", **columns})

    def entity(self, machine: str) -> Entity:
        """A row of the kind of the machine; a task comes with its run."""
        match MACHINES[machine].kind:
            case "run":
                return self.run(machine)
            case "task":
                return self.task(self.put(self.run()), machine)
            case "worker":
                return self.worker(machine)
            case _:
                return self.breaker(machine)

    def tenant(self, name: str) -> str:
        with self.transaction() as begun:
            begun.ensure_tenant(name, AT)
        return name

    def lane(self, *capabilities: str, tenant: str = ACME) -> int:
        with self.transaction() as begun:
            return begun.insert_lane(tenant, None, json.dumps(capabilities), fails_fast=False).id

    def _lane_of(self, tenant: str) -> int:
        """A lane of the tenant itself, unless there is no such tenant."""
        if tenant not in self._lane_ids and self.prompt.ask("SELECT id FROM tenant WHERE id = :id", id=tenant):
            self._lane_ids[tenant] = self.lane(tenant=tenant)
        return self._lane_ids.get(tenant, self.lane_id)

    # Rows in the store.

    def put(self, row: E) -> E:
        with self.transaction() as begun:
            return self.put_in(begun, row)

    def put_in(self, begun: Transaction, row: E) -> E:
        insert(begun, row)
        return row

    def put_task(self, run: Run | None = None, state: str | None = None, **columns: Any) -> Task:
        """A task of `run`, or of a new run, moved to `state`."""
        task = self.put(self.task(run or self.put(self.run()), **columns))
        return self.bring(task, state) if state else task

    def move(self, row: E, to_state: str, **columns: Any) -> E:
        with self.transaction() as begun:
            return self.move_in(begun, row, to_state, **columns)

    def bring(self, row: E, to_state: str, **columns: Any) -> E:
        """Move a row to a state along the shortest path in its machine; `columns` come with the last move."""
        with self.transaction() as begun:
            return self.bring_in(begun, row, to_state, **columns)

    def bring_in(self, begun: Transaction, row: E, to_state: str, **columns: Any) -> E:
        way = route(self.machine_of(row), row.state, to_state)
        for state in way[1:-1]:
            row = self.move_in(begun, row, state)
        return self.move_in(begun, row, to_state, **columns) if len(way) > 1 else row

    def move_in(self, begun: Transaction, row: E, to_state: str, **columns: Any) -> E:
        after = self.moved(row, to_state, **columns)
        if isinstance(after, Task) and after.attempt_worker_id == hand_of(after.tenant):
            self.hand_in(begun, after.tenant)
        move(begun, after)
        return after

    def hand_in(self, begun: Transaction, tenant: str = ACME) -> str:
        """The default worker of a tenant, created if necessary."""
        if not begun.lock_workers([hand_of(tenant)]):
            begun.insert_workers([self.worker(id=hand_of(tenant), tenant=tenant, max_concurrent_tasks=1_000_000)])
        return hand_of(tenant)

    def moved(self, row: E, to_state: str, *, trigger: str | None = None, **columns: Any) -> E:
        """The row as it would be after a move, with everything that follows from the state; nothing is stored."""
        machine = self.machine_of(row)
        state, move = machine.state(to_state), _pick(machine.between(row.state, to_state), trigger)
        at = row.entered_at + SECOND
        follows: dict[str, Any] = {
            "state": state.name,
            "phase": state.phase.value,
            "outcome": state.outcome and state.outcome.value,
            "revision": row.revision + 1,
            "trigger": move.trigger,
            "actor": "engine",
            "entered_at": at,
            "started_at": row.started_at or at if state.phase == Phase.ACTIVE else row.started_at,
            "completed_at": at if state.phase == Phase.DONE else None,
        }
        if isinstance(row, Task):
            follows |= _follows_for_task(row, state, at, columns.get("worker_id"))
        return replace(row, **follows | columns)

    def machine_of(self, row: Entity) -> Machine:
        return self._machines[row.machine_id]

    def _beginning(self, machine: str) -> dict[str, Any]:
        initial = MACHINES[machine].initial
        return {
            "id": f"{MACHINES[machine].kind.value}_{next(self._numbers):06}",
            "tenant": ACME,
            "machine_id": self.machine_ids[machine],
            "state": initial.name,
            "phase": initial.phase.value,
            "entered_at": AT,
            "created_at": AT,
        }


def insert(begun: Transaction, *rows: Entity) -> None:
    begun.insert_runs([row for row in rows if isinstance(row, Run)])
    begun.insert_tasks([row for row in rows if isinstance(row, Task)])
    begun.insert_workers([row for row in rows if isinstance(row, Worker)])
    begun.insert_breakers([row for row in rows if isinstance(row, Breaker)])


def move(begun: Transaction, *rows: Entity) -> None:
    """Store all columns that are set of rows that have made one move."""
    for alike, columns in _sort(rows):
        begun.move(alike, columns)


def update(begun: Transaction, *rows: Entity) -> None:
    """Store all columns that are set of rows that have not moved."""
    for alike, columns in _sort(rows):
        begun.update(alike, columns)


def _sort(rows: Iterable[Entity]) -> list[tuple[list[Entity], list[str]]]:
    """Groups of rows of one kind with the same columns set, and these columns."""
    kinds: dict[tuple[type[Entity], tuple[str, ...]], list[Entity]] = {}
    for row in rows:
        columns = tuple(column for column in row.CHANGING if getattr(row, column) is not UNSET)
        kinds.setdefault((type(row), columns), []).append(row)
    return [(alike, list(columns)) for (_, columns), alike in kinds.items()]


def find(store: Store, row: E) -> E:
    """The row as it is stored now."""
    with store.read() as reader:
        found: Entity | None
        match row:
            case Run():
                found = reader.find_run(row.tenant, row.id)
            case Task():
                found = reader.find_task(row.tenant, row.id)
            case Worker():
                found = reader.find_worker(row.tenant, row.id)
            case Breaker(tool=tool):
                found = reader.find_breaker(row.tenant, tool)
    assert isinstance(found, type(row)), f"{row.id} is not stored"
    return found


def hand_of(tenant: str) -> str:
    return HAND if tenant == ACME else f"{HAND}_of_{tenant}"


def attempt_of(task: Task, **columns: Any) -> Attempt:
    """The current attempt of a task, from the columns of the task."""
    assert task.current_attempt
    told: dict[str, Any] = {
        "task_id": task.id,
        "epoch": task.current_attempt,
        "tenant": task.tenant,
        "worker_id": task.attempt_worker_id,
        "started_at": task.attempt_started_at,
        "error": task.attempt_error,
        "exit_code": task.attempt_exit_code,
        "cost_usd": task.attempt_cost_usd,
        "session_id": task.session_id,
        "resumed": task.attempt_resumed,
        "log_path": task.attempt_log_path,
        "tokens_in": task.attempt_tokens_in,
        "tokens_out": task.attempt_tokens_out,
        "cost_is_estimated": task.attempt_cost_is_estimated,
    }
    return Attempt(**told | columns)


def route(machine: Machine, from_state: str, to_state: str) -> list[str]:
    """The states on the shortest path from one to the other, both included."""
    ways = {from_state: [from_state]}
    for state in (frontier := [from_state]):
        for following in machine.allowed(state):
            if following not in ways:
                ways[following] = [*ways[state], following]
                frontier.append(following)
    return ways[to_state]


def _pick(moves: Sequence[Move], trigger: str | None) -> Move:
    return next(move for move in moves if trigger in (None, move.trigger))


def _follows_for_task(row: Task, state: State, at: datetime, worker_id: str | None) -> dict[str, Any]:
    """The columns of the attempt and the worker; a new attempt begins if there is none, or if one is taken over."""
    session = {"session_id": row.session_id or "session"} if "session" in state.needs else {}
    if state.phase != Phase.ACTIVE:
        waits = {"available_at": None if state.phase == Phase.DONE else row.available_at}
        return {
            "current_attempt": None,
            "worker_id": None,
            "lease_expired": False,
            "reserved_usd": ZERO_USD,
            **waits,
            **session,
        }
    fresh = row.current_attempt is None or state.name == row.state
    whose = row.attempt_worker_id
    if fresh:
        whose = hand_of(row.tenant) if worker_id is None else worker_id
    told: dict[str, Any] = {"attempt_resumed": False, "attempt_cost_usd": ZERO_USD, "attempt_cost_is_estimated": False}
    told |= {"attempt_tokens_in": 0, "attempt_tokens_out": 0}
    told |= dict.fromkeys(("attempt_error", "attempt_exit_code", "attempt_log_path"))
    return {
        **({"actor": whose, "attempt_worker_id": whose, "attempt_started_at": at, **told} if fresh else {}),
        "epoch": row.epoch + fresh,
        "current_attempt": row.epoch + fresh,
        "attempt_count": row.attempt_count + fresh,
        "worker_id": whose if "worker" in state.needs else None,
        "available_at": None,
        "lease_expired": False,
        **session,
    }


def timer(entity: Entity | str, purpose: str = "expire", after_seconds: float = 0, **columns: Any) -> Timer:
    name = entity if isinstance(entity, str) else entity.id
    due_at = AT + timedelta(seconds=after_seconds)
    return Timer(
        **{"entity_id": name, "purpose": purpose, "kind": "run", "tenant": ACME, "run_id": name, "revision": 0, **columns},
        due_at=due_at,
    )


def response(**columns: Any) -> StoredResponse:
    said = {"tenant": ACME, "endpoint": "POST /runs", "key": "key", "request_hash": "h", "status": 201, "body": JSON}
    return StoredResponse(**{**said, "created_at": AT, "expires_at": AT + SECOND, **columns})


def ids(rows: Iterable[Entity | BegunTask | EndedTask]) -> list[str]:
    return [row.id for row in rows]
