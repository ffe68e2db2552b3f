"""Next steps as commands, and reasons for waiting as words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from pointsman.cli.output import count, show_seconds, show_time
from pointsman.cli.project import Project
from pointsman.engine.policy import find_workspace
from pointsman.errors import StoreError
from pointsman.store.contract import Wakeup
from pointsman.views.find import short
from pointsman.views.runs import list_waiting
from pointsman.views.values import NEEDS_PERSON, NextStep, RunView, RunWaiting, Waiting

RUN_COMMANDS = ("resume", "retry", "pause", "cancel")
TASK_COMMANDS = ("approve", "reject", "accept", "answer", "start", "reset", "resume", "retry", "skip", "cancel")
COMMANDS = {"work": "resume", "ready": "start"}
"""Operations that people know by another name."""
LEADS = {
    "approval": ", expires in",
    "circuit_open": ", retry in",
    "lost_worker": ", its lease ends in",
    "rate_limit": ", retry in",
    "retry_delay": " in",
}
"""What to say before the time that is left, by the kind of waiting."""
LONG_SECONDS = 60
"""A wait that lasts longer also says until when."""
LOOK_SECONDS = 0.5
LONGEST_SECONDS = 5.0
"""While tasks keep moving, look no more often than this."""


def write_command(project: Project, step: NextStep, run_id: str, tasks: Mapping[str, str]) -> str | None:
    """The command that takes a step; None where this person has none for it. `tasks` has names by id."""
    if (step.by and project.actor not in step.by) or project.actor in step.not_by:
        return None
    words = [word for each in step.capabilities for word in _write_capability(each)]
    if step.operation == "serve":
        return project.hint("worker", *words)
    name = COMMANDS.get(step.operation, step.operation)
    if step.target == run_id:
        return project.hint(name, short(run_id), *words) if name in RUN_COMMANDS else None
    return project.hint_decision(name, short(run_id), tasks[step.target]) if name in TASK_COMMANDS else None


def _write_capability(capability: str) -> tuple[str, str]:
    workspace = find_workspace((capability,))
    return ("--workspace", workspace) if workspace else ("--capability", capability)


def list_commands(project: Project, view: RunView) -> list[tuple[str, NextStep]]:
    """Every next step of a run that the command line has a command for."""
    names = {task.id: task.name for task in view.tasks}
    commands = [(write_command(project, step, view.id, names), step) for step in view.next_steps]
    return [(command, step) for command, step in commands if command]


def show_waiting(waiting: Waiting, now: datetime) -> str:
    """A reason, and how long it still lasts."""
    if waiting.until is None:
        return waiting.reason
    left = max((waiting.until - now).total_seconds(), 0)
    at = f" (at {show_time(waiting.until, now)})" if left >= LONG_SECONDS else ""
    return f"{waiting.reason}{LEADS.get(waiting.kind, ', for another')} {show_seconds(left)}{at}"


def _end(sentence: str) -> str:
    """With a full stop, unless it has an end of its own."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


@dataclass(slots=True)
class WaitingPrinter:
    """Says why tasks wait while a command runs: each reason once, and again after it has passed."""

    project: Project
    say: Callable[[str], None]
    run_id: str | None = None
    """The only run to look at."""
    works: bool = False
    """This process is a worker itself, so there is no need to say that none is running."""
    _told: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """By run and reason: since when it waits."""
    _looked_at: datetime | None = None

    async def keep_telling(self) -> None:
        """Look when something has moved and then nothing for a moment; and from time to time in any case."""
        moved = asyncio.Event()
        stop = self.project.engine.listen(Wakeup.EVENTS, moved.set)
        try:
            while True:
                await self._settle(moved)
                with suppress(StoreError):  # the worker says so when the database is away
                    await self.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LONGEST_SECONDS):
                        await moved.wait()
        finally:
            stop()

    async def _settle(self, moved: asyncio.Event) -> None:
        for _ in range(round(LONGEST_SECONDS / LOOK_SECONDS)):
            moved.clear()
            await self.project.world.sleep(LOOK_SECONDS)
            if not moved.is_set():
                break

    async def look(self) -> None:
        now = await self.project.engine.now()
        dead, bound = self.project.find_dead(), self.project.find_bound()
        found = await list_waiting(self.project.engine, now, dead, bound, run_id=self.run_id)
        lines = {
            (each.run_id, why.reason): (why, line)
            for each in found
            for why, line in self._write_lines(each, now)
            if self._tells(why)
        }
        for key, (why, line) in lines.items():
            if key not in self._told or self._waits_again(why, self._told[key]):
                self.say(line)
        self._told = {key: why.since for key, (why, _) in lines.items()}
        self._looked_at = now

    def _waits_again(self, waiting: Waiting, told: datetime) -> bool:
        """A person decided since the last look, and has to decide again: a rejected result that was redone meanwhile."""
        is_new = self._looked_at is not None and waiting.since > max(told, self._looked_at)
        return is_new and waiting.kind in NEEDS_PERSON

    def _tells(self, waiting: Waiting) -> bool:
        return not (self.works and waiting.kind in ("interrupted", "no_worker"))

    def _write_lines(self, run: RunWaiting, now: datetime) -> Iterator[tuple[Waiting, str]]:
        about = "" if self.run_id else f"{run.name} ({short(run.run_id)}): "
        for group in run.tasks:
            who = f"{group.name} waits" if group.count == 1 else f"{count(group.count, 'task')} wait"
            decide = f" To decide: {self.project.hint('inbox')}" if group.waiting.kind in NEEDS_PERSON else ""
            yield group.waiting, f"{about}{who}: {_end(show_waiting(group.waiting, now))}{decide}"
        if run.waiting:  # last, so that it replaces the same reason of a task
            sentence = show_waiting(run.waiting, now)
            line = _end(f"{about}{sentence}" if about else f"{sentence[0].upper()}{sentence[1:]}")
            yield run.waiting, f"{line} {self._write_hint(run)}"

    def _write_hint(self, run: RunWaiting) -> str:
        commands = [write_command(self.project, step, run.run_id, {}) for step in run.next_steps]
        command = next(filter(None, commands), None)
        return f"To continue: {command}" if command else f"See: {self.project.hint('status', short(run.run_id))}"
