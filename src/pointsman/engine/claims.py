"""Claims: which tasks a worker gets, each with a new attempt and a larger epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pointsman.engine import breakers, budgets, bulk, limits, runs, tasks, workers
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import WorkerUnavailable
from pointsman.kernel.machine import Phase, Transition
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Breaker, Lane, Task, TaskKey, Worker

Found = TypeVar("Found", Task, TaskKey)
MOST_PASSED = 1000
"""How many tasks one claim passes over before it gives up."""
TENANT_PAGE = 16
"""How many tenants with waiting tasks are looked up at once."""


class Claim(Struct, frozen=True, kw_only=True):
    """A task that a worker holds. Every report about it carries `epoch`, which is also the fencing token of the work."""

    task_id: str
    epoch: int
    tenant: str
    """Whose task it is: a shared worker reports in this tenant."""
    run_id: str
    name: str
    payload: Any
    tool: str | None = None
    attempt_count: int
    has_checks: bool = False
    """Its checks have a state of their own: report `complete`, run them, and report `checks_passed` or `checks_failed`."""
    session_id: str | None = None
    """The session to continue; None for a new one."""
    question: str | None = None
    answer: str | None = None
    comment: str | None = None
    is_reviewed: bool = False
    """A person accepts or rejects its result."""
    deadline_at: datetime | None = None
    budget_usd: Decimal | None = None
    """How much the attempt may spend: what is left of the budgets of its task, its run and its tenant."""
    traceparent: str | None = None
    """The span that submitted the run."""


class Claimed(NamedTuple):
    """A task, and the tasks like it that move together with it."""

    task: Task
    followers: Sequence[TaskKey] = ()


def claim(work: Work, worker: Worker, limit: int, run_id: str | None = None) -> list[Claimed]:
    """Give tasks to a worker, of any run or of one that is loaded: as many as are waiting, fit, and it has room for."""
    if worker.phase != Phase.DONE:
        workers.heard_of(work, worker, by_claim=True)
    if worker.phase not in workers.AVAILABLE or worker.drain_wanted:
        is_leaving = worker.drain_wanted and worker.phase in workers.AVAILABLE
        raise WorkerUnavailable(worker.id, f"{worker.state} and draining" if is_leaving else worker.state)
    room = min(limit, worker.max_concurrent_tasks - workers.count_held(work, worker))
    if run_id is not None:
        return _claim_of_tenant(work, worker, work.runs.rows[run_id].tenant, room, run_id)
    if worker.run_id is not None:
        return _claim_of_tenant(work, worker, worker.last_tenant or worker.tenant, room)
    if not worker.is_shared:
        return _claim_of_tenant(work, worker, worker.tenant, room)
    return _claim_in_turn(work, worker, room)


def _claim_in_turn(work: Work, worker: Worker, room: int) -> list[Claimed]:
    """Tenants take turns. Each gets an equal share; the room that a tenant leaves goes to those that have more tasks."""
    claimed: list[Claimed] = []
    shares: Counter[str] = Counter()
    turns = _tenants_in_turn(work, worker)
    while room > 0 and (waiting := list(islice(turns, room))):
        while room > 0 and waiting:
            share = -(-room // len(waiting))
            for tenant in tuple(waiting):
                wanted = min(share, room)
                got = _claim_of_tenant(work, worker, tenant, wanted)
                count = sum(1 + len(each.followers) for each in got)
                claimed += got
                room -= count
                shares[tenant] += count
                if count < wanted:
                    waiting.remove(tenant)
    if claimed:
        # Had they got one task at a time, the last one would have gone to the last tenant with the largest share.
        worker.last_tenant = max(reversed(shares), key=shares.__getitem__)
        work.workers.change(worker)
    return claimed


def _tenants_in_turn(work: Work, worker: Worker) -> Iterator[str]:
    """Every tenant that it serves and that may have tasks, beginning after the one that it served last."""
    last = worker.last_tenant or ""
    served = workers.served_tenants(worker)
    if served is None:
        return chain(_waiting_tenants(work, last), takewhile(lambda tenant: tenant <= last, _waiting_tenants(work, "")))
    return iter(sorted(served, key=lambda tenant: (tenant <= last, tenant)))


def _waiting_tenants(work: Work, after: str) -> Iterator[str]:
    while page := work.transaction.find_waiting_tenants(after, TENANT_PAGE):
        yield from page
        after = page[-1]


def _claim_of_tenant(work: Work, worker: Worker, tenant: str, room: int, run_id: str | None = None) -> list[Claimed]:
    claimed: list[Claimed] = []
    passed: set[str] = set()
    if room > 0 and budgets.is_closed(work.accounts.get(tenant)):
        return claimed
    while room > 0 and len(passed) < MOST_PASSED:
        found = _find_candidates(work, worker, tenant, room, passed, run_id)
        got = [candidate for candidate in found if _claim_one(work, worker, candidate.task)]
        claimed += got
        room -= sum(1 + len(candidate.followers) for candidate in got)
        if len(got) == len(found):
            break
        # A breaker, a limit or a budget refused some of them: the tasks behind those get their turn.
        passed |= {candidate.task.id for candidate in found if _still_waits(candidate.task)}
        work.flush()
    return claimed


def _still_waits(task: Task) -> bool:
    return task.phase == Phase.QUEUED or task.lease_expired


def describe(work: Work, claimed: list[Claimed]) -> list[Claim]:
    """What the worker needs to know about the tasks that it got."""
    return [claim for each in claimed for claim in _describe_each(work, each)]


def _describe_each(work: Work, claimed: Claimed) -> Iterator[Claim]:
    claim = _describe_one(work, claimed.task)
    yield claim
    for key in claimed.followers:
        yield replace(claim, task_id=key.id, name=key.name, payload=msgspec.json.decode(key.payload))


def _find_candidates(work: Work, worker: Worker, tenant: str, room: int, passed: Set[str], run_id: str | None) -> list[Claimed]:
    """As many tasks of a tenant as there is room for, without those that were passed over."""
    work.flush()
    limit = room + len(passed)
    lane_ids = _find_lanes(work, worker, tenant)
    if not lane_ids:
        return []
    if worker.run_id:
        found = _find_allocated(work, worker.run_id, lane_ids, limit) if run_id in (None, worker.run_id) else []
        return _load(work, _without(found, passed, room))
    lost = _without(work.transaction.select_reclaimable(tenant, lane_ids, limit, run_id), passed, room)
    candidates = _load(work, lost)
    if len(lost) < room:
        if run_id is None:
            keys = _find_claimable(work, tenant, lane_ids, room, limit)
        else:
            keys = work.transaction.select_claimable_of_run(run_id, lane_ids, limit)
        candidates += _load_in_groups(work, worker, _without(keys, passed, room - len(lost)))
    return candidates


def _find_allocated(work: Work, run_id: str, lane_ids: Sequence[int], limit: int) -> Sequence[Task]:
    if work.try_lock_run(run_id) is None:
        # To wait for a run after the worker could be a deadlock. The next claim of this worker locks its run first.
        work.wakeups |= Wakeup.TASKS
        return []
    return work.transaction.select_allocated(run_id, lane_ids, limit)


def _find_claimable(work: Work, tenant: str, lane_ids: Sequence[int], room: int, limit: int) -> Sequence[TaskKey]:
    """A claim without locks waits for runs that others have locked (docs/decisions/0004 says why that is safe). A claim that
    holds locks does not wait: the worker is woken to claim again.
    """
    keys = work.transaction.select_claimable(tenant, lane_ids, limit)
    locked = [] if keys else work.transaction.find_claimable_runs(tenant, lane_ids, room)
    if locked and work.runs.rows:
        work.wakeups |= Wakeup.TASKS
    elif locked:
        work.load(run_ids=locked)
        keys = work.transaction.select_claimable(tenant, lane_ids, limit)
    return keys


def _without(found: Sequence[Found], passed: Set[str], room: int) -> list[Found]:
    return [each for each in found if each.id not in passed][:room]


def _load(work: Work, found: Sequence[Task]) -> list[Claimed]:
    work.tasks.hold(found)
    work.load(run_ids={task.run_id for task in found})
    for task in found:
        work.tasks.rows[task.id].payload = task.payload  # it may have been loaded before, without its payload
    return [Claimed(work.tasks.rows[task.id]) for task in found]


def _load_in_groups(work: Work, worker: Worker, keys: Sequence[TaskKey]) -> list[Claimed]:
    """Claimable tasks in the order in which they were found; tasks that are alike come behind the first of them."""
    if not keys:
        return []
    work.load(run_ids={key.run_id for key in keys})
    groups = {group[0].id: group for group in bulk.sort(work, keys)}
    firsts = [key.id for key in keys if key.id in groups]
    rows = {task.id: task for task in work.transaction.select_to_claim(firsts)}
    candidates: list[Claimed] = []
    for candidate in _load(work, [rows[task_id] for task_id in firsts]):
        group = groups[candidate.task.id]
        if len(group) == 1:
            candidates.append(candidate)
        elif bulk.lead(work, candidate.task, group, "claim", tasks.Report(worker=worker)):
            candidates.append(Claimed(candidate.task, group[1:]))
        else:
            others = work.transaction.select_to_claim([key.id for key in group[1:]])
            candidates += [candidate, *_load(work, others)]
    return candidates


def _find_lanes(work: Work, worker: Worker, tenant: str) -> list[int]:
    """The lanes of a tenant whose tasks this worker can do and may begin now."""
    able = workers.capabilities(worker)
    lanes = [lane for lane in work.lanes_of(tenant) if _fits(lane, able)]
    tools = {lane.tool for lane in lanes if lane.tool}
    guarded = work.transaction.list_guarded_breakers(tenant) if tools else []
    circuit_open, at_limit = set(), set()
    for seen in [breaker for breaker in guarded if breaker.tool in tools]:
        # Runs are locked before breakers, so this one may not be locked yet. The claim locks it, and checks again.
        breaker = work.breakers.rows.get(seen.id)
        if not breakers.admits(breaker or seen):
            circuit_open.add(seen.tool)
        elif not (limits.has_room(work, breaker) if breaker else _seems_to_have_room(work, seen)):
            at_limit.add(seen.tool)
    return [lane.id for lane in lanes if lane.tool not in at_limit and (lane.fails_fast or lane.tool not in circuit_open)]


def _seems_to_have_room(work: Work, seen: Breaker) -> bool:
    at_work = 0 if seen.max_concurrent is None else work.transaction.count_at_work(seen.tenant, seen.tool)
    return not limits.is_full(seen, at_work, work.now)


def _fits(lane: Lane, able: set[str]) -> bool:
    return lane.capabilities == "[]" or able.issuperset(msgspec.json.decode(lane.capabilities, type=list[str]))


def _claim_one(work: Work, worker: Worker, task: Task) -> bool:
    run = work.runs.rows[task.run_id]
    breaker = breakers.of_task(work, task)
    circuit_open = breaker is not None and not breakers.admits(breaker)
    if circuit_open and not work.lane(task).fails_fast:
        return False
    if breaker and not circuit_open and not limits.has_room(work, breaker):
        return False
    if tasks.attempts_used_up(task):
        return False  # a person put it back into the queue by hand: the doctor grants another attempt
    room = budgets.claim_room(run, task)
    if room is None and not budgets.can_never_fit(run, task):
        return False
    report = tasks.Report(worker=worker)
    cause = Cause(worker.id, metadata={"worker_id": worker.id, "epoch": task.epoch + 1})
    if tasks.try_send(work, task, "claim", cause, report):
        return False
    if run.phase == Phase.QUEUED and not run.allocates:
        runs.try_send(work, run, "start", Cause(reason=f"first task claimed: {task.name}"), facts=runs.facts_of(run))
    if circuit_open:
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
    """A machine without a state for it treats it as a failure that is not retried."""
    signal = "overspend" if work.takes(task, "overspend") else "fail"
    tasks.try_send(work, task, signal, Cause(reason=reason), tasks.Report(error=tasks.as_error(reason), retryable=False))


def _has_checks(work: Work, task: Task) -> bool:
    """Some machines have no state for checks; some pass through it even when the task has none."""
    moves = [move for move in work.machine(task).transitions if move.signal == "complete"]
    return any("run_checks" in move.effects and (task.has_checks or not _asks_for_checks(move)) for move in moves)


def _asks_for_checks(move: Transition) -> bool:
    return any(guard.name == "has_checks" for guard in move.guards)


def _is_reviewed(work: Work, task: Task) -> bool:
    """Whether the attempt can lead to a state in which a person accepts its result."""
    machine = work.machine(task)
    for move in machine.moves(task.state, "complete"):
        guards = {guard.name for guard in move.guards}
        wanted = task.review_wanted or "review_wanted" not in guards
        on_top = task.parent_task_id is None or "top_level" not in guards
        if wanted and on_top and machine.moves(move.to_state, "accept"):
            return True
    return False


def _describe_one(work: Work, task: Task) -> Claim:
    assert isinstance(task.payload, str), "a claim reads the payload"
    seconds = read_policy(task.policy).timeout_seconds
    return Claim(
        task_id=task.id,
        epoch=task.epoch,
        tenant=task.tenant,
        run_id=task.run_id,
        name=task.name,
        payload=msgspec.json.decode(task.payload),
        tool=work.lane(task).tool,
        attempt_count=task.attempt_count,
        has_checks=_has_checks(work, task),
        session_id=task.session_id,
        question=task.question,
        answer=task.answer,
        comment=task.comment,
        is_reviewed=_is_reviewed(work, task),
        deadline_at=None if seconds is None else task.entered_at + timedelta(seconds=seconds),
        budget_usd=budgets.find_left(work, task),
        traceparent=read_policy(work.runs.rows[task.run_id].policy).traceparent,
    )
