"""What a store can do: one method a query, the same on every database.

    Store ── begin() ──▶ Transaction ── commit() | rollback()
      │
      └──── read() ────▶ Reader

Nothing here decides anything. A `Transaction` belongs to the one writer of its store; readers may be many.

Who changes anything of a run holds the lock of its row first, and runs are locked in the order of their ids; workers come after
runs, breakers after workers. What is read below a locked run stays so. Where the order cannot be kept (a claim that waits for a
run, an allocation), the database ends one of two that wait for each other, and it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import IntFlag
from typing import Protocol

from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Machine
from pointsman.store.rows import (
    Attempt,
    Breaker,
    Dependency,
    Entity,
    Lane,
    MachineRow,
    Notice,
    Result,
    Run,
    Situation,
    StoredResponse,
    Subtasks,
    Task,
    TaskKey,
    Timer,
    Transition,
    Worker,
)

MOST_DIGITS = 19
"""A position has fewer, so that it fits into 64 bits."""


class Wakeup(IntFlag):
    """What a commit has for others, so that they need not look all the time."""

    NOTHING = 0
    TASKS = 1
    """Some task may be claimed."""
    TIMERS = 2
    """A timer was set."""
    EVENTS = 4
    """Something has moved."""
    WORKERS = 8
    """An attempt was canceled, paused or lost, or a worker was told to do something."""


def read_position(after: object) -> int:
    """Where a reader of the stream left off; nothing is before the beginning."""
    if after is None:
        return 0
    if not (isinstance(after, str) and after.isascii() and after.isdigit() and len(after) < MOST_DIGITS):
        message = f"{str(after)[:50]!a} is not a position of the event stream. Hand back a position that was read from it."
        raise RequestInvalid([Problem("after", message)])
    return int(after)


class Reader(Protocol):
    """Queries that change nothing. Those that are asked for a tenant see nothing of another."""

    def now(self) -> datetime:
        """The instant, as the database tells it; in a transaction always the same."""
        ...

    def find_run(self, tenant: str, run_id: str) -> Run | None: ...
    def find_task(self, tenant: str, task_id: str) -> Task | None: ...
    def find_worker(self, tenant: str, worker_id: str) -> Worker | None: ...
    def find_breaker(self, tenant: str, tool: str) -> Breaker | None: ...
    def list_runs(self, tenant: str, *, phase: str | None, after: str | None, limit: int) -> list[Run]: ...
    def list_tasks(self, tenant: str, run_id: str) -> list[Task]: ...
    def count_tasks(self, tenant: str, run_ids: Collection[str]) -> list[tuple[str, str, str | None, int]]:
        """(run, phase, outcome, how many) of the tasks of these runs."""
        ...

    def list_machines(self) -> list[MachineRow]: ...
    def list_workers(self, tenant: str) -> list[Worker]: ...
    def list_breakers(self, tenant: str) -> list[Breaker]: ...
    def list_results(self, tenant: str, run_id: str, names: Collection[str]) -> list[Result]:
        """Of these tasks of a run, and of their parts."""
        ...

    def list_attempts(self, tenant: str, task_id: str) -> list[Attempt]: ...
    def list_dependencies(self, tenant: str, run_id: str) -> list[Dependency]: ...
    def list_timers(self, tenant: str) -> list[Timer]: ...
    def list_history(self, tenant: str, entity_id: str) -> list[Transition]: ...
    def list_transitions(self, tenant: str, *, after: str | None, limit: int, run_id: str | None) -> list[Transition]:
        """The stream behind a position, in its one order; only what no running transaction can still come before."""
        ...

    def is_held_back(self) -> bool:
        """Whether the stream goes on behind what is shown of it, as soon as a transaction that still runs has ended."""
        ...

    def list_notices(self, tenant: str, *, limit: int) -> list[Notice]:
        """The latest notices, newest first."""
        ...

    def last_position(self) -> str | None:
        """Where the stream ends now: reading on from here shows only what is new."""
        ...

    def count_overstayed(self, now: datetime, limits: Sequence[tuple[int, str, float]]) -> list[tuple[str, str, str, datetime]]:
        """(kind, id, state, entered_at) of whatever has been in a state of a machine for longer than its limit in seconds."""
        ...

    def next_due(self) -> datetime | None:
        """When the next timer is due."""
        ...

    def next_silence(self) -> datetime | None:
        """When the lease of the next worker ends, unless it is heard of before."""
        ...

    def list_stalled_runs(self) -> list[tuple[str, str]]:
        """(id, tenant) of every run under way in which nothing moves and nobody is asked for anything."""
        ...

    def list_unended_runs(self) -> list[tuple[str, int, str]]:
        """(id, machine, state) of every run whose tasks have all succeeded and that has not ended."""
        ...

    def list_failed_tasks(self, limit: int) -> list[Task]:
        """Tasks that failed for good in runs that have not succeeded, the latest first, of all tenants."""
        ...

    def find_tool(self, lane_id: int) -> str | None: ...
    def list_tripped_breakers(self) -> list[Breaker]:
        """Breakers that do not simply let everything through, of all tenants."""
        ...

    def list_disagreements(self) -> list[tuple[str, str, str]]:
        """(kind, id, what) of every stored value that a recount does not confirm."""
        ...

    def measure_transitions(self, tenant: str) -> list[tuple[str, str | None, str, int, float]]:
        """(machine, from, to, count, mean seconds in the state left) of every move that has been made."""
        ...


class Transaction(Reader, Protocol):
    """Everything that one commit reads and writes. Writing methods take whole batches, and do nothing for empty ones."""

    def commit(self, news: Wakeup = Wakeup.NOTHING) -> None:
        """Make it durable, and tell whoever waits for `news`."""
        ...

    def rollback(self) -> None: ...

    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        """Store these columns of rows of one kind that have made one move, so that their revision is one higher.

        When somebody else has moved such a row meanwhile, this raises `Conflict`; so does `update`.
        """
        ...

    def move_in_bulk(self, row: Entity, ids: Sequence[str], columns: Sequence[str]) -> None:
        """Store these columns of `row` in all of these rows, which were like it and make the same move."""
        ...

    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        """Store these columns of rows of one kind that stand where they stood."""
        ...

    def insert_machine(self, machine: Machine, *, fingerprint: str, definition: str) -> MachineRow: ...
    def count_lanes(self) -> int:
        """How many lanes there are, of all tenants."""
        ...

    def list_lanes(self) -> list[Lane]: ...
    def insert_lane(self, tenant: str, tool: str | None, capabilities: str, *, fails_fast: bool) -> Lane:
        """The lane of that description, new or known."""
        ...

    def lock_runs(self, run_ids: Collection[str], of_tasks: Collection[str] = ()) -> list[Run]:
        """Lock these runs, and those that these tasks belong to; what is unknown is left out."""
        ...

    def insert_runs(self, runs: Sequence[Run]) -> None: ...

    def list_allocatable_runs(self, limit: int) -> list[str]:
        """Runs that wait for workers of their own, or have lost some of them; the oldest first."""
        ...

    def assess_runs(self, run_ids: Collection[str]) -> list[Situation]: ...
    def open_runs(self, run_ids: Collection[str], *, is_open: bool) -> None:
        """Let the tasks of these runs begin, or keep them from it."""
        ...

    def select_tasks(self, task_ids: Collection[str]) -> list[Task]: ...
    def select_run_tasks(self, run_id: str, phases: Collection[str]) -> list[Task]: ...
    def find_task_names(self, run_id: str) -> dict[str, str]:
        """The ids of a run's tasks by their names."""
        ...

    def select_task_keys(self, task_ids: Collection[str]) -> list[TaskKey]: ...
    def select_to_claim(self, task_ids: Collection[str]) -> list[Task]:
        """These tasks with payload."""
        ...

    def select_claimable(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        """The first claimable tasks of these lanes, by priority and age, without those of runs that others lock."""
        ...

    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        """The same of one run, which is locked."""
        ...

    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        """The same for a worker that belongs to a run."""
        ...

    def select_reclaimable(self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        """Active tasks, of one run or of any, whose attempt is lost and whose machine lets the next claim take them over."""
        ...

    def find_claimable_runs(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Whose tasks could be claimed, whether locked by somebody or not."""
        ...

    def insert_tasks(self, tasks: Sequence[Task]) -> None: ...

    def insert_dependencies(self, dependencies: Sequence[Dependency]) -> None: ...
    def release_dependents(self, task_ids: Collection[str]) -> list[str]:
        """Count these tasks as succeeded for all that depend on them; whoever has nothing left to wait for is returned."""
        ...

    def find_doomed(self, task_ids: Collection[str]) -> list[str]:
        """Those of these tasks that depend on something that has failed for good."""
        ...

    def find_dependents(self, task_ids: Collection[str]) -> list[str]: ...
    def assess_subtasks(self, parent_ids: Collection[str]) -> list[Subtasks]: ...

    def lock_workers(self, worker_ids: Collection[str]) -> list[Worker]: ...
    def insert_workers(self, workers: Sequence[Worker]) -> None: ...
    def count_held(self, worker_ids: Collection[str]) -> dict[str, int]:
        """How many tasks these workers hold; those without any are left out."""
        ...

    def find_held_tasks(self, worker_ids: Collection[str]) -> list[tuple[str, str, str]]:
        """(worker, task, run) of every attempt that these workers have under way."""
        ...

    def find_silent_workers(self, now: datetime, limit: int) -> list[str]:
        """Workers whose lease is over and who still hold something, or have not been declared missing yet."""
        ...

    def find_free_workers(self, tenant: str, limit: int) -> list[str]:
        """Workers that may take work, hold none and belong to no run."""
        ...

    def find_run_workers(self, run_ids: Collection[str]) -> list[str]: ...

    def lock_breakers(self, tenant: str, tools: Collection[str]) -> list[Breaker]: ...
    def list_guarded_breakers(self, tenant: str) -> list[Breaker]:
        """Those that do not simply let everything through, or not any number, as they are, without a lock."""
        ...

    def count_at_work(self, tenant: str, tool: str) -> int:
        """How many attempts of a tool go on, those that were lost aside."""
        ...

    def insert_breakers(self, breakers: Sequence[Breaker]) -> None: ...

    def set_timers(self, timers: Sequence[Timer]) -> None: ...
    def drop_timers(self, entity_ids: Collection[str]) -> None: ...
    def find_due_timers(self, now: datetime, limit: int) -> list[Timer]: ...
    def take_timers(self, timers: Sequence[Timer]) -> list[Timer]:
        """Remove these timers; only those that were still there are returned, so that each fires once."""
        ...

    def recount_dependencies(self, task_ids: Collection[str]) -> None:
        """Count anew what these tasks wait for."""
        ...

    def insert_notices(self, notices: Sequence[Notice]) -> None: ...

    def find_response(self, tenant: str, endpoint: str, key: str) -> StoredResponse | None: ...
    def insert_response(self, response: StoredResponse) -> bool:
        """Whether it was stored; a twin that committed first wins."""
        ...

    def purge_responses(self, now: datetime, limit: int) -> int: ...

    def ensure_tenant(self, tenant: str, now: datetime) -> None: ...


class Store(Protocol):
    """A database. `begin` is for the one writer; `read` may be called from any thread."""

    url: str

    def begin(self) -> Transaction: ...
    def read(self) -> AbstractContextManager[Reader]: ...
    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        """Call `heard` for the news of every commit of any process; returns what ends it. `heard` must not block."""
        ...

    def close(self) -> None: ...
