"""Bulk moves: of tasks that are alike one is decided, and one statement writes the same move for all of them.

Tasks are alike if they belong to one run, are in the same state, have no special settings, and have had the same history.
All others are decided one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from pointsman.engine import tasks
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Work
from pointsman.kernel.machine import Outcome, Phase, Refusal
from pointsman.store.rows import Task, TaskKey

FEWEST = 10
"""From this many tasks on, a statement of their own is cheaper than rows of a common one."""
_likeness = attrgetter(
    "tenant",
    "run_id",
    "machine_id",
    "state",
    "lane_id",
    "revision",
    "epoch",
    "current_attempt",
    "attempt_worker_id",
    "attempt_count",
    "started",
    "max_retries",
    "max_reclaims",
    "policy",
)


def sort(work: Work, keys: Iterable[TaskKey]) -> list[list[TaskKey]]:
    """Groups of tasks that may move together; a task on its own is a group of one. Their runs are loaded."""
    groups: dict[tuple[object, ...], list[TaskKey]] = {}
    for key in keys:
        likeness = _likeness(key) if _is_plain(work, key) else (key.id,)
        groups.setdefault(likeness, []).append(key)
    together = [group for group in groups.values() if len(group) >= FEWEST]
    alone = [[key] for group in groups.values() if len(group) < FEWEST for key in group]
    return together + alone


def lead(work: Work, task: Task, group: Sequence[TaskKey], signal: str, report: tasks.Report) -> bool:
    """Let the rest of a group follow a task, if its move has no effects that differ from task to task."""
    decided = tasks.decide(work, task, signal, report)
    if isinstance(decided, Refusal) or len(decided) != 1 or "schedule_retry" in decided[0].effects:
        return False
    machine = work.machine(task)
    left, entered = machine.state(decided[0].from_state), machine.state(decided[0].to_state)
    begins_or_ends = entered.phase is Phase.ACTIVE or entered.outcome is Outcome.SUCCESS
    lasts = left.longest_stay_seconds is None and entered.longest_stay_seconds is None
    if not (begins_or_ends and lasts) or (entered.name, "ready") in machine.moves_on:
        return False
    work.tasks.followers[task.id] = tuple(key.id for key in group if key.id != task.id)
    return True


def _is_plain(work: Work, key: TaskKey) -> bool:
    """Whether nothing can differ between such tasks: no tool, no limits, no budget, and no clock ahead of ours."""
    if not key.plain or key.id in work.tasks.rows or key.entered_at > work.now:
        return False
    policy = read_policy(key.policy)
    limits = (policy.timeout_seconds, policy.reclaim_after_seconds, policy.approval_seconds)
    run = work.runs.rows.get(key.run_id)
    return limits == (None, None, None) and run is not None and run.budget_usd is None and work.tool_of(key) is None
