"""Carrying one run through to its end, here and now: a worker for it, something to watch, and what signals mean."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
import msgspec

from pointsman.cli.describe import explain_breaker, explain_exhaustion, explain_loss, find_lost, read_error, read_tool
from pointsman.cli.output import count, data_apart, tell, write_line
from pointsman.cli.progress import Change, Progress
from pointsman.cli.project import Project, person, short
from pointsman.cli.view import FRAMES_A_SECOND, SKIP, View, choose_view, count_by_outcome, format_seconds
from pointsman.engine.engine import Engine
from pointsman.errors import PointsmanError, StoreError
from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.rows import Run, Task, Transition
from pointsman.worker import journal, processes
from pointsman.worker.worker import RETRY_SECONDS, Worker

EXIT_CODES = {Outcome.SUCCESS: 0, Outcome.FAILURE: 1, Outcome.CANCELED: 1}
INTERRUPTED = 130
ENDED = 143
MOST_FAILURES_SHOWN = 10
ENGINE = "engine"
PATIENCE_SECONDS = 0.5
LOOK_SECONDS = 0.05
"""Between one look at what has happened and the next: people do not see less."""
CIRCUIT_SECONDS = 0.5
"""Between one look at the circuits of tools and the next."""


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True)
class Interruption:
    """What signals have asked for so far."""

    code: int | None = None
    count: int = 0


async def run_to_end(project: Project, run: Run, *, after: str | None = None, as_json: bool) -> int:
    """Work on a run until it has ended; the exit code says how. What happened up to `after` is known, and not shown again."""
    with data_apart() if as_json else nullcontext():
        return await _carry(project, run, after, as_json=as_json)


async def _carry(project: Project, run: Run, after: str | None, *, as_json: bool) -> int:
    engine, world = project.engine, project.world
    progress = Progress(engine, run.id)

    def say(words: str) -> None:
        view.say(words)

    worker = Worker(engine, project.settings, world, name=worker_name(), run_id=run.id, notify=say)
    view = choose_view(progress, worker.last_line, run.name, as_json=as_json)
    interruption = Interruption()
    log = project.settings.directory / ".state" / "transitions.jsonl"
    following = Following(project, run.id, progress, view, worker, after)
    others = [
        asyncio.create_task(following.follow(), name="follow"),
        asyncio.create_task(_tick(project, view), name="tick"),
        asyncio.create_task(journal.keep(engine, log, world.sleep), name="journal"),
        asyncio.create_task(_tell_of_circuits(project, run, view), name="circuits"),
    ]
    for task in others:
        # None of them ends by itself: if one does, something is wrong, and nobody would notice.
        task.add_done_callback(lambda _: worker.drain())
    try:
        with _signals(project, run, worker, view, interruption):
            await worker.work()
            processes.end_strays()
    finally:
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        with suppress(StoreError):
            await following.catch_up()
        view.close()
    for task in others:
        if not task.cancelled():
            task.result()
    await finish_log(engine, log)
    return await _conclude(project, run.id, interruption, as_json=as_json)


async def finish_log(engine: Engine, log: Path) -> None:
    """Bring the log of transitions up to date; it is a copy, and what cannot be written now can be later on."""
    try:
        await journal.append(engine, log)
    except (OSError, PointsmanError) as error:
        tell(f"{log} is not up to date: {error} Write it anew: pointsman history --rebuild")


@dataclass(slots=True)
class Following:
    """Shows what happens in a run, and lets its worker go when it has ended."""

    project: Project
    run_id: str
    progress: Progress
    view: View
    worker: Worker
    after: str | None
    """What happened up to here is known, and not shown again."""
    position: str | None = None
    is_over: bool = False
    """Nothing is done here any more."""

    async def follow(self) -> None:
        """For ever; while the database is away, nothing happens."""
        while True:
            try:
                async for transition in self.project.engine.watch(
                    after=self.position, run_id=self.run_id, pause_seconds=LOOK_SECONDS
                ):
                    await self._take(transition)
            except StoreError:
                await self.project.world.sleep(RETRY_SECONDS)

    async def catch_up(self) -> None:
        """What has happened since the last look, when all is over."""
        self.is_over = True
        while page := await self.project.engine.list_transitions(after=self.position, run_id=self.run_id):
            for transition in page:
                await self._take(transition)

    async def _take(self, transition: Transition) -> None:
        change = await self.progress.take(transition)
        self.position = transition.position
        if change is None:
            return
        is_known = self.after is not None and int(transition.position) <= int(self.after)
        if not is_known:
            self.view.change(change)
        if change.line is None:
            await self._take_run(change, is_known=is_known)

    async def _take_run(self, change: Change, *, is_known: bool) -> None:
        """The run itself has moved; one that has ended may have been taken up again since."""
        run = await self.project.engine.get_run(self.run_id)
        if run.phase == Phase.DONE:
            self.worker.drain()
            if not is_known and not self.is_over:
                await self._tell_of_leftovers(run)
        elif change.state.phase is Phase.HELD and not is_known:
            see = f"See what can be done: {self.project.hint('status', short(self.run_id))}"
            self.view.say(f"The run is {run.state}, and this waits until it goes on. {see}")

    async def _tell_of_leftovers(self, run: Run) -> None:
        """Whoever is waited for although the run has ended; mostly it is over in a moment, and not worth a word."""
        await self.project.world.sleep(PATIENCE_SECONDS)
        running = [task.name for task in await self.project.engine.list_tasks(run.id) if task.phase == Phase.ACTIVE]
        if running:
            self.view.say(f"The run is {run.state}; waiting for what still runs: {', '.join(running)}")


async def _tell_of_circuits(project: Project, run: Run, view: View) -> None:
    """Whenever the circuit of one of its tools opens: then nothing happens for a while, and people would wonder why."""
    engine = project.engine
    told: set[tuple[str, datetime | None]] = set()
    while True:
        with suppress(StoreError):
            breakers = await engine.list_breakers() if project.settings.tools else []
            untold = [each for each in breakers if each.phase == Phase.HELD and (each.tool, each.retry_at) not in told]
            tasks = await engine.list_tasks(run.id) if untold else []
            wanted = {read_tool(task) for task in tasks if task.phase != Phase.DONE}
            for breaker in untold:
                if breaker.tool in wanted:
                    told.add((breaker.tool, breaker.retry_at))
                    view.say(f"{explain_breaker(breaker, 0, project.world.clock.now())}; its tasks wait for that.")
        await project.world.sleep(CIRCUIT_SECONDS)


async def _tick(project: Project, view: View) -> None:
    while True:
        view.tick(project.world.clock.now())
        await project.world.sleep(1 / FRAMES_A_SECOND)


@contextmanager
def _signals(project: Project, run: Run, worker: Worker, view: View, interruption: Interruption) -> Iterator[None]:
    """Ctrl-C cancels the run, twice kills what runs; SIGTERM finishes what runs and leaves the rest for later, twice kills."""
    loop = asyncio.get_running_loop()
    cancelling: set[asyncio.Task[None]] = set()

    async def cancel() -> None:
        while True:
            try:
                await project.engine.for_tenant(actor=person()).signal_run(
                    run.id, "cancel", reason="interrupted from the keyboard"
                )
            except StoreError as error:
                view.say(f"It cannot be cancelled yet: {error}")
                await project.world.sleep(RETRY_SECONDS)
            except PointsmanError:
                break  # it has ended meanwhile
            else:
                break

    def interrupted(code: int) -> None:
        interruption.count += 1
        interruption.code = code
        if interruption.count > 1:
            worker.kill()
            view.say("Killing what runs.")
        elif code == INTERRUPTED:
            cancelling.add(asyncio.ensure_future(cancel()))
            view.say("Calling the run off; once more to kill what runs.")
        else:
            worker.drain()
            view.say("Finishing what runs; once more to kill it.")

    loop.add_signal_handler(signal.SIGINT, interrupted, INTERRUPTED)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted, ENDED)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        for task in cancelling:
            task.cancel()


async def _conclude(project: Project, run_id: str, interruption: Interruption, *, as_json: bool) -> int:
    """Say how it went, and where to look."""
    run = await project.engine.get_run(run_id)
    tasks = await project.engine.list_tasks(run_id)
    if as_json:
        write_line(msgspec.json.encode(summarize(run, tasks)) + b"\n")
    else:
        machines = {task.machine_id: await project.engine.get_machine(task) for task in tasks}
        _show_summary(project, run, tasks, find_lost(tasks, machines))
    if run.outcome is None:
        return interruption.code or 1
    return interruption.code if interruption.code and run.outcome != Outcome.SUCCESS else EXIT_CODES[Outcome(run.outcome)]


def summarize(run: Run, tasks: list[Task]) -> dict[str, object]:
    return {
        "run_id": run.id,
        "name": run.name,
        "state": run.state,
        "outcome": run.outcome,
        "error": read_error(run.error),
        "tasks": [
            {
                "name": task.name,
                "state": task.state,
                "outcome": task.outcome,
                "attempts": task.epoch,
                "error": read_error(task.error) if task.outcome == Outcome.FAILURE or is_given_up(task) else None,
                "log": task.attempt_log_path,
            }
            for task in tasks
        ],
    }


def is_given_up(task: Task) -> bool:
    """It failed, and was not critical, so the others went on without it."""
    return task.trigger == SKIP and task.actor == ENGINE


def _show_summary(project: Project, run: Run, tasks: list[Task], lost: list[Task]) -> None:
    colors = {Outcome.SUCCESS: "green", Outcome.FAILURE: "red", Outcome.CANCELED: "yellow", None: "yellow"}
    outcome = Outcome(run.outcome) if run.outcome else None
    reason = run.reason or read_error(run.error) if outcome is Outcome.FAILURE else None
    failed = [task for task in tasks if task.outcome == Outcome.FAILURE]
    given_up = [task for task in tasks if is_given_up(task)]
    tell(
        f"{click.style(run.state, fg=colors[outcome], bold=True)}  {run.name}: {_count(tasks, len(given_up))} "
        f"of {count(len(tasks), 'task')}{_elapsed(run)}{f' – {reason}' if reason and not failed else ''}"
    )
    _show_failures(project, failed, "red")
    _show_failures(project, given_up, "yellow")
    name = short(run.id)
    exhausted = explain_exhaustion(run, project.world.clock.now())
    hints = {project.hint("logs", name): "what its tasks wrote"}
    if run.outcome is None:
        hints[project.hint("resume", name)] = "go on"
    elif failed and not lost and not exhausted:
        again = f"{project.hint('retry', name)} && {project.hint('resume', name)}"
        hints[again] = "try again what failed"
    for command, what in hints.items():
        tell(click.style(f"  {command}  # {what}", dim=True))
    if outcome is Outcome.FAILURE and (lost or exhausted):
        tell(explain_loss(lost[0]) if lost else exhausted)


def _count(tasks: list[Task], given_up: int) -> str:
    skipped = sum(task.trigger == SKIP for task in tasks) - given_up
    counts = {each.value: sum(task.outcome == each and task.trigger != SKIP for task in tasks) for each in Outcome}
    open_tasks = sum(task.outcome is None for task in tasks)
    words = (
        count_by_outcome(counts),
        f"{given_up} failed (not critical)" if given_up else "",
        f"{skipped} skipped" if skipped else "",
        f"{open_tasks} not done" if open_tasks else "",
    )
    return ", ".join(filter(None, words))


def _show_failures(project: Project, tasks: list[Task], color: str) -> None:
    for task in tasks[:MOST_FAILURES_SHOWN]:
        error = (read_error(task.error) or task.state).rstrip().replace("\n", "\n      ")
        tell(f"  {click.style('✗ ' + task.name, fg=color)}  {error}")
        if task.attempt_log_path:
            tell(click.style(f"    log: {_relative(project, task.attempt_log_path)}", dim=True))
    if len(tasks) > MOST_FAILURES_SHOWN:
        tell(f"  … and {len(tasks) - MOST_FAILURES_SHOWN} more")


def _elapsed(run: Run) -> str:
    if run.completed_at is None:
        return ""
    return f" in {format_seconds((run.completed_at - run.created_at).total_seconds())}"


def _relative(project: Project, path: str) -> str:
    return path.removeprefix(f"{project.settings.directory}/")
