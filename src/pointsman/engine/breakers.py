"""Circuit breakers: one per tool, shared by all workers of all processes. A half-open one lets a single probe through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pointsman.engine import limits
from pointsman.engine.work import Cause, Work
from pointsman.errors import CircuitOpen, TransitionRefused
from pointsman.kernel.machine import Kind, Phase, Refusal
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Breaker, Task


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    threshold_reached: bool
    successes_reached: bool


def of_task(work: Work, task: Task) -> Breaker | None:
    tool = work.tool_of(task)
    if tool is None:
        return None
    work.load_breakers(task.tenant, [tool])
    return work.breaker(task.tenant, tool)


def is_open(work: Work, task: Task) -> bool:
    breaker = of_task(work, task)
    return breaker is not None and breaker.phase == Phase.HELD


def admits(breaker: Breaker) -> bool:
    """Whether the circuit lets a task of this tool begin now."""
    return breaker.phase == Phase.QUEUED or (breaker.phase == Phase.ACTIVE and breaker.probe_task_id is None)


def is_limited(breaker: Breaker) -> bool:
    """Whether the circuit is open because the tool has reached its usage limit."""
    return breaker.phase == Phase.HELD and breaker.limited_until is not None


def refusal(work: Work, breaker: Breaker) -> CircuitOpen:
    """The error for a task that may not begin. A half-open circuit may close at any moment."""
    seconds = (breaker.retry_at - work.now).total_seconds() if breaker.retry_at and breaker.phase == Phase.HELD else 1
    return CircuitOpen(breaker.tool, seconds)


def take_probe(work: Work, breaker: Breaker, task: Task) -> None:
    """Make this task the probe of a half-open circuit."""
    if breaker.phase == Phase.ACTIVE:
        breaker.probe_task_id = task.id
        work.breakers.change(breaker)


def leave(work: Work, task: Task) -> None:
    """An attempt has ended: free its place under the limits of the tool, and the probe if it ended without a result."""
    breaker = of_task(work, task)
    if breaker is None:
        return
    limits.end(work, breaker)
    if breaker.probe_task_id == task.id:
        _free(work, breaker)


def succeeded(work: Work, task: Task) -> None:
    breaker = of_task(work, task)
    if breaker is None:
        return
    if breaker.phase == Phase.ACTIVE and breaker.probe_task_id == task.id:
        breaker.success_count += 1
        _free(work, breaker)
        try_send(work, breaker, "complete", Cause(reason=f"{task.name} succeeded"))
    elif breaker.phase == Phase.QUEUED and breaker.failure_count:
        breaker.failure_count = 0
        work.breakers.change(breaker)


def failed(work: Work, task: Task) -> None:
    """Count a failure of the tool. A late one, of an attempt that began before the circuit opened, is ignored."""
    breaker = of_task(work, task)
    if breaker is None:
        return
    if breaker.phase == Phase.ACTIVE and breaker.probe_task_id == task.id:
        _free(work, breaker)
        try_send(work, breaker, "fail", Cause(reason=f"{task.name} failed"))
    elif breaker.phase == Phase.QUEUED:
        breaker.failure_count += 1
        work.breakers.change(breaker)
        try_send(work, breaker, "fail", Cause(reason=f"{breaker.failure_count} failures in a row, the last one of {task.name}"))


def _free(work: Work, breaker: Breaker) -> None:
    breaker.probe_task_id = None
    work.breakers.change(breaker)
    work.wakeups |= Wakeup.TASKS


def reset(work: Work, breaker: Breaker, cause: Cause) -> None:
    """A person says that the tool is well again, so that a usage limit of it has ended, too."""
    if refused := try_send(work, breaker, "reset", cause):
        raise TransitionRefused(refused)
    work.ended_limits.add((breaker.tenant, breaker.tool))
    work.wakeups |= Wakeup.TIMERS


def trip(work: Work, breaker: Breaker, cause: Cause, seconds: float | None) -> None:
    """A person says that the tool is broken; the circuit stays open for its cooldown, or for `seconds`.

    Document 001 knows no way to an open circuit but failures. So this counts as as many as are needed, and the audit trail
    names the person.
    """
    if breaker.phase == Phase.HELD:
        raise TransitionRefused(work.machine(breaker).refuse(breaker.state, "trip", already_there=True))
    until = None if seconds is None else work.now + timedelta(seconds=seconds)
    if refused := _open(work, breaker, Cause(cause.actor, cause.reason, {"tripped": True}), until):
        raise TransitionRefused(refused)


def meet_usage_limit(work: Work, task: Task, until: datetime) -> None:
    """An attempt was told that the tool has reached its usage limit: the circuit opens until that ends.

    A circuit that is open already stays so until the later of the two instants. That moves nothing, so it is a notice.
    """
    breaker = of_task(work, task)
    if breaker is None:
        return
    reason = f"usage limit until {until:%Y-%m-%d %H:%M:%S} UTC"
    if breaker.phase != Phase.HELD:
        _open(work, breaker, Cause(reason=reason, metadata={"usage_limit": True}), until)
    elif breaker.retry_at is None or until > breaker.retry_at:
        breaker.retry_at = until
        work.set_timer(breaker, Kind.BREAKER, "cooldown", until)
        message = f"Reported by {task.name}: {reason}."
        work.give_notice(breaker, Kind.BREAKER.value, None, subject="usage limit", message=message)
    else:
        return
    breaker.limited_until = until
    work.breakers.change(breaker)


def _open(work: Work, breaker: Breaker, cause: Cause, until: datetime | None) -> Refusal | None:
    """As if the tool had failed as often as opens its circuit."""
    return _move(work, breaker, "fail", cause, BreakerFacts(threshold_reached=True, successes_reached=False), until)


def try_send(work: Work, breaker: Breaker, signal: str, cause: Cause) -> Refusal | None:
    facts = BreakerFacts(
        threshold_reached=breaker.failure_count >= breaker.failure_threshold,
        successes_reached=breaker.success_count >= breaker.success_threshold,
    )
    return _move(work, breaker, signal, cause, facts)


def _move(
    work: Work, breaker: Breaker, signal: str, cause: Cause, facts: BreakerFacts, open_until: datetime | None = None
) -> Refusal | None:
    decided = work.decide(breaker, signal, facts)
    if isinstance(decided, Refusal):
        return decided
    for transition in decided:
        work.breakers.before_move(breaker)
        work.drop_timers(breaker)
        state = work.move(breaker, transition, cause)
        breaker.probe_task_id = None
        breaker.retry_at = breaker.limited_until = None
        for effect in transition.effects:
            if effect == "start_cooldown":
                breaker.retry_at = open_until or work.now + timedelta(seconds=breaker.cooldown_seconds)
                breaker.success_count = 0
                work.set_timer(breaker, Kind.BREAKER, "cooldown", breaker.retry_at)
            elif effect == "reset_failures":
                breaker.failure_count = breaker.success_count = 0
        limits.watch(work, breaker)
        if state.phase is not Phase.HELD:
            work.wakeups |= Wakeup.TASKS
    return None
