"""Claims: which tasks a worker gets, each with a new attempt and a larger epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pointsman.engine import breakers, budgets, bulk, limits, runs, tasks, workers
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import WorkerUnavailable
from pointsman.kernel.machine import Phase
from pointsman.store.contract import Wakeup
from pointsman.store.rows import ZERO_USD, Breaker, Lane, Task, TaskKey, Worker

Found = TypeVar("Found", Task, TaskKey)
MOST_PASSED = 1000
"""How many tasks one claim passes by before it gives up."""
OPEN, FULL, SHUT = "open", "full", "shut"
"""How it stands with a tool: full is one that bears no more for now, shut is one whose circuit is open."""


class Claim(Struct, frozen=True, kw_only=True):
    """A task in the hands of a worker; `epoch` goes with all that is reported of it, and to the work as a fencing token."""

    task_id: str
    epoch: int
    run_id: str
    name: str
    payload: Any
    """What was submitted."""
    tool: str | None = None
    attempt_count: int
    has_checks: bool = False
    """After `complete`, report `checks_passed` or `checks_failed`."""
    session_id: str | None = None
    """The session to continue; None for a new one."""
    question: str | None = None
    answer: str | None = None
    comment: str | None = None
    deadline_at: datetime | None = None
    budget_usd: Decimal | None = None
    """What is left of its budget."""


class Claimed(NamedTuple):
    """A task, and those that are like it and go with it."""

    task: Task
    followers: Sequence[TaskKey] = ()


def claim(work: Work, worker: Worker, limit: int, run_id: str | None = None) -> list[Claimed]:
    """Hand tasks to a worker, of any run or of one that is in hand: as many as are there, fit, and it has room for."""
    if worker.phase != Phase.DONE:
        workers.heard_of(work, worker, by_claim=True)
    if worker.phase not in workers.AVAILABLE or worker.drain_wanted:
        is_leaving = worker.drain_wanted and worker.phase in workers.AVAILABLE
        raise WorkerUnavailable(worker.id, f"{worker.state} and draining" if is_leaving else worker.state)
    room = min(limit, worker.max_concurrent_tasks - workers.count_held(work, worker))
    claimed: list[Claimed] = []
    passed: set[str] = set()
    while room > 0 and len(passed) < MOST_PASSED:
        found = _find_candidates(work, worker, room, passed, run_id)
        got = [candidate for candidate in found if _claim_one(work, worker, candidate.task)]
        claimed += got
        room -= sum(1 + len(candidate.followers) for candidate in got)
        if len(got) == len(found):
            break
        # A breaker, a limit or a budget stood in the way of some: those behind them get their turn.
        passed |= {candidate.task.id for candidate in found if _still_waits(candidate.task)}
        work.flush()
    return claimed


def _still_waits(task: Task) -> bool:
    return task.phase == Phase.QUEUED or task.lease_expired


def describe(work: Work, claimed: list[Claimed]) -> list[Claim]:
    """What a worker needs to know of the tasks that it got."""
    return [claim for each in claimed for claim in _describe_each(work, each)]


def _describe_each(work: Work, claimed: Claimed) -> Iterator[Claim]:
    claim = _describe_one(work, claimed.task)
    yield claim
    for key in claimed.followers:
        yield replace(claim, task_id=key.id, name=key.name, payload=msgspec.json.decode(key.payload))


def _find_candidates(work: Work, worker: Worker, room: int, passed: Set[str], run_id: str | None) -> list[Claimed]:
    """As many as there is room for, without those that were passed by."""
    work.flush()
    limit = room + len(passed)
    lane_ids = _open_lanes(work, worker)
    if not lane_ids:
        return []
    if worker.run_id:
        found = _find_allocated(work, worker.run_id, lane_ids, limit) if run_id in (None, worker.run_id) else []
        return _take_in_hand(work, _without(found, passed, room))
    lost = _without(work.transaction.select_reclaimable(worker.tenant, lane_ids, limit, run_id), passed, room)
    candidates = _take_in_hand(work, lost)
    if len(lost) < room:
        if run_id is None:
            keys = _find_claimable(work, worker.tenant, lane_ids, room, limit)
        else:
            keys = work.transaction.select_claimable_of_run(run_id, lane_ids, limit)
        candidates += _take_in_groups(work, worker, _without(keys, passed, room - len(lost)))
    return candidates


def _find_allocated(work: Work, run_id: str, lane_ids: Sequence[int], limit: int) -> Sequence[Task]:
    if not work.runs.rows:
        work.lock_runs([run_id])
    elif run_id not in work.runs.rows:
        work.wakeups |= Wakeup.TASKS  # a colleague may hold it: whoever waits comes back alone, and waits for the lock
    return work.transaction.select_allocated(run_id, lane_ids, limit)


def _find_claimable(work: Work, tenant: str, lane_ids: Sequence[int], room: int, limit: int) -> Sequence[TaskKey]:
    """Whoever holds no run may wait for those that others hold; docs/decisions/0004 says what can come of that. Another one is
    told to come back without it.
    """
    keys = work.transaction.select_claimable(tenant, lane_ids, limit)
    waiting = [] if keys else work.transaction.find_claimable_runs(tenant, lane_ids, room)
    if waiting and work.runs.rows:
        work.wakeups |= Wakeup.TASKS
    elif waiting:
        work.load(run_ids=waiting)
        keys = work.transaction.select_claimable(tenant, lane_ids, limit)
    return keys


def _without(found: Sequence[Found], passed: Set[str], room: int) -> list[Found]:
    return [each for each in found if each.id not in passed][:room]


def _take_in_hand(work: Work, found: Sequence[Task]) -> list[Claimed]:
    work.tasks.hold(found)
    work.load(run_ids={task.run_id for task in found})
    for task in found:
        work.tasks.rows[task.id].payload = task.payload  # it may have been in hand already, and in brief
    return [Claimed(work.tasks.rows[task.id]) for task in found]


def _take_in_groups(work: Work, worker: Worker, keys: Sequence[TaskKey]) -> list[Claimed]:
    """What is claimable, in the order in which it was found; those that are alike behind the first of them."""
    if not keys:
        return []
    work.load(run_ids={key.run_id for key in keys})
    groups = {group[0].id: group for group in bulk.sort(work, keys)}
    firsts = [key.id for key in keys if key.id in groups]
    rows = {task.id: task for task in work.transaction.select_to_claim(firsts)}
    candidates: list[Claimed] = []
    for candidate in _take_in_hand(work, [rows[task_id] for task_id in firsts]):
        group = groups[candidate.task.id]
        if len(group) == 1:
            candidates.append(candidate)
        elif bulk.lead(work, candidate.task, group, "claim", tasks.Report(worker=worker)):
            candidates.append(Claimed(candidate.task, group[1:]))
        else:
            others = work.transaction.select_to_claim([key.id for key in group[1:]])
            candidates += [candidate, *_take_in_hand(work, others)]
    return candidates


def _open_lanes(work: Work, worker: Worker) -> list[int]:
    """The lanes that this worker can serve and whose tool lets something through."""
    able = workers.capabilities(worker)
    lanes = [lane for lane in work.lanes_of(worker.tenant) if _fits(lane, able)]
    tools = {lane.tool for lane in lanes if lane.tool}
    guarded = work.transaction.list_guarded_breakers(worker.tenant) if tools else []
    found = {breaker.tool: _look_at(work, breaker) for breaker in guarded if breaker.tool in tools}
    full = {tool for tool, way in found.items() if way == FULL}
    shut = {tool for tool, way in found.items() if way == SHUT}
    return [lane.id for lane in lanes if lane.tool not in full and (lane.fails_fast or lane.tool not in shut)]


def _look_at(work: Work, seen: Breaker) -> str:
    """Looked at without a lock, because runs are locked before breakers; whoever claims locks it, and looks again."""
    breaker = work.breakers.rows.get(seen.id)
    if not breakers.admits(breaker or seen):
        return SHUT
    if breaker:
        return OPEN if limits.has_room(work, breaker) else FULL
    at_work = 0 if seen.max_concurrent is None else work.transaction.count_at_work(seen.tenant, seen.tool)
    return FULL if limits.is_full(seen, at_work, work.now) else OPEN


def _fits(lane: Lane, able: set[str]) -> bool:
    return lane.capabilities == "[]" or able.issuperset(msgspec.json.decode(lane.capabilities, type=list[str]))


def _claim_one(work: Work, worker: Worker, task: Task) -> bool:
    run = work.runs.rows[task.run_id]
    breaker = breakers.of_task(work, task)
    shut = breaker is not None and not breakers.admits(breaker)
    if shut and not work.lane(task).fails_fast:
        return False
    if breaker and not shut and not limits.has_room(work, breaker):
        return False
    if tasks.attempts_used_up(task):
        return False  # somebody put it back by hand: the doctor grants another one, and those behind it get their turn
    room = budgets.claim_room(run, task)
    if room is None and not budgets.can_never_fit(run, task):
        return False
    report = tasks.Report(worker=worker)
    cause = Cause(worker.id, metadata={"worker_id": worker.id, "epoch": task.epoch + 1})
    if tasks.try_send(work, task, "claim", cause, report):
        return False
    if run.phase == Phase.QUEUED and not run.allocates:
        runs.try_send(work, run, "start", Cause(reason=f"{task.name} was claimed first"), facts=runs.facts_of(run))
    if shut:
        assert breaker
        error = tasks.as_error(str(breakers.refusal(work, breaker)), type="circuit_open")
        tasks.try_send(work, task, "fail", Cause(reason=str(breakers.refusal(work, breaker))), tasks.Report(error=error))
        return False
    if room is None:
        overspend(work, task, budgets.explain_want(run, task))
        return False
    budgets.reserve(work, run, task, room)
    if breaker:
        breakers.take_probe(work, breaker, task)
        limits.begin(work, breaker, task.entered_at)
    return True


def overspend(work: Work, task: Task, reason: str) -> None:
    """Machines without a state for it take it as a failure that no retry can mend."""
    signal = "overspend" if work.takes(task, "overspend") else "fail"
    tasks.try_send(work, task, signal, Cause(reason=reason), tasks.Report(error=tasks.as_error(reason), retryable=False))


def _always_checked(work: Work, task: Task) -> bool:
    """Some machines go through their checks even when there are none."""
    moves = work.machine(task).moves(task.state, "complete")
    return any("run_checks" in move.effects and not move.guards for move in moves)


def _describe_one(work: Work, task: Task) -> Claim:
    assert isinstance(task.payload, str), "whoever claims reads the payload"
    seconds = read_policy(task.policy).timeout_seconds
    return Claim(
        task_id=task.id,
        epoch=task.epoch,
        run_id=task.run_id,
        name=task.name,
        payload=msgspec.json.decode(task.payload),
        tool=work.lane(task).tool,
        attempt_count=task.attempt_count,
        has_checks=task.has_checks or _always_checked(work, task),
        session_id=task.session_id,
        question=task.question,
        answer=task.answer,
        comment=task.comment,
        deadline_at=None if seconds is None else task.entered_at + timedelta(seconds=seconds),
        budget_usd=None if task.budget_usd is None else max(task.budget_usd - task.cost_usd, ZERO_USD),
    )
