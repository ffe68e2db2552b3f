"""Tasks that are alike move together: one of them is decided, and one statement writes the same move for all.

Alike are tasks of one run that stand in one state, ask for nothing but to be done, and have had the same happen to them; all
others are looked at one by one.
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
"""It takes as many for a statement of their own to be less work than their share of a common one."""
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
    """Those that could go together, group by group; whoever goes alone is a group of one. Their runs are in hand."""
    groups: dict[tuple[object, ...], list[TaskKey]] = {}
    for key in keys:
        likeness = _likeness(key) if _is_plain(work, key) else (key.id,)
        groups.setdefault(likeness, []).append(key)
    together = [group for group in groups.values() if len(group) >= FEWEST]
    alone = [[key] for group in groups.values() if len(group) < FEWEST for key in group]
    return together + alone


def lead(work: Work, task: Task, group: Sequence[TaskKey], signal: str, report: tasks.Report) -> bool:
    """Let the others of its group follow a task, if it goes where that makes no difference."""
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
    """Nothing about it may differ from one to the next: no tool, no limits, no money, and no clock that runs ahead of ours."""
    if not key.plain or key.id in work.tasks.rows or key.entered_at > work.now:
        return False
    policy = read_policy(key.policy)
    limits = (policy.timeout_seconds, policy.reclaim_after_seconds, policy.approval_seconds)
    run = work.runs.rows.get(key.run_id)
    return limits == (None, None, None) and run is not None and run.budget_usd is None and work.tool_of(key) is None
