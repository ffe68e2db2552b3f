"""The facts of an entity, and the guards, which are named conditions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an entity when a signal arrives; the defaults describe a new task without dependencies."""

    dependencies_met: bool = True
    due: bool = True
    is_gate: bool = False
    top_level: bool = True
    has_checks: bool = False
    has_session: bool = False
    open_subtasks: int = 0
    review_wanted: bool = False
    process_ended: bool = True
    lease_expired: bool = False
    # counters and their limits
    retry_count: int = 0
    max_retries: int = 0
    attempt_count: int = 0
    max_attempts: int | None = None
    reclaim_count: int = 0
    max_reclaims: int = 3
    # the reported failure and its tool
    retryable: bool = True
    retry_on_failure: bool = True
    breaker_open: bool = False
    # a run: its tasks, and the workers that it needs
    unfinished_tasks: int = 0
    missing_tasks: int = 0
    critical_failures: int = 0
    wanted_workers: int = 1
    free_workers: int = 1
    # a worker: what people requested, and its tasks
    drain_wanted: bool = False
    pause_wanted: bool = False
    tasks_held: int = 0
    max_concurrent_tasks: int = 1
    # a breaker: recent results of its tool
    failure_count: int = 0
    failure_threshold: int = 5
    success_count: int = 0
    success_threshold: int = 1


GUARDS: Mapping[str, Callable[[Facts], bool]] = {
    "dependencies_met": lambda facts: facts.dependencies_met,
    "due": lambda facts: facts.due,
    "is_gate": lambda facts: facts.is_gate,
    "top_level": lambda facts: facts.top_level,
    "has_checks": lambda facts: facts.has_checks,
    "has_session": lambda facts: facts.has_session,
    "open_subtasks": lambda facts: facts.open_subtasks > 0,
    "review_wanted": lambda facts: facts.review_wanted,
    "process_ended": lambda facts: facts.process_ended,
    "lease_expired": lambda facts: facts.lease_expired,
    "retries_left": lambda facts: facts.retry_count < facts.max_retries,
    "attempts_left": lambda facts: facts.max_attempts is None or facts.attempt_count < facts.max_attempts,
    "reclaims_left": lambda facts: facts.reclaim_count < facts.max_reclaims,
    "retryable": lambda facts: facts.retryable,
    "retry_on_failure": lambda facts: facts.retry_on_failure,
    "breaker_open": lambda facts: facts.breaker_open,
    "all_tasks_created": lambda facts: facts.missing_tasks == 0,
    "all_tasks_succeeded": lambda facts: facts.unfinished_tasks == 0,
    "critical_failure": lambda facts: facts.critical_failures > 0,
    "workers_available": lambda facts: facts.free_workers >= facts.wanted_workers,
    "drain_wanted": lambda facts: facts.drain_wanted,
    "pause_wanted": lambda facts: facts.pause_wanted,
    "holds_tasks": lambda facts: facts.tasks_held > 0,
    "has_capacity": lambda facts: facts.tasks_held < facts.max_concurrent_tasks,
    "threshold_reached": lambda facts: facts.failure_count >= facts.failure_threshold,
    "successes_reached": lambda facts: facts.success_count >= facts.success_threshold,
}
