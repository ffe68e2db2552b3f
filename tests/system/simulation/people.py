"""Simulated people: they submit runs of any shape, decide what waits for them, and get in the way of each other."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

from tests.system.simulation.post import Message
from tests.system.simulation.promises import PERSONS
from tests.system.simulation.shapes import LIMITS, QUESTIONS, TENANTS, TOOLS, draw_run, draw_tasks

from pointsman.engine.operation import Caller
from pointsman.engine.operations.runs import AddTasks, ApproveRun, SetBudget, SignalRun, StartRun, SubmitRun
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.tools import DeclareTool, ResetBreaker
from pointsman.engine.operations.transition import RequestTransition
from pointsman.engine.operations.workers import SignalWorker
from pointsman.engine.people import PEOPLE
from pointsman.engine.questions import read_question
from pointsman.errors import StoreError
from pointsman.kernel.machine import Kind

if TYPE_CHECKING:
    from tests.system.simulation.scheduler import Simulation

WISE = {"WAITING_APPROVAL": "approve", "BLOCKED": "answer", "READY": "accept", "FAILED": "retry", "S_FAILED": "reset"}
DECISIONS = {
    "WAITING_APPROVAL": ("approve", "approve", "approve", "reject", "skip", "cancel"),
    "BLOCKED": ("answer", "answer", "answer", "cancel"),
    "READY": ("accept", "reject", "reject", "cancel"),
}
"""What people say to a task that waits for them."""
MOST_RUNS = 12
MOST_TASKS = 60
PATIENCE_SECONDS = 8.0


def person_of(tenant: str, name: str = PERSONS[0]) -> Caller:
    return Caller(tenant, name)


def draw_answer(chance: Random, question: str | None, words: str) -> str:
    """Something that may be an answer to the question."""
    answers = QUESTIONS[read_question(question).text].answers if question is not None else ()
    return chance.choice(answers) if answers else words


class Client:
    """Asks for one thing after the other; what has a key is asked again until there is an answer."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._name = name
        self._asked: list[Message] = []
        self._number = 0

    def act(self) -> None:
        now = self._simulation.time.seconds
        for message in self._asked:
            if now - message.sent_at > PATIENCE_SECONDS:
                message.sent_at = now
                self._simulation.send(message)
                return
        if len(self._asked) >= 3:
            return
        for command in self._draw_all():
            message = Message(command, self, now)
            self._simulation.send(message)
            if command.request_id is not None:
                self._asked.append(message)

    def hear(self, message: Message, outcome: Any) -> None:
        if not isinstance(outcome, StoreError):
            self._asked = [each for each in self._asked if each is not message]

    def _draw_all(self) -> Iterator[Any]:
        """One thing, or what several people want of the same task at once."""
        chance = self._simulation.chance
        tasks = self._simulation.promises.tasks.values()
        waiting = [task for task in tasks if task.phase == "held" and task.state in DECISIONS]
        if not waiting or chance.random() < (0.4 if self._simulation.is_peopled else 0.8):
            command = self._draw()
            if command is not None:
                yield command
            return
        task = chance.choice(waiting)
        for _ in range(chance.choice((1, 1, 2, 3))):
            yield self._signal_task(task, task.tenant, chance.choice(DECISIONS[task.state]))
        if task.parent_task_id is not None and chance.random() < 0.5:
            yield self._signal_task(self._simulation.promises.tasks[task.parent_task_id], task.tenant, "skip")

    def _draw(self) -> Any:
        chance, seen = self._simulation.chance, self._simulation.promises
        luck = chance.random()
        if not seen.runs or (luck < 0.3 and len(seen.runs) < MOST_RUNS):
            return self._submit(chance.choice(TENANTS))
        run = seen.runs[chance.choice(list(seen.runs))]
        # Now and then somebody asks for what belongs to another.
        tenant = run.tenant if chance.random() > 0.03 else chance.choice(TENANTS)
        if luck < 0.4:
            return self._add(run, tenant) if len(seen.tasks) < MOST_TASKS else None
        if luck < 0.5:
            return self._signal_run(run, tenant)
        if luck < 0.55:
            return self._approve_or_start(run, tenant)
        if luck < 0.58:
            budget = chance.choice((None, Decimal(1), Decimal(4), Decimal(20)))
            key = self._simulation.draw_key()
            return SetBudget(run.id, budget, caller=person_of(tenant), request_id=key)
        if luck < 0.62:
            return self._signal_worker()
        if luck < 0.66:
            return self._touch_tool(tenant)
        tasks = seen.tasks_of(run.id)
        if not tasks:
            return None
        task = chance.choice(tasks)
        return self._signal_task(task, tenant) if luck < 0.94 else self._transition(task, tenant)

    def _draw_person(self, tenant: str) -> Caller:
        return person_of(tenant, self._simulation.chance.choice(PERSONS))

    def _approve_or_start(self, run: Any, tenant: str) -> ApproveRun | StartRun:
        key, caller = self._simulation.draw_key(), self._draw_person(tenant)
        if self._simulation.chance.random() < 0.5:
            return StartRun(run.id, caller=caller, request_id=key)
        return ApproveRun(run.id, caller=caller, request_id=key)

    def _submit(self, tenant: str) -> SubmitRun:
        self._number += 1
        new = draw_run(self._simulation.chance, f"{self._name}-{self._number}", is_peopled=self._simulation.is_peopled)
        return SubmitRun(new, caller=person_of(tenant), request_id=self._simulation.draw_key())

    def _add(self, run: Any, tenant: str) -> AddTasks:
        chance = self._simulation.chance
        tasks = list(self._simulation.promises.tasks_of(run.id))
        # What runs now may end in the same commit in which others begin to wait for it.
        running = [task for task in tasks if task.phase == "active"]
        known = tuple(task.name for task in (running if running and chance.random() < 0.7 else tasks))
        new = draw_tasks(chance, chance.choice((1, 1, 2)), run.lifecycle, known)
        return AddTasks(run.id, new, caller=person_of(tenant), request_id=self._simulation.draw_key())

    def _signal_run(self, run: Any, tenant: str) -> SignalRun:
        signal = self._simulation.chance.choice((*PEOPLE[Kind.RUN], "pause", "resume", "checks_passed", "resume"))
        key = self._simulation.draw_key()
        return SignalRun(run.id, signal, output=3, caller=person_of(tenant), request_id=key)

    def _signal_task(self, task: Any, tenant: str, signal: str | None = None) -> SignalTask:
        """Each says it in words of their own: what arrives somewhere shows who has said it."""
        chance = self._simulation.chance
        if signal is None:
            wise = WISE.get(task.state)
            signal = wise if wise and chance.random() < 0.6 else chance.choice(PEOPLE[Kind.TASK])
        self._number += 1
        words = f"{self._name}-{self._number}"
        answer = draw_answer(chance, task.question, words)
        key = self._simulation.draw_key()
        return SignalTask(task.id, signal, answer, words, caller=self._draw_person(tenant), request_id=key)

    def _transition(self, task: Any, tenant: str) -> RequestTransition:
        chance = self._simulation.chance
        state = chance.choice([row.state for row in self._simulation.promises.tasks.values()])
        trigger = chance.choice(("cancel", "skip", "retry", "reset", "approve", "user_cancelled", "run"))
        by_state = chance.random() < 0.5
        return RequestTransition(
            kind=Kind.TASK,
            entity_id=task.id,
            to_state=state if by_state else None,
            trigger=None if by_state else trigger,
            caller=person_of(tenant),
            request_id=self._simulation.draw_key(),
        )

    def _signal_worker(self) -> SignalWorker | None:
        chance, seen = self._simulation.chance, self._simulation.promises
        if not seen.workers:
            return None
        worker = seen.workers[chance.choice(list(seen.workers))]
        signal = chance.choice((*PEOPLE[Kind.WORKER], "pause", "resume", "resume", "drain"))
        key = self._simulation.draw_key()
        return SignalWorker(worker.id, signal, ended=True, reason="by hand", caller=person_of(worker.tenant), request_id=key)

    def _touch_tool(self, tenant: str) -> DeclareTool | ResetBreaker:
        chance = self._simulation.chance
        tool = chance.choice(TOOLS)
        key = self._simulation.draw_key()
        if chance.random() < 0.5:
            return ResetBreaker(tool, caller=person_of(tenant), request_id=key)
        failures, successes = chance.choice((1, 2, 3)), chance.choice((1, 2))
        return declare_tool(tenant, tool, failures, successes, chance.choice((3.0, 10.0)), key, **chance.choice(LIMITS))


def declare_tool(
    tenant: str, tool: str, failures: int, successes: int, cooldown_seconds: float, key: str | None = None, **limits: Any
) -> DeclareTool:
    return DeclareTool(
        caller=person_of(tenant),
        request_id=key,
        tool=tool,
        failure_threshold=failures,
        success_threshold=successes,
        cooldown_seconds=cooldown_seconds,
        **limits,
    )
