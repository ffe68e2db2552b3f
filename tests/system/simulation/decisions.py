"""What people decide: one of them wins, the others are told, and what they said reaches the next attempt, once.

Everything is read from the audit trail and held against what was sent and answered; nothing here asks the engine.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.system.simulation.gates import Gates
from tests.system.simulation.post import Message
from tests.system.simulation.process import Time
from tests.system.simulation.promises import Move, Promises, keep
from tests.system.simulation.shapes import QUESTIONS

from pointsman.engine.operations.attempts import ReportAttempt
from pointsman.engine.operations.runs import ApproveRun
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.transition import RequestTransition
from pointsman.engine.operations.upkeep import FireTimers
from pointsman.engine.operations.workers import ClaimTasks
from pointsman.errors import OutcomeUnknown, PointsmanError, TransitionRefused
from pointsman.store.rows import Task

ANSWERED = "an answer reaches the next attempt"
FITS = "an answer fits its question"
COMMENTED = "a comment reaches the next attempt"
MADE = "a decision that was accepted was made"
TOLD = "whoever loses a race is told"
PLANNED = "subtasks are added once, by the attempt that holds the task"
WAITS = "a parent ends after its subtasks"
DECISIONS = ("approve", "reject", "accept", "answer")


@dataclass(slots=True)
class Talk:
    """What a task and the people around it have said last."""

    is_asked: bool = False
    answer: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a commit did to a run or a task."""

    state: str | None
    """Where it was before; None: it is new."""
    moves: Sequence[Move]

    @property
    def states(self) -> set[str | None]:
        return {self.state, *(move.to_state for move in self.moves)}


@dataclass(frozen=True, slots=True)
class Heard:
    """A message, and its answer if the process has lived to give one."""

    message: Message
    outcome: Any
    is_repeated: bool
    """The same request was answered in an earlier commit."""

    @property
    def command(self) -> Any:
        return self.message.command

    @property
    def is_accepted(self) -> bool:
        return self.outcome is not None and not isinstance(self.outcome, PointsmanError) and not self.is_repeated

    @property
    def may_be_accepted(self) -> bool:
        return self.outcome is None or isinstance(self.outcome, OutcomeUnknown) or self.is_accepted


class Decisions:
    def __init__(self, promises: Promises, time: Time) -> None:
        self._promises = promises
        self._time = time
        self._gates = Gates(promises, time)
        self._talks: defaultdict[str, Talk] = defaultdict(Talk)
        self._read: Counter[str] = Counter()
        """By run and task: how many moves of its trail have been followed."""
        self._planned: set[tuple[str, str]] = set()
        self._subtasks: defaultdict[str, list[str]] = defaultdict(list)
        self._repeated: list[bool] = []
        self._open: dict[str, list[str]] = {}
        """By run of which all gates shall be approved: those that were open."""
        self._began_at = 0.0

    def expect(self, batch: Sequence[Message]) -> None:
        """Called before a process gets these messages."""
        self._began_at = self._time.seconds
        requests = [(message.command.tenant, message.command.request) for message in batch]
        self._repeated = [
            bool(request and self._promises.has_key(tenant, request.endpoint, request.key)) for tenant, request in requests
        ]
        approved = [message.command.run_id for message in batch if isinstance(message.command, ApproveRun)]
        self._open = {run_id: self._gates.lists_open(run_id) for run_id in approved}

    def check(self, batch: Sequence[Message], outcomes: Sequence[Any] | None) -> None:
        """Called when the process has answered, or died, and what it wrote has been looked at."""
        told = outcomes or [None] * len(batch)
        heard = [Heard(*each) for each in zip(batch, told, self._repeated, strict=True)]
        steps = {name: self._read_step(name) for name in self._promises.changed}
        for name, step in steps.items():
            if name in self._promises.tasks:
                self._follow(self._promises.tasks[name], step, heard)
        for each in heard:
            self._check_answer(each, steps)
        self._check_accepted(heard, steps)

    def _read_step(self, name: str) -> Step:
        trail, read = self._promises.trails[name], self._read[name]
        self._read[name] = len(trail)
        return Step(trail[read - 1].to_state if read else None, trail[read:])

    # what a task has gone through

    def _follow(self, task: Any, step: Step, heard: Sequence[Heard]) -> None:
        if task.is_gate:
            self._gates.follow(task, step.state, step.moves, self._began_at)
        else:
            self._follow_talk(task, step, heard)
        if step.state is None and task.parent_task_id is not None:
            self._subtasks[task.parent_task_id].append(task.id)
            self._check_planned(task, heard)
        if step.moves and task.outcome == "success" and task.id in self._subtasks:
            self._check_end(task, step.moves[-1])

    def _follow_talk(self, task: Any, step: Step, heard: Sequence[Heard]) -> None:
        talk = self._talks[task.id]
        for number, move in enumerate(step.moves):
            # A run that is canceled takes back what waits for people, and cancels it then.
            is_withdrawn = any(later.trigger == "cancel" for later in step.moves[number + 1 :])
            if move.trigger == "ask":
                talk.is_asked, talk.answer = True, None
            elif move.trigger == "answer" and is_withdrawn and move.metadata is None:
                talk.answer = None
            elif move.trigger == "answer":
                self._follow_answer(task, talk, move)
            elif move.trigger == "reject":
                talk.comment = task.comment
                said = {*_comments(task.id, move.actor, heard), *([None] if is_withdrawn else [])}
                keep(COMMENTED, task.comment in said, f"{task.id} has {task.comment!r}, and people said {said}: {move}")
        keep(ANSWERED, task.answer == talk.answer, f"{task.id} has {task.answer!r} instead of {talk.answer!r}")
        keep(COMMENTED, task.comment == talk.comment, f"{task.id} has {task.comment!r} instead of {talk.comment!r}")

    def _follow_answer(self, task: Any, talk: Talk, move: Move) -> None:
        said = json.loads(move.metadata or "{}")
        keep(ANSWERED, talk.is_asked and said.get("answer"), f"{task.id} is answered, and has asked nothing: {move}")
        keep(FITS, QUESTIONS[said["question"]].fits(said["answer"]), f"{task.id}: {said}")
        talk.is_asked, talk.answer = False, said["answer"]

    def _check_planned(self, task: Any, heard: Sequence[Heard]) -> None:
        """A subtask that an attempt has added: nobody else has, and its report was accepted."""
        parent = self._promises.tasks[task.parent_task_id]
        if not task.name.startswith(f"{parent.name}/"):
            return  # a person has added it
        name = (task.run_id, task.name)
        keep(PLANNED, name not in self._planned, f"{name} is added again")
        self._planned.add(name)
        reports = [each for each in heard if isinstance(each.command, ReportAttempt) and each.command.task_id == parent.id]
        held = [each for each in reports if each.may_be_accepted and each.command.epoch == parent.epoch]
        planned = {new.name for each in held for new in each.command.report.subtasks}
        keep(PLANNED, task.name in planned, f"{name} was added, and no report of {parent.id} that counts has it")

    def _check_end(self, task: Any, last: Move) -> None:
        """Document 004 lets a subtask end before its own subtasks; whoever skips a task does not wait either."""
        machine = self._promises.machine_of(task)
        waits = self._promises.takes(machine, "BLOCKED", "children_done") and not (
            machine == "agent.task" and task.parent_task_id
        )
        if not waits or last.trigger == "skip":
            return
        before = [each for each in self._subtasks[task.id] if self._promises.trails[each][0].position < last.position]
        left = [each for each in before if self._promises.tasks[each].phase != "done"]
        keep(WAITS, not left, f"{task.id} is {task.state} while {left} are not done: {last}")

    # what people and workers heard

    def _check_answer(self, heard: Heard, steps: dict[str, Step]) -> None:
        command, outcome = heard.command, heard.outcome
        if isinstance(command, ClaimTasks) and isinstance(outcome, tuple):
            for claim in outcome[0]:
                talk = self._talks[claim.task_id]
                keep(ANSWERED, claim.answer == talk.answer, f"{claim} was given instead of {talk}")
                keep(COMMENTED, claim.comment == talk.comment, f"{claim} was given instead of {talk}")
        elif isinstance(command, SignalTask) and isinstance(outcome, TransitionRefused):
            self._check_refusal(heard, steps)
        elif isinstance(command, FireTimers) and isinstance(outcome, int):
            self._gates.check_overdue(self._began_at)
        elif isinstance(command, ApproveRun) and heard.is_accepted:
            for task_id in set(self._open[command.run_id]).intersection(self._gates.lists_open(command.run_id)):
                self._check_approval(heard, task_id)
        elif isinstance(command, ReportAttempt) and heard.is_accepted and isinstance(outcome, Task):
            self._check_plan(command, outcome)

    def _check_refusal(self, heard: Heard, steps: dict[str, Step]) -> None:
        """It names the state in which it came, and that state does not take it."""
        task = self._promises.tasks[heard.command.task_id]
        refusal: Any = heard.outcome.refusal
        rows = (task, self._promises.runs[task.run_id])
        states = {state for row in rows for state in (steps[row.id].states if row.id in steps else {row.state})}
        named = refusal.state in states and refusal.state in str(heard.outcome)
        keep(TOLD, named, f"{heard.message} was told {heard.outcome}, and {task.id} was {states}")
        if heard.command.signal in DECISIONS:
            takes = self._promises.takes(refusal.machine, refusal.state, heard.command.signal)
            keep(TOLD, not takes or refusal.unmet, f"{heard.message} was told {heard.outcome}")

    def _check_approval(self, heard: Heard, task_id: str) -> None:
        person = heard.command.caller.actor
        keep(MADE, self._gates.has_approved(task_id, person), f"{heard.message}: {task_id} lacks the approval of {person}")

    def _check_plan(self, command: ReportAttempt, outcome: Task) -> None:
        names = {task.name for task in self._promises.tasks_of(outcome.run_id) if task.parent_task_id == outcome.id}
        lost = {new.name for new in command.report.subtasks} - names
        keep(PLANNED, not lost, f"{lost} of {outcome.id} were not added")

    def _check_accepted(self, heard: Sequence[Heard], steps: dict[str, Step]) -> None:
        """Each decision that was accepted is a move of its own; a second approval of one person changes nothing."""
        accepted: Counter[tuple[str, str, str]] = Counter()
        keys: set[tuple[str, str]] = set()
        for each in heard:
            command = each.command
            if not (isinstance(command, SignalTask) and command.signal in DECISIONS and each.is_accepted):
                continue
            key = (command.tenant, command.request_id or "")
            if command.signal == "approve":
                self._check_approval(each, command.task_id)
            elif command.request_id is None or key not in keys:
                accepted[command.task_id, command.signal, command.caller.actor] += 1
            keys.add(key)
        for (task_id, signal, person), number in accepted.items():
            moves = steps[task_id].moves if task_id in steps else ()
            made = sum((move.trigger, move.actor) == (signal, person) for move in moves)
            keep(MADE, number <= made, f"{person} was told {number} times that {signal} of {task_id} was done: {moves}")


def _comments(task_id: str, person: str | None, heard: Sequence[Heard]) -> Iterator[str | None]:
    """What this person may have said with a rejection; whoever asks for a state says nothing."""
    for each in heard:
        command = each.command
        if not each.may_be_accepted or command.caller.actor != person:
            continue
        if isinstance(command, SignalTask) and (command.task_id, command.signal) == (task_id, "reject"):
            yield command.comment
        elif isinstance(command, RequestTransition) and command.entity_id == task_id:
            yield None
