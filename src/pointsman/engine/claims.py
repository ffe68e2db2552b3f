"""Claims: which tasks a worker gets, each with a new attempt and a larger epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import Any

import msgspec
from msgspec import Struct

from pointsman.engine import breakers, budgets, limits, plain, runs, tasks, workers
from pointsman.engine.machines import Machines
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import WorkerUnavailable
from pointsman.kernel.machine import Machine, Phase, Transition
from pointsman.store.contract import Wakeup
from pointsman.store.rows import BegunTask, Breaker, Lane, Task, Worker

Claimed = Task | BegunTask
"""What a claim got: by the general way, or by the short one."""
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
                count = len(got)
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
    begun: list[BegunTask] = []
    if room > 0 and worker.run_id is None:
        work.flush()
        begun = plain.begin(work, worker, tenant, _find_lanes(work, worker, tenant), room, run_id)
        room -= len(begun)
    claimed: list[Claimed] = [*begun]
    if room > 0 and budgets.is_closed(work.accounts.get(tenant)):
        return claimed
    passed: set[str] = set()
    while room > 0 and len(passed) < MOST_PASSED:
        found = _find_candidates(work, worker, tenant, room, passed, run_id)
        got = [task for task in found if _claim_one(work, worker, task)]
        claimed += got
        room -= len(got)
        if len(got) == len(found):
            break
        # A breaker, a limit or a budget refused some of them: the tasks behind those get their turn.
        passed |= {task.id for task in found if _still_waits(task)}
        work.flush()
    return sorted(claimed, key=lambda task: (-task.priority, task.id)) if begun and len(claimed) > len(begun) else claimed


def _still_waits(task: Task) -> bool:
    return task.phase == Phase.QUEUED or task.lease_expired


def describe(work: Work, claimed: Sequence[Claimed]) -> list[Claim]:
    """What the worker needs to know about the tasks that it got."""
    return [_describe_plain(work, task) if isinstance(task, BegunTask) else _describe_one(work, task) for task in claimed]


def _find_candidates(work: Work, worker: Worker, tenant: str, room: int, passed: Set[str], run_id: str | None) -> list[Task]:
    """As many tasks of a tenant as there is room for, without those that were passed over."""
    work.flush()
    limit = room + len(passed)
    lane_ids = _find_lanes(work, worker, tenant)
    if not lane_ids:
        return []
    if worker.run_id:
        found = _find_allocated(work, worker.run_id, lane_ids, limit) if run_id in (None, worker.run_id) else []
        return _load(work, _without(found, passed, room))
    lost = _without(work.transaction.select_reclaimable(lane_ids, limit, run_id), passed, room)
    candidates = _load(work, lost)
    if len(lost) < room:
        if run_id is None:
            waiting = _find_claimable(work, lane_ids, room, limit)
        else:
            waiting = work.transaction.select_claimable_of_run(run_id, lane_ids, limit)
        candidates += _load(work, _without(waiting, passed, room - len(lost)))
    return candidates


def _find_allocated(work: Work, run_id: str, lane_ids: Sequence[int], limit: int) -> Sequence[Task]:
    if work.try_lock_run(run_id) is None:
        # To wait for a run after the worker could be a deadlock. The next claim of this worker locks its run first.
        work.wakeups |= Wakeup.TASKS
        return []
    return work.transaction.select_allocated(run_id, lane_ids, limit)


def _find_claimable(work: Work, lane_ids: Sequence[int], room: int, limit: int) -> Sequence[Task]:
    """A claim without locks waits for runs that others have locked (docs/decisions/0004 says why that is safe). A claim that
    holds locks does not wait: the worker is woken to claim again.
    """
    waiting = work.transaction.select_claimable(lane_ids, limit)
    locked = [] if waiting else work.transaction.find_claimable_runs(lane_ids, room)
    if locked and work.runs.rows:
        work.wakeups |= Wakeup.TASKS
    elif locked:
        work.load(run_ids=locked)
        waiting = work.transaction.select_claimable(lane_ids, limit)
    return waiting


def _without(found: Sequence[Task], passed: Set[str], room: int) -> list[Task]:
    return [each for each in found if each.id not in passed][:room]


def _load(work: Work, found: Sequence[Task]) -> list[Task]:
    work.tasks.hold(found)
    work.load(run_ids={task.run_id for task in found})
    for task in found:
        work.tasks.rows[task.id].payload = task.payload  # it may have been loaded before, without its payload
    return [work.tasks.rows[task.id] for task in found]


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


def _expects_checks(machine: Machine, *, has_checks: bool) -> bool:
    """Some machines have no state for checks; some pass through it even when the task has none."""
    moves = [move for move in machine.transitions if move.signal == "complete"]
    return any("run_checks" in move.effects and (has_checks or not _asks_for_checks(move)) for move in moves)


def _asks_for_checks(move: Transition) -> bool:
    return any(guard.name == "has_checks" for guard in move.guards)


def _is_reviewed(machine: Machine, state: str, *, review_wanted: bool, is_part: bool) -> bool:
    """Whether the attempt can lead to a state in which a person accepts its result."""
    for move in machine.moves(state, "complete"):
        guards = {guard.name for guard in move.guards}
        wanted = review_wanted or "review_wanted" not in guards
        on_top = not is_part or "top_level" not in guards
        if wanted and on_top and machine.moves(move.to_state, "accept"):
            return True
    return False


@lru_cache(maxsize=1024)
def _expects(machines: Machines, machine_id: int, state: str, *, is_part: bool) -> tuple[bool, bool]:
    """Whether an attempt of a plain task has checks, and a review: some machines ask for them of every task."""
    machine = machines.numbered[machine_id]
    reviewed = _is_reviewed(machine, state, review_wanted=False, is_part=is_part)
    return _expects_checks(machine, has_checks=False), reviewed


def _describe_plain(work: Work, task: BegunTask) -> Claim:
    has_checks, is_reviewed = _expects(work.machines, task.machine_id, task.state, is_part=task.parent_task_id is not None)
    seconds = read_policy(task.policy).timeout_seconds
    return Claim(
        task_id=task.id,
        epoch=1,
        tenant=task.tenant,
        run_id=task.run_id,
        name=task.name,
        payload=msgspec.json.decode(task.payload),
        attempt_count=1,
        has_checks=has_checks,
        is_reviewed=is_reviewed,
        deadline_at=None if seconds is None else task.entered_at + timedelta(seconds=seconds),
        traceparent=read_policy(task.run_policy).traceparent,
    )


def _describe_one(work: Work, task: Task) -> Claim:
    assert isinstance(task.payload, str), "a claim reads the payload"
    machine = work.machine(task)
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
        has_checks=_expects_checks(machine, has_checks=task.has_checks),
        session_id=task.session_id,
        question=task.question,
        answer=task.answer,
        comment=task.comment,
        is_reviewed=_is_reviewed(
            machine, task.state, review_wanted=task.review_wanted, is_part=task.parent_task_id is not None
        ),
        deadline_at=None if seconds is None else task.entered_at + timedelta(seconds=seconds),
        budget_usd=budgets.find_left(work, task),
        traceparent=read_policy(work.runs.rows[task.run_id].policy).traceparent,
    )
