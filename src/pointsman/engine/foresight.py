"""What a batch will probably ask of its transaction: a store with a network sends that together with BEGIN, in one round trip.

    foresee ─▶ BEGIN, locks, ends, claims ─▶ decide asks the same ─▶ COMMIT          two round trips
                                             └ it asks something else ─▶ ROLLBACK, and again without foresight

The locks follow from the operations, and a worker is expected to claim as it did the last time. What is foreseen decides
nothing: the engine decides as it always does, and gets an answer only to the very question that it asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from pointsman.engine import plain
from pointsman.engine.machines import Machines
from pointsman.engine.operation import Caller, Needs, Operation
from pointsman.engine.operations.attempts import ReportAttempts
from pointsman.engine.operations.workers import ClaimTasks
from pointsman.engine.work import Work
from pointsman.store.contract import Foresee, Transaction
from pointsman.store.rows import PlainReport, Worker

CAREFUL_BATCHES = 32
"""For so many batches of a kind after a mistake, only so much is foreseen as was right."""
MOST_WORKERS = 1000
MOST_SHARED_LANES = 4
"""A claim that shares its runs locks as many tasks of each lane as it wants."""
Kind = tuple[frozenset[type[Operation[Any]]], bool]
"""The operations of a batch, and whether they report ends of plain tasks."""


@dataclass(slots=True)
class LastClaim:
    """Of what a worker claimed tasks the last time, and how many it holds as far as this process knows."""

    worker: Worker
    tenant: str
    lane_ids: Sequence[int]
    run_id: str | None
    was_filled: bool
    """Whether the short way alone has begun as many tasks as the worker had room for."""
    held: int


@dataclass(slots=True)
class Foresight:
    machines: Machines
    _claims: dict[str, LastClaim] = field(default_factory=dict)
    _kind: Kind = (frozenset(), False)
    """Of the batch that was foreseen last."""
    _limits: dict[Kind, tuple[int | None, int]] = field(default_factory=dict)
    """How many questions were right when there was a mistake, and for how many batches no more are foreseen. None is all: then
    more was asked, which is a mistake only if the transaction shares its runs."""
    _pauses: dict[Kind, int] = field(default_factory=dict)
    """For how many batches nothing is shared after such a mistake: twice as many each time, one less with each that shares."""

    def foresee(self, operations: Sequence[Operation[Any]], needs: Sequence[Needs]) -> Foresee | None:
        """What these operations will probably ask; None if that cannot be foreseen."""
        if any(each.adds_work or each.held_by for each in needs):
            return None
        self._kind = frozenset(map(type, operations)), any(each.reports for each in needs)
        most, left = self._limits.pop(self._kind, (None, 0))
        if left:
            self._limits[self._kind] = most, left - 1
        if most == 0:
            return None
        reports = [*plain.find_reports(operations, needs)]
        is_plain = sum(len(told) for _, told in reports) == sum(len(each.task_ids) for each in needs)
        last = self._find_last(operations) if is_plain else None
        is_usual = last is not None and last.was_filled and len(last.lane_ids) <= MOST_SHARED_LANES
        shares = is_usual and most is None and not left
        return Foresee(partial(self._ask, operations, needs, reports, last), most, shares)

    def learn(self, work: Work) -> None:
        """Remember what workers have claimed, once that is committed."""
        if len(self._claims) > MOST_WORKERS:
            self._claims.clear()
        if work.transaction.shares_runs:
            self._pauses[self._kind] = max(self._pauses.get(self._kind, 0) - 1, 0)
        for worker_id, change in work.held_change.items():
            if worker_id in self._claims:
                self._claims[worker_id].held += change
        for worker_id, asked in work.asked_to_begin.items():
            self._claims.pop(worker_id, None)
            if len(asked) == 1:
                held = work.count_held([worker_id])[worker_id]
                last = self._claims[worker_id] = LastClaim(work.workers.rows[worker_id], *asked[0], held)
                if not last.was_filled and self._limits.get(self._kind, (0, 0))[0] is None:
                    del self._limits[self._kind]  # it was out of tasks: that is why it asked more

    def miss(self, right: int | None) -> None:
        """The last batch has asked for something else, or for more; so many questions before that were right."""
        pause = CAREFUL_BATCHES
        if right is None:
            pause = min(2 * self._pauses.get(self._kind, 0) + 1, CAREFUL_BATCHES)
            self._pauses[self._kind] = pause
        self._limits[self._kind] = right, pause

    def _find_last(self, operations: Sequence[Operation[Any]]) -> LastClaim | None:
        """How the only claim of these operations went the last time, if nothing but reports goes along with it."""
        claims = [operation for operation in operations if isinstance(operation, ClaimTasks)]
        if len(claims) != 1 or not self._kind[0] <= {ReportAttempts, ClaimTasks}:
            return None
        last = self._claims.get(claims[0].worker_id)
        return last if last and last.run_id == claims[0].run_id else None

    def _ask(
        self,
        operations: Sequence[Operation[Any]],
        needs: Sequence[Needs],
        reports: Sequence[tuple[Caller, Sequence[PlainReport]]],
        last: LastClaim | None,
        transaction: Transaction,
        now: datetime,
    ) -> None:
        task_ids = [task_id for each in needs for task_id in each.task_ids]
        transaction.lock_runs(sorted({run_id for each in needs for run_id in each.run_ids}), of_tasks=task_ids)
        for caller, told in reports:
            moves = plain.list_moves(self.machines, "complete")
            transaction.end_plain_tasks(caller.tenant, told, moves, now, caller.key_id)
        ended = sum(len(told) for _, told in reports)
        if not ended:
            transaction.select_tasks(task_ids)
        elif ended < len(task_ids):
            return  # which of the others are to be read shows only then
        transaction.lock_workers(sorted({worker_id for each in needs for worker_id in each.worker_ids}))
        if last is None:
            return
        transaction.count_held([last.worker.id])
        (limit,) = (operation.limit for operation in operations if isinstance(operation, ClaimTasks))
        room = min(limit, last.worker.max_concurrent_tasks - max(last.held - ended, 0))
        moves = plain.list_moves(self.machines, "claim")
        transaction.begin_plain_tasks(last.worker, last.tenant, last.lane_ids, room, moves, now, last.run_id)
