"""Operations of people on tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec

from pointsman.engine import gates, runs, tasks
from pointsman.engine.fields import Epoch, TaskId, Text
from pointsman.engine.operation import Needs, Recorded
from pointsman.engine.people import AGAIN, DECISIONS, check_person, list_signals
from pointsman.engine.policy import read_policy
from pointsman.engine.questions import MAX_ANSWER, read_question
from pointsman.engine.tasks import Report
from pointsman.engine.work import Cause, Work
from pointsman.errors import NotFound, Problem, RequestInvalid, TransitionRefused
from pointsman.kernel.machine import Kind, Outcome, Phase, Refusal, Transition
from pointsman.store.rows import Task, Tombstone

NO_ANSWER = Problem("answer", "It is missing. Give the answer with the signal.")


def approve_gate(work: Work, task: Task, cause: Cause) -> Refusal | None:
    """Approve a gate, or count the approval if it needs more; that of a person who has approved already changes nothing."""
    run = work.runs.rows[task.run_id]
    if run.phase == Phase.DONE:
        return work.machine(run).refuse(run.state, "approve", already_there=False)
    if work.takes(task, "approve") and cause.actor in gates.read_approvals(task).approved_by:
        return None
    approvals = gates.add_approval(task, cause.actor or "")
    quorum = read_policy(task.policy).quorum
    metadata = msgspec.to_builtins(approvals) if quorum > 1 else None
    report = Report(quorum_reached=gates.completes_quorum(task, cause.actor or ""))
    return tasks.try_send(work, task, "approve", Cause(cause.actor, cause.reason, metadata), report)


class DeleteTask(Recorded[Task], frozen=True):
    """Delete a task that neither runs nor waits for a worker. Its row and its audit trail stay; lists leave it out.

    A task that has not ended is canceled with its run, if it is the only one there: then nobody waits for it.
    """

    task_id: Annotated[TaskId, "The task."]

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,))

    def decide(self, work: Work) -> Callable[[], Task]:
        task = work.task(self.tenant, self.task_id)
        if work.transaction.find_tombstone(self.tenant, task.id):
            raise NotFound("task", task.id)
        if task.phase in (Phase.QUEUED, Phase.ACTIVE):
            raise TransitionRefused(work.machine(task).refuse(task.state, "delete", already_there=False))
        run = work.runs.rows[task.run_id]
        if run.phase != Phase.DONE and len(work.transaction.find_task_names(run.id)) == 1:
            runs.send(work, run, "cancel", self.cause)
        work.transaction.insert_tombstone(
            Tombstone(
                task_id=task.id, tenant=self.tenant, deleted_at=work.now, deleted_by=self.caller.actor, reason=self.reason
            )
        )
        return lambda: task


class SignalTask(Recorded[Task], frozen=True):
    """Send a task what a person decides."""

    task_id: Annotated[TaskId, "The task."]
    signal: Annotated[Text, list_signals(Kind.TASK)]
    answer: Annotated[Text | None, "The answer to its question, with the signal answer."] = None
    comment: Annotated[Text | None, "What the next attempt should know, with the signal reject."] = None
    epoch: Annotated[Epoch | None, "The attempt that it is about; refused when there is a later one."] = None

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,))

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and self.signal == "answer" and not self.answer:
            yield NO_ANSWER
        for field, text in (("answer", self.answer), ("comment", self.comment)):
            if not found and text is not None and len(text) > MAX_ANSWER:
                message = f"It has {len(text):,} characters, and at most {MAX_ANSWER:,} are allowed. Name a file instead."
                yield Problem(field, message)

    def decide(self, work: Work) -> Callable[[], Task]:
        task = work.task(self.tenant, self.task_id)
        check_person(work, task, Kind.TASK, self.signal)
        self._check_epoch(task)
        if self.signal == "cancel":
            tasks.refuse(tasks.cancel(work, task, self.cause))
        else:
            self._send(work, task)
        return lambda: task

    def _check_epoch(self, task: Task) -> None:
        """An answer to one question, or a review of one result, is none of the next."""
        if self.epoch is not None and self.epoch != task.epoch:
            message = f"It is about attempt {self.epoch}, but {task.name} is {task.state} after attempt {task.epoch}."
            raise RequestInvalid([Problem("epoch", message)])

    def _send(self, work: Work, task: Task) -> None:
        gates.check_decider(task, work.runs.rows[task.run_id], self.signal, self.caller.actor)
        if self.signal == "approve":
            tasks.refuse(approve_gate(work, task, self.cause))
            return
        if self.signal == "accept" and task.has_subtasks:
            work.flush()
            work.load_subtasks([task.id])  # one may have been started again in this transaction
        error = tasks.as_error(self.reason or f"{self.signal} by {self.caller.actor}")
        ended = not tasks.may_run(task)
        report = Report(answer=self.answer, comment=self.comment, error=error, process_ended=ended)
        decided = tasks.check(work, task, self.signal, report)
        cause = self._cause_for(work, task)
        subtasks = self._find_subtasks(work, task) if self.signal in ("skip", *AGAIN) and task.has_subtasks else []
        for subtask in subtasks:
            gates.check_decider(subtask, work.runs.rows[task.run_id], self.signal, self.caller.actor)
        self._reopen_run(work, task, decided)
        tasks.take(work, task, decided, cause, report)
        tasks.grant_attempt(task)
        if work.runs.rows[task.run_id].phase != Phase.DONE:
            self._tell_relatives(work, task, subtasks)

    def _cause_for(self, work: Work, task: Task) -> Cause:
        """An answer is kept in the audit trail with its question, and a comment: the task itself has only the last one. A task
        that waits for its subtasks has asked nothing, and takes no answer.
        """
        if self.signal != "answer":
            return self.cause if self.comment is None else Cause(self.caller.actor, self.reason, {"comment": self.comment})
        if task.question is None:
            raise TransitionRefused(work.machine(task).refuse(task.state, "answer", already_there=False, unmet=("question",)))
        if not self.answer:
            raise RequestInvalid([NO_ANSWER])
        question = read_question(task.question)
        if misfit := question.explain_misfit(self.answer):
            raise RequestInvalid([Problem("answer", misfit)])
        return Cause(self.caller.actor, self.reason, {"question": question.text, "answer": self.answer})

    def _tell_relatives(self, work: Work, task: Task, subtasks: Iterable[Task]) -> None:
        """A skipped task skips its subtasks; what runs is not skipped, and ends as it may. What failed with a task is retried
        with it: its subtasks, its dependents, and its parent.
        """
        for subtask in subtasks:
            if self.signal in AGAIN:
                tasks.try_again(work, subtask, self.cause)
            else:
                report = Report(process_ended=not tasks.may_run(subtask))
                tasks.try_send(work, subtask, self.signal, self.cause, report)
        if task.phase != Phase.DONE:
            self._retry_dependents(work, task)
        while task.parent_task_id is not None:
            work.read_tasks([task.parent_task_id])
            task = work.tasks.rows[task.parent_task_id]
            if work.was_told(task, "child_failed"):
                tasks.try_again(work, task, self.cause)

    def _retry_dependents(self, work: Work, task: Task) -> None:
        work.flush()
        dependents = work.transaction.find_dependents([task.id])
        work.read_tasks(dependents)
        for dependent in (work.tasks.rows[task_id] for task_id in dependents):
            if work.was_told(dependent, "dependency_failed"):
                tasks.try_again(work, dependent, self.cause)
                self._retry_dependents(work, dependent)

    def _find_subtasks(self, work: Work, task: Task) -> list[Task]:
        """All subtasks that have not succeeded, at any depth."""
        work.flush()
        parents, found = {task.id}, []
        for row in sorted(work.transaction.select_run_tasks(task.run_id, tuple(Phase)), key=lambda row: row.depth):
            if row.parent_task_id in parents:
                parents.add(row.id)
                work.tasks.hold([row])
                subtask = work.tasks.rows[row.id]
                if subtask.outcome is None or subtask.outcome == Outcome.FAILURE:
                    found.append(subtask)
        return found

    def _reopen_run(self, work: Work, task: Task, decided: Sequence[Transition]) -> None:
        """Another try of a task whose run has ended is another try of the run, where its machine knows such a thing. A decision
        is none.
        """
        run = work.runs.rows[task.run_id]
        if run.phase != Phase.DONE:
            return
        if decided[0].signal in DECISIONS:
            tasks.refuse(work.machine(run).refuse(run.state, self.signal, already_there=False))
        state = work.machine(task).state(decided[-1].to_state)
        if state.phase is Phase.DONE and task.outcome != Outcome.FAILURE:
            return  # it is skipped before it was tried, and nothing of the run is tried again for that
        refusal = runs.try_send(work, run, "retry", self.cause, reopens=False)
        if state.phase is not Phase.DONE:
            tasks.refuse(refusal)
