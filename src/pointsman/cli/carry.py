"""Carrying one run through to its end, here and now: a worker for it, something to watch, and what signals mean."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from pointsman.cli.output import count
from pointsman.cli.progress import Progress
from pointsman.cli.project import Project, short
from pointsman.cli.view import FRAMES_A_SECOND, View, choose_view, count_by_outcome, format_seconds
from pointsman.engine.engine import Engine
from pointsman.errors import PointsmanError, StoreError
from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.rows import Run, Task
from pointsman.worker import journal, processes
from pointsman.worker.worker import AWAY_SECONDS, Worker

EXIT_CODES = {Outcome.SUCCESS: 0, Outcome.FAILURE: 1, Outcome.CANCELED: 1}
INTERRUPTED = 130
ENDED = 143
MOST_FAILURES_SHOWN = 10
SKIP = "skip"
LOOK_SECONDS = 0.05
"""Between one look at what has happened and the next: people do not see less."""


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True)
class Interruption:
    """What signals have asked for so far."""

    code: int | None = None
    count: int = 0


async def carry(project: Project, run: Run, *, after: str | None = None, as_json: bool) -> int:
    """Work on a run until it has ended; the exit code says how. What happened up to `after` is known, and not shown again."""
    engine, world = project.engine, project.world
    progress = Progress(engine, run.id)

    def say(words: str) -> None:
        view.say(words)

    worker = Worker(engine, project.settings, world, name=worker_name(), run_id=run.id, say=say)
    view = choose_view(progress, worker.last_line, run.name, as_json=as_json)
    interruption = Interruption()
    log = project.settings.directory / ".state" / "transitions.jsonl"
    working = asyncio.create_task(worker.work(), name="worker")
    others = [
        asyncio.create_task(_follow(project, run.id, progress, view, worker, after), name="follow"),
        asyncio.create_task(_tick(project, view), name="tick"),
        asyncio.create_task(journal.keep(engine, log, world.sleep), name="journal"),
    ]
    try:
        with _signals(project, run, worker, view, interruption):
            await asyncio.wait({working, others[0]}, return_when=asyncio.FIRST_COMPLETED)
            worker.drain()
            await working
            processes.end_strays()
            if others[0].done():
                others[0].result()
    finally:
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        view.close()
    await finish_log(engine, log)
    return await _conclude(project, run.id, interruption, as_json=as_json)


async def finish_log(engine: Engine, log: Path) -> None:
    """Bring the log of transitions up to date; it is a copy, and what cannot be written now can be later on."""
    try:
        await journal.append(engine, log)
    except (OSError, StoreError) as error:
        click.echo(f"{log} is not up to date: {error} Write it anew: pointsman history --rebuild", err=True)


async def _follow(project: Project, run_id: str, progress: Progress, view: View, worker: Worker, after: str | None) -> None:
    """Show what happens, until the run has ended; while the database is away, nothing does."""
    engine = project.engine
    position: str | None = None
    while True:
        try:
            async for transition in engine.watch(after=position, run_id=run_id, pause_seconds=LOOK_SECONDS):
                change = await progress.take(transition)
                is_over = change is not None and change.line is None and change.state.phase is Phase.DONE
                is_over = is_over and (await engine.get_run(run_id)).phase == Phase.DONE
                position = transition.position
                if change is None or (after is not None and int(position) <= int(after)):
                    continue
                view.change(change)
                if change.line is None and change.state.phase is Phase.HELD:
                    view.say(f"The run is {change.state.name}. Go on, or see why: pointsman status {short(run_id)}")
                if change.state.outcome is Outcome.CANCELED or change.line is None:
                    worker.look()
                if is_over:
                    return
        except StoreError:
            await project.world.sleep(AWAY_SECONDS)


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
        with suppress(PointsmanError):
            await project.engine.signal_run(run.id, "cancel", reason="interrupted from the keyboard")
        worker.look()

    def interrupted(code: int) -> None:
        interruption.count += 1
        interruption.code = code
        if interruption.count > 1:
            view.say("Killing what runs.")
            worker.kill()
        elif code == INTERRUPTED:
            view.say("Cancelling; once more to kill what runs.")
            cancelling.add(asyncio.ensure_future(cancel()))
        else:
            view.say("Finishing what runs; once more to kill it.")
            worker.drain()

    loop.add_signal_handler(signal.SIGINT, interrupted, INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, interrupted, ENDED)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


async def _conclude(project: Project, run_id: str, interruption: Interruption, *, as_json: bool) -> int:
    """Say how it went, and where to look."""
    run = await project.engine.get_run(run_id)
    tasks = await project.engine.list_tasks(run_id)
    if as_json:
        click.echo(msgspec.json.encode(summarize(run, tasks)).decode())
    else:
        _show_summary(project, run, tasks)
    if run.outcome is None:
        return interruption.code or 1
    return interruption.code if interruption.code and run.outcome != Outcome.SUCCESS else EXIT_CODES[Outcome(run.outcome)]


def summarize(run: Run, tasks: list[Task]) -> dict[str, object]:
    return {
        "run_id": run.id,
        "name": run.name,
        "state": run.state,
        "outcome": run.outcome,
        "error": _message(run.error),
        "tasks": [
            {
                "name": task.name,
                "state": task.state,
                "outcome": task.outcome,
                "attempts": task.epoch,
                "error": _message(task.error) if task.outcome == Outcome.FAILURE else None,
                "log": task.attempt_log_path,
            }
            for task in tasks
        ],
    }


def _show_summary(project: Project, run: Run, tasks: list[Task]) -> None:
    colors = {Outcome.SUCCESS: "green", Outcome.FAILURE: "red", Outcome.CANCELED: "yellow", None: "yellow"}
    outcome = Outcome(run.outcome) if run.outcome else None
    skipped = sum(task.trigger == SKIP for task in tasks)
    counts = {each.value: sum(task.outcome == each and task.trigger != SKIP for task in tasks) for each in Outcome}
    open_tasks = sum(task.outcome is None for task in tasks)
    words = [count_by_outcome(counts), f"{skipped} skipped" if skipped else "", f"{open_tasks} not done" if open_tasks else ""]
    click.echo(
        f"{click.style(run.state, fg=colors[outcome], bold=True)}  {run.name}: {', '.join(filter(None, words))} "
        f"of {count(len(tasks), 'task')}{_elapsed(run)}",
        err=True,
    )
    failed = [task for task in tasks if task.outcome == Outcome.FAILURE]
    for task in failed[:MOST_FAILURES_SHOWN]:
        click.echo(f"  {click.style('✗ ' + task.name, fg='red')}  {_message(task.error) or task.state}", err=True)
        if task.attempt_log_path:
            click.echo(click.style(f"    log: {_relative(project, task.attempt_log_path)}", dim=True), err=True)
    if len(failed) > MOST_FAILURES_SHOWN:
        click.echo(f"  … and {len(failed) - MOST_FAILURES_SHOWN} more", err=True)
    name = short(run.id)
    hints = {f"pointsman logs {name}": "what its tasks wrote"}
    if run.outcome is None:
        hints[f"pointsman resume {name}"] = "go on"
    elif failed:
        hints[f"pointsman retry {name} && pointsman resume {name}"] = "try again what failed"
    for command, what in hints.items():
        click.echo(click.style(f"  {command}  # {what}", dim=True), err=True)


def _elapsed(run: Run) -> str:
    if run.completed_at is None:
        return ""
    return f" in {format_seconds((run.completed_at - run.created_at).total_seconds())}"


def _relative(project: Project, path: str) -> str:
    return path.removeprefix(f"{project.settings.directory}/")


def _message(error: str | None) -> str | None:
    if error is None:
        return None
    message = msgspec.json.decode(error).get("message")
    return str(message) if message else None
