"""The facts about an entity. A guard is a fact of the same name: it holds when the fact is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about an entity when a signal arrives. The defaults describe a new task on its own."""

    dependencies_met: bool = True
    due: bool = True
    """Its retry delay, if any, has elapsed."""
    is_gate: bool = False
    top_level: bool = True
    """A task: it is not a subtask."""
    has_checks: bool = False
    has_session: bool = False
    open_subtasks: bool = False
    """Some subtask has not ended, or a critical one has failed."""
    review_wanted: bool = False
    process_ended: bool = True
    quorum_reached: bool = True
    """As many different people have approved as the gate asks for."""
    lease_expired: bool = False
    exit_code_expected: bool = True
    """The process ended with one of the exit codes that mean success, or there was none."""
    # What its counters still allow.
    retries_left: bool = False
    attempts_left: bool = True
    reclaims_left: bool = True
    # The failure that was reported, and the tool that failed.
    retryable: bool = True
    retry_on_failure: bool = True
    breaker_open: bool = False
    # A run: its tasks, and the workers it asks for.
    all_tasks_created: bool = True
    all_tasks_succeeded: bool = True
    critical_failure: bool = False
    """A critical task has failed for good."""
    workers_available: bool = True
    """As many workers are free as the run needs."""
    # A worker: what people want it to do, and the tasks it holds.
    drain_wanted: bool = False
    pause_wanted: bool = False
    holds_tasks: bool = False
    has_capacity: bool = True
    # A breaker: the latest results of its tool.
    threshold_reached: bool = False
    """As many failures in a row as open the circuit."""
    successes_reached: bool = False
    """As many successful probes as close the circuit."""


GUARDS: Mapping[str, Callable[[Any], bool]] = {fact.name: attrgetter(fact.name) for fact in fields(Facts)}
