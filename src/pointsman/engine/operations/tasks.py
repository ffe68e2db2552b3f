"""Operations of people on tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from pointsman.engine import runs, tasks
from pointsman.engine.fields import TaskId, Text
from pointsman.engine.operation import Needs, Recorded
from pointsman.engine.people import check_person, list_signals
from pointsman.engine.tasks import Report
from pointsman.engine.work import Work
from pointsman.errors import Problem
from pointsman.kernel.machine import Kind, Outcome, Phase
from pointsman.store.rows import Task


class SignalTask(Recorded[Task], frozen=True):
    """Send a task what a person decides."""

    task_id: Annotated[TaskId, "The task."]
    signal: Annotated[Text, list_signals(Kind.TASK)]
    answer: Annotated[Text | None, "The answer to its question, with the signal answer."] = None
    comment: Annotated[Text | None, "What the next attempt should know, with the signal reject."] = None

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,), subtasks_of=(self.task_id,))

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and self.signal == "answer" and not self.answer:
            yield Problem("answer", "It is missing. Give the answer with the signal.")

    def decide(self, work: Work) -> Callable[[], Task]:
        task = work.task(self.tenant, self.task_id)
        check_person(work, task, Kind.TASK, self.signal)
        if self.signal == "cancel":
            tasks.refuse(tasks.cancel(work, task, self.cause))
        else:
            error = tasks.as_error(self.reason or f"{self.signal} by {self.caller.actor}")
            ended = not tasks.may_run(task)
            report = Report(answer=self.answer, comment=self.comment, error=error, process_ended=ended)
            self._reopen_run(work, task, report)
            tasks.send(work, task, self.signal, self.cause, report)
            tasks.grant_attempt(task)
            if work.runs.rows[task.run_id].phase != Phase.DONE:
                self._tell_relatives(work, task)
        return lambda: task

    def _tell_relatives(self, work: Work, task: Task) -> None:
        """A skipped task skips its subtasks. A parent that failed with a subtask is retried when that is retried or skipped."""
        if self.signal == "skip" and task.has_subtasks:
            self._skip_subtasks(work, task)
        while task.parent_task_id is not None:
            work.read_tasks([task.parent_task_id])
            task = work.tasks.rows[task.parent_task_id]
            if work.was_told(task, "child_failed"):
                tasks.try_again(work, task, self.cause)

    def _skip_subtasks(self, work: Work, task: Task) -> None:
        """All that have not succeeded, at any depth; what runs is not skipped, and ends as it may."""
        work.flush()
        parents = {task.id}
        for row in sorted(work.transaction.select_run_tasks(task.run_id, tuple(Phase)), key=lambda row: row.depth):
            if row.parent_task_id in parents:
                parents.add(row.id)
                work.tasks.hold([row])
                subtask = work.tasks.rows[row.id]
                if subtask.outcome is None or subtask.outcome == Outcome.FAILURE:
                    report = Report(process_ended=not tasks.may_run(subtask))
                    tasks.try_send(work, subtask, self.signal, self.cause, report)

    def _reopen_run(self, work: Work, task: Task, report: Report) -> None:
        """Another try of a task whose run has ended is another try of the run, where its machine knows such a thing."""
        run = work.runs.rows[task.run_id]
        decided = tasks.check(work, task, self.signal, report)
        if run.phase != Phase.DONE:
            return
        state = work.machine(task).state(decided[-1].to_state)
        if state.phase is Phase.DONE and task.outcome != Outcome.FAILURE:
            return  # it is skipped before it was tried, and nothing of the run is tried again for that
        refusal = runs.try_send(work, run, "retry", self.cause, reopens=False)
        if state.phase is not Phase.DONE:
            tasks.refuse(refusal)
