"""What follows from a move: released dependents, parents, workers, runs, until nothing is left to follow."""

from __future__ import annotations

from pointsman.engine import runs, tasks, workers
from pointsman.engine.machines import waits_in_queue
from pointsman.engine.policy import read_policy
from pointsman.engine.work import ENGINE, Cause, Work
from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Subtasks, Task


def settle(work: Work, *, claims_follow: bool = False) -> None:
    """Let everything follow, tasks first: the state of a run is decided when none of its tasks moves any more.

    Before claims, workers are left for later: a worker that finishes and claims in one commit stays busy.
    """
    while True:
        if work.succeeded:
            _free_dependents(work)
        elif work.failed:
            _tell_dependents(work)
        elif work.waiting:
            _make_ready(work)
        elif work.parents:
            _tell_parents(work)
        elif work.behind:
            _stop_doomed(work)
        elif work.unsettled_runs and not (claims_follow and runs.may_wait(work)):
            runs.settle(work)
        elif claims_follow:
            break
        elif work.reviewed_workers:
            workers.review(work)
        elif work.allocation_wanted:
            workers.allocate(work)
        else:
            break
    work.flush()


def _free_dependents(work: Work) -> None:
    succeeded, work.succeeded = work.succeeded, []
    work.flush()
    freed = work.transaction.release_dependents(succeeded)
    for task_id in freed:
        if task_id in work.tasks.rows:
            work.tasks.rows[task_id].open_dependencies = 0
    if freed:
        work.read_tasks(freed)
        work.waiting += freed
        work.freed |= set(freed)
        work.unsettled_runs |= {work.tasks.rows[task_id].run_id for task_id in freed}
        work.wakeups |= Wakeup.TASKS


def _tell_dependents(work: Work) -> None:
    """Skip a failed task that is not critical. For the dependents of any other, the lifecycle decides."""
    failed, work.failed = work.failed, []
    stopped = []
    for task_id in failed:
        task = work.tasks.rows[task_id]
        passed_over = not task.critical and task.outcome == Outcome.FAILURE and work.takes(task, "skip")
        if not (passed_over and tasks.try_send(work, task, "skip", Cause(reason="failed, but not critical")) is None):
            stopped.append(task_id)
    if not stopped:
        return
    work.flush()
    dependents = work.transaction.find_dependents(stopped)
    work.read_tasks(dependents)
    for task_id in dependents:
        _stop(work, work.tasks.rows[task_id])


def _stop_doomed(work: Work) -> None:
    """Stop tasks that were queued behind a dependency that has already failed."""
    behind, work.behind = work.behind, []
    work.flush()
    for task_id in work.transaction.find_doomed(behind):
        _stop(work, work.tasks.rows[task_id])


def _stop(work: Work, task: Task) -> None:
    if work.takes(task, "dependency_failed"):
        reason = "a dependency failed"
        tasks.try_send(work, task, "dependency_failed", Cause(reason=reason), tasks.Report(error=tasks.as_error(reason)))


def _make_ready(work: Work) -> None:
    waiting, work.waiting = work.waiting, []
    for task_id in waiting:
        task = work.tasks.rows[task_id]
        queues_up = waits_in_queue(work.machine(task))
        # In a run that a person starts, what follows the first tasks starts itself, unless a person could have queued it.
        follows = task_id in work.added or (task_id in work.freed and not queues_up)
        if task.phase == Phase.DONE or not (follows or read_policy(work.runs.rows[task.run_id].policy).autostart):
            continue
        if (task.open_dependencies == 0 or queues_up) and work.takes(task, "ready"):
            # A task that waits for nothing is made ready by its creation.
            at_once = task.revision == 0 and task_id in work.tasks.created
            tasks.try_send(work, task, "ready", Cause(task.actor or ENGINE, task.reason) if at_once else Cause())


def _tell_parents(work: Work) -> None:
    parents, work.parents = sorted(work.parents), set()
    work.flush()
    work.read_tasks(parents)
    work.load_subtasks(parents)
    for parent_id in parents:
        if subtasks := work.subtasks_of.get(parent_id):
            _tell_parent(work, work.tasks.rows[parent_id], subtasks)


def _tell_parent(work: Work, parent: Task, subtasks: Subtasks) -> None:
    """Tell a parent task how its subtasks ended, unless it waits for an answer of a person."""
    if parent.phase != Phase.HELD or parent.question is not None:
        return
    if subtasks.failed and work.takes(parent, "child_failed"):
        reason = "a subtask failed"
        tasks.try_send(work, parent, "child_failed", Cause(reason=reason), tasks.Report(error=tasks.as_error(reason)))
    elif subtasks.is_done and work.takes(parent, "children_done"):
        tasks.try_send(work, parent, "children_done", Cause(reason="all subtasks succeeded"))
