"""What a signal would lead to, for a task and for its run: the kernel decides, on values, as the engine would in a commit.

A forecast follows a signal as `engine.follow` and `engine.runs` do: dependents, parents, and then the run. It changes nothing
and asks no database, so that every step that a person could take can be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from pointsman.engine.gates import read_approvals
from pointsman.engine.machines import waits_in_queue
from pointsman.engine.people import AGAIN, DECISIONS
from pointsman.engine.policy import read_policy
from pointsman.engine.runs import has_waiting
from pointsman.engine.submit import read_final_tasks
from pointsman.engine.tasks import attempts_used_up, has_retries_left, is_top_level, may_run
from pointsman.kernel.machine import Outcome, Phase, Refusal, State
from pointsman.kernel.step import Snapshot, step
from pointsman.lifecycles.guards import Facts
from pointsman.store.rows import Task
from pointsman.views.sources import RunRecords


class Forecast:
    """The states of a run and its tasks as they would be."""

    def __init__(self, records: RunRecords, now: datetime) -> None:
        self._records = records
        self._now = now
        self._tasks = {task.id: task for task in records.tasks}
        self._changed: dict[str, State] = {}
        self._met: dict[str, int] = {}
        """By task: how many of its dependencies are met that are open now."""
        self._is_struck = False
        """A task has failed or was canceled."""
        self.run = records.machine(records.run).state(records.run.state)
        self.is_requested = False
        """Only asked for: the worker has to end the process first."""

    def state(self, task: Task) -> State:
        return self._changed.get(task.id) or self._records.machine(task).state(task.state)

    def signal_task(self, task: Task, signal: str) -> bool:
        """A person sends a signal to a task; whether the engine would accept it."""
        if signal == "cancel":
            return self._cancel(task)
        if self._is_premature(task, signal) or not self._takes(task, signal) or not self._send(task, signal):
            return False
        if self.run.phase is Phase.DONE and not self._reopen_run(task, signal):
            return False
        if self.run.phase is not Phase.DONE:
            self._tell_relatives(task, signal)
            self._follow(task)
        self._settle()
        return True

    def _is_premature(self, task: Task, signal: str) -> bool:
        """A task that waits for its subtasks has asked nothing, and has no result yet."""
        if signal == "answer":
            return task.question is None
        return signal == "accept" and self._has_open_subtasks(task)

    def _has_open_subtasks(self, task: Task) -> bool:
        return any(self.state(each).outcome is not Outcome.SUCCESS for each in self._subtasks(task))

    def signal_run(self, signal: str) -> bool:
        """A person sends a signal to the run; whether the engine would accept it."""
        if signal == "cancel" and self.run.phase is Phase.DONE and self._cancel_running():
            return True
        if not self._send_run(signal):
            return False
        if signal == "retry":
            for task in self._records.tasks:
                if task.outcome == Outcome.FAILURE and self._try_again(task):
                    self._follow(task)
        self._settle()
        return True

    def reopened(self) -> list[Task]:
        """Tasks that had ended, and would run again."""
        return [task for task in self._records.tasks if task.phase == Phase.DONE and self.state(task).phase is not Phase.DONE]

    def _cancel(self, task: Task) -> bool:
        waits = may_run(task) and task.allocated
        if not waits and self._send(task, "cancel", retryable=False):
            self._follow(task)
            self._settle()
            return True
        self.is_requested = may_run(task) and self._takes(task, "cancel")
        return self.is_requested

    def _cancel_running(self) -> bool:
        """A run that has ended cannot be canceled, but the tasks that still run can."""
        canceled = False
        for task in self._records.tasks:
            if task.phase == Phase.ACTIVE and task.cancel_requested_at is None:
                canceled |= self._cancel(task)
        return canceled

    def _reopen_run(self, task: Task, signal: str) -> bool:
        """Another try of a task in a run that has ended is another try of the run. A decision is refused there."""
        if signal in DECISIONS:
            return False
        is_done = self.state(task).phase is Phase.DONE
        if is_done and task.outcome != Outcome.FAILURE:
            return True
        return self._send_run("retry") or is_done

    def _try_again(self, task: Task) -> bool:
        return any(self._takes(task, signal) and self._send(task, signal) for signal in AGAIN)

    def _tell_relatives(self, task: Task, signal: str) -> None:
        """Skipping a task skips its subtasks; another try of a task is another try of what failed with it."""
        if signal in AGAIN:
            self._retry_subtasks(task)
        if task.has_subtasks and self.state(task).outcome is Outcome.SUCCESS:
            for subtask in self._subtasks(task):
                if self.state(subtask).outcome is not Outcome.SUCCESS and self._send(subtask, signal):
                    self._tell_relatives(subtask, signal)
        if self.state(task).phase is not Phase.DONE:
            self._retry_dependents(task)
        parent = self._tasks.get(task.parent_task_id or "")
        while parent is not None:
            if parent.outcome == Outcome.FAILURE and self._records.was_told(parent, "child_failed"):
                self._try_again(parent)
            parent = self._tasks.get(parent.parent_task_id or "")

    def _retry_subtasks(self, task: Task) -> None:
        for subtask in self._subtasks(task):
            if subtask.outcome == Outcome.FAILURE:
                self._try_again(subtask)
            self._retry_subtasks(subtask)

    def _retry_dependents(self, task: Task) -> None:
        for dependent in self._dependents(task):
            if dependent.outcome == Outcome.FAILURE and self._records.was_told(dependent, "dependency_failed"):
                self._try_again(dependent)
                self._retry_dependents(dependent)

    def _follow(self, task: Task) -> None:
        """What the end of a task, or its return to the beginning, means for others."""
        state = self.state(task)
        if state.phase is not Phase.DONE:
            self._make_ready(task)
            self._stop_doomed(task)
            return
        if state.outcome is Outcome.SUCCESS:
            self._free_dependents(task)
        else:
            self._is_struck = True
            self._tell_dependents(task)
        if parent := self._tasks.get(task.parent_task_id or ""):
            self._tell_parent(parent)

    def _make_ready(self, task: Task, *, follows: bool = False) -> None:
        queues_up = waits_in_queue(self._records.machine(task))
        waits = self._open_dependencies(task) and not queues_up
        starts_itself = read_policy(self._records.run.policy).autostart or (follows and not queues_up)
        if not waits and starts_itself and self._takes(task, "ready"):
            self._send(task, "ready")

    def _stop_doomed(self, task: Task) -> None:
        """A task that queues up behind one that has failed for good fails with it, where its machine says so."""
        needed = (self.state(self._tasks[task_id]) for task_id in self._records.dependencies.get(task.id, ()))
        is_doomed = any(state.phase is Phase.DONE and state.outcome is not Outcome.SUCCESS for state in needed)
        queued = self.state(task).phase is Phase.QUEUED
        if is_doomed and queued and self._takes(task, "dependency_failed") and self._send(task, "dependency_failed"):
            self._follow(task)

    def _free_dependents(self, task: Task) -> None:
        for dependent in self._dependents(task):
            self._met[dependent.id] = self._met.get(dependent.id, 0) + 1
            if self.state(dependent).phase is not Phase.DONE:
                self._make_ready(dependent, follows=True)

    def _tell_dependents(self, task: Task) -> None:
        failed = self.state(task).outcome is Outcome.FAILURE
        if failed and not task.critical and self._takes(task, "skip") and self._send(task, "skip"):
            self._free_dependents(task)
            return
        for dependent in self._dependents(task):
            if self._takes(dependent, "dependency_failed") and self._send(dependent, "dependency_failed"):
                self._follow(dependent)

    def _tell_parent(self, parent: Task) -> None:
        if self.state(parent).phase is not Phase.HELD or parent.question is not None:
            return
        subtasks = self._subtasks(parent)
        outcomes = {self.state(each).outcome for each in subtasks}
        failed = any(each.critical and self.state(each).outcome in (Outcome.FAILURE, Outcome.CANCELED) for each in subtasks)
        signal = "child_failed" if failed else "children_done"
        if (failed or None not in outcomes) and self._takes(parent, signal) and self._send(parent, signal):
            self._follow(parent)

    def _settle(self) -> None:
        """What becomes of the run, in the order in which the engine asks."""
        if self.run.phase is Phase.DONE:
            return
        states = [(task, self.state(task)) for task in self._records.tasks]
        done = [task for task, state in states if state.phase is Phase.DONE and state.outcome is not Outcome.SUCCESS]
        has_failed = any(task.critical for task in done)
        goes_on = any(self._goes_on(task, state) for task, state in states)
        is_moving = goes_on or any(state.phase is Phase.HELD and self._has_timer(task) for task, state in states)
        if self.run.phase in (Phase.QUEUED, Phase.ACTIVE) and goes_on and not self._is_struck:
            return
        if has_failed and (self._is_struck or not is_moving):
            self._end_run("fail")
        elif self._records.run.missing_tasks:
            return
        elif done and not has_failed and all(state.phase is Phase.DONE for _, state in states):
            self._end_run("fail")
        elif all(state.outcome is Outcome.SUCCESS for _, state in states):
            self._complete_run()
        elif not is_moving:
            if has_waiting(self._records.machine(self._records.run)):
                self._end_run("wait")
        elif self.run.phase is Phase.HELD:
            self._send_run("proceed")

    def _complete_run(self) -> None:
        """Final checks take time, and a run without any passes them at once. One with last tasks goes on with those."""
        run, known = self._records.run, {task.name for task in self._records.tasks}
        if not run.has_checks and any(task.name not in known for task in read_final_tasks(run)):
            if self.run.phase is Phase.HELD:
                self._send_run("proceed")
            return
        if not self._takes_run("checks_passed") or self._takes_run("complete"):
            self._end_run("complete")
        if not self._records.run.has_checks and self._takes_run("checks_passed"):
            self._send_run("checks_passed")

    def _takes_run(self, signal: str) -> bool:
        return bool(self._records.machine(self._records.run).moves(self.run.name, signal))

    def _end_run(self, signal: str) -> None:
        if self.run.phase is Phase.QUEUED and not self._records.run.allocates:
            self._send_run("start")
        self._send_run(signal)

    def _goes_on(self, task: Task, state: State) -> bool:
        return state.phase is Phase.ACTIVE or (state.phase is Phase.QUEUED and not self._open_dependencies(task))

    def _has_timer(self, task: Task) -> bool:
        return task.id not in self._changed and task.available_at is not None

    def _open_dependencies(self, task: Task) -> int:
        return max(task.open_dependencies - self._met.get(task.id, 0), 0)

    def _dependents(self, task: Task) -> Iterator[Task]:
        return (self._tasks[task_id] for task_id in self._records.dependents.get(task.id, ()))

    def _subtasks(self, task: Task) -> Sequence[Task]:
        return self._records.subtasks.get(task.id, ())

    def _takes(self, task: Task, signal: str) -> bool:
        return bool(self._records.machine(task).moves(self.state(task).name, signal))

    def _send(self, task: Task, signal: str, *, retryable: bool = True) -> bool:
        machine = self._records.machine(task)
        decided = step(machine, Snapshot(self.state(task).name, self._now), signal, self._facts(task, retryable), self._now)
        if isinstance(decided, Refusal):
            return False
        if decided.taken[0].signal == "ready" and self._open_dependencies(task) and not waits_in_queue(machine):
            return False
        state = machine.state(decided.snapshot.state)
        if "session" in state.needs and task.session_id is None:
            return False
        self._changed[task.id] = state
        return True

    def _send_run(self, signal: str) -> bool:
        machine = self._records.machine(self._records.run)
        decided = step(machine, Snapshot(self.run.name, self._now), signal, self._run_facts(), self._now)
        if isinstance(decided, Refusal):
            return False
        self.run = machine.state(decided.snapshot.state)
        return True

    def _facts(self, task: Task, retryable: bool) -> Facts:  # noqa: FBT001
        used_up = attempts_used_up(task)
        return Facts(
            dependencies_met=not self._open_dependencies(task),
            due=task.available_at is None or task.available_at <= self._now,
            is_gate=task.is_gate,
            top_level=is_top_level(self._records.run, task),
            has_checks=task.has_checks,
            has_session=task.session_id is not None,
            open_subtasks=self._has_open_subtasks(task),
            review_wanted=task.review_wanted,
            process_ended=not may_run(task),
            quorum_reached=not task.is_gate or len(read_approvals(task).approved_by) + 1 >= read_policy(task.policy).quorum,
            lease_expired=task.lease_expired,
            retries_left=has_retries_left(self._records.machine(task), task),
            attempts_left=not used_up,
            reclaims_left=not used_up and task.reclaim_count < task.max_reclaims,
            retryable=retryable,
            retry_on_failure=read_policy(task.policy).retry_on_failure,
        )

    def _run_facts(self) -> Facts:
        run, states = self._records.run, [(task, self.state(task)) for task in self._records.tasks]
        return Facts(
            has_checks=run.has_checks,
            retries_left=run.retry_count < run.max_retries,
            all_tasks_created=run.missing_tasks == 0,
            all_tasks_succeeded=all(state.outcome is Outcome.SUCCESS for _, state in states),
            critical_failure=any(
                task.critical and state.phase is Phase.DONE and state.outcome is not Outcome.SUCCESS for task, state in states
            ),
            workers_available=False,
        )
