"""Runs one run to its end in this process: a worker for it, a view of its progress, and the meaning of signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import click
import msgspec

from pointsman.cli.hints import WaitingPrinter, list_commands
from pointsman.cli.log_output import divert_logs
from pointsman.cli.notifier import flush_notifications
from pointsman.cli.outlet import GRACE_SECONDS
from pointsman.cli.output import near, show_counts, show_seconds, tell
from pointsman.cli.project import Project
from pointsman.cli.streams import is_behind, wait_for_reader, write_line
from pointsman.cli.view import FRAMES_A_SECOND, View, choose_view
from pointsman.engine.policy import find_workspace, read_policy
from pointsman.errors import StoreError, StoreGone
from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.rows import Run, Transition
from pointsman.views.find import short
from pointsman.views.progress import Change, Progress
from pointsman.views.values import RunView, TaskView
from pointsman.worker import processes
from pointsman.worker.worker import RETRY_SECONDS, Worker

EXIT_CODES = {Outcome.SUCCESS: 0, Outcome.FAILURE: 1, Outcome.CANCELED: 1}
INTERRUPTED = 130
ENDED = 143
IDLE = "No task is running. The worker stops."
"""The answer to a signal, where there is nothing to finish."""
MOST_FAILURES_SHOWN = 10
PATIENCE_SECONDS = 0.5
LOOK_SECONDS = 0.05
"""Between two reads of the event stream: people do not see less."""
LAG_SECONDS = 1.0
"""The longest time between two looks at the run itself: the event stream lags behind while another transaction is open."""


LAST_SECONDS = 3.0
"""After a second signal: whatever still hangs then, such as a read from a database that does not answer, is left."""


def leave_soon(code: int) -> None:
    """End this process in a few seconds, if it has not ended by then."""

    def leave() -> None:
        tell("Leaving without an answer of the database. Other workers take over when the lease expires.")
        processes.end_strays()
        os._exit(code)

    timer = threading.Timer(LAST_SECONDS, leave)
    timer.daemon = True
    timer.start()


def drain_then_kill(
    drain: Callable[[], None],
    kill: Callable[[], None],
    say: Callable[[str], None] = tell,
    is_idle: Callable[[], bool] = lambda: False,
) -> None:
    """What signals mean for workers: the first one drains, any further one kills what they run."""
    loop = asyncio.get_running_loop()
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        if stops > 1:
            kill()
            say("Killing running tasks.")
        else:
            drain()
            say(IDLE if is_idle() else "Finishing running tasks. Send the signal again to kill them.")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True)
class Interruption:
    """The signals that this process has received."""

    code: int | None = None
    count: int = 0


async def run_to_end(project: Project, run: Run, *, after: str | None = None, as_json: bool) -> int:
    """Work on a run until it has ended, and return the exit code. Transitions up to `after` are not shown again."""
    engine, world = project.engine, project.world
    progress = Progress(engine, run.id)

    def say(words: str) -> None:
        view.say(words)

    # A worker that serves only this run belongs to the workspace of the run.
    workspace = find_workspace(read_policy(run.policy).capabilities) or project.settings.workspace
    settings = replace(project.settings, workspace=workspace)
    worker = Worker(
        engine, settings, world, name=worker_name(), run_id=run.id, owns_process=True, receiver=project.remote, notify=say
    )
    view = choose_view(progress, worker, run.name, as_json=as_json)
    interruption = Interruption()
    reasons = WaitingPrinter(project, say, run.id, works=True)
    following = Following(project, run.id, progress, view, worker, reasons, after)
    others = [
        asyncio.create_task(following.follow(), name="follow"),
        asyncio.create_task(following.watch_run(), name="watch run"),
        asyncio.create_task(following.tell_of_leftovers(), name="leftovers"),
        asyncio.create_task(_tick(project, view), name="tick"),
        asyncio.create_task(reasons.keep_telling(), name="reasons"),
    ]
    for task in others:
        # None of them ends by itself: if one does, it has failed, and the worker must not go on unseen.
        task.add_done_callback(lambda _: worker.drain())
    if project.notifier:
        project.notifier.start(commands_of=run.id)
    try:
        with divert_logs(say), _signals(worker, view, interruption):
            await worker.work()
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
    code = await conclude(project, run.id, interruption.code, as_json=as_json)
    await flush_notifications(project)
    return code


@dataclass(slots=True)
class Following:
    """Shows what happens in a run, and drains its worker when the run has ended."""

    project: Project
    run_id: str
    progress: Progress
    view: View
    worker: Worker
    reasons: WaitingPrinter
    after: str | None
    """Transitions up to this position are not shown again."""
    position: str | None = None
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The run has ended, and that has just been shown."""
    obstacle: str | None = None
    """Why the run cannot succeed any more; it has been said."""

    async def follow(self) -> None:
        """Follow the event stream for ever, and wait while the database is away."""
        while True:
            try:
                async for transition in self.project.engine.watch(
                    after=self.position, run_id=self.run_id, pause_seconds=LOOK_SECONDS
                ):
                    await self._wait_for_reader()
                    await self._take(transition)
            except StoreError:
                await self.project.world.sleep(RETRY_SECONDS)

    async def watch_run(self) -> None:
        """Drain the worker when the run has ended, even if the event stream does not show it yet."""
        while True:
            await self.worker.wait_until_idle(LAG_SECONDS)
            try:
                if (await self.project.engine.get_run(self.run_id)).phase == Phase.DONE:
                    self.worker.drain()
            except StoreGone as error:
                self.worker.give_up(error)
            except StoreError:
                pass  # the worker says so

    async def catch_up(self) -> None:
        """Show what has happened since the last read, after the worker has ended, as long as somebody reads."""
        while page := await self.project.engine.list_transitions(after=self.position, run_id=self.run_id):
            for transition in page:
                if not await wait_for_reader(self.project.world.sleep, GRACE_SECONDS):
                    return
                await self._take(transition)

    async def _wait_for_reader(self) -> None:
        """While nobody reads the output, leave the rest in the database; of the run, only its end counts meanwhile."""
        while is_behind():
            if (await self.project.engine.get_run(self.run_id)).phase == Phase.DONE:
                self.worker.drain()
            await self.project.world.sleep(PATIENCE_SECONDS)

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
        elif change.state.outcome in (Outcome.FAILURE, Outcome.CANCELED) or self.obstacle:
            await self._take_obstacle()

    async def _take_run(self, change: Change, *, is_known: bool) -> None:
        """The run itself has moved; a run that had ended may have been retried since."""
        run = await self.project.engine.get_run(self.run_id)
        if run.phase == Phase.DONE:
            self.worker.drain()
        if is_known or change.state.phase != run.phase:  # it has moved on since
            return
        if run.phase == Phase.DONE:
            self.has_ended.set()
        elif run.phase == Phase.HELD:
            await self.reasons.look()

    async def _take_obstacle(self) -> None:
        """Some lifecycles neither pass over a lost task nor end its run: say so, and do not wait for ever."""
        run = await self.project.view_run(self.run_id)
        if run.phase == Phase.DONE or not run.obstacle:
            return
        if self.obstacle is None:
            self.view.say(run.obstacle)
        self.obstacle = run.obstacle
        if run.is_stuck:
            self.worker.drain()

    async def tell_of_leftovers(self) -> None:
        """Name the tasks that still run although the run has ended; most end within a moment and are not named."""
        while True:
            await self.has_ended.wait()
            self.has_ended.clear()
            await self.project.world.sleep(PATIENCE_SECONDS)
            with suppress(StoreError):
                while await self.project.engine.list_transitions(after=self.position, run_id=self.run_id, limit=1):
                    await self.project.world.sleep(LOOK_SECONDS)  # what has happened before is shown before
                await self._name_leftovers()

    async def _name_leftovers(self) -> None:
        run = await self.project.engine.get_run(self.run_id)
        running = [task.name for task in await self.project.engine.list_tasks_in_brief(run.id) if task.phase == Phase.ACTIVE]
        if running and run.phase == Phase.DONE:
            self.view.say(f"The run is {run.state}. Waiting for running tasks: {', '.join(running)}")


async def _tick(project: Project, view: View) -> None:
    while True:
        view.tick(project.world.clock.now())
        await project.world.sleep(1 / FRAMES_A_SECOND)


@contextmanager
def _signals(worker: Worker, view: View, interruption: Interruption) -> Iterator[None]:
    """Ctrl-C stops the running tasks; SIGTERM lets them finish. Both keep the run. A second signal kills them at once."""
    loop = asyncio.get_running_loop()

    def interrupted(code: int) -> None:
        interruption.count += 1
        interruption.code = code
        if interruption.count > 1:
            worker.kill()
            leave_soon(code)
            view.say("Killing running tasks.")
        elif worker.is_idle:
            worker.drain()
            view.say(f"{IDLE} The run is kept.")
        elif code == INTERRUPTED:
            worker.stop()
            view.say("Stopping running tasks. The run is kept. Press Ctrl-C again to kill them at once.")
        else:
            worker.drain()
            view.say("Finishing running tasks. Send the signal again to kill them.")

    loop.add_signal_handler(signal.SIGINT, interrupted, INTERRUPTED)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted, ENDED)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


async def conclude(project: Project, run_id: str, interrupted: int | None = None, *, as_json: bool) -> int:
    """Say how the run ended, and what can be done next; the exit code, which may be the one of an interruption."""
    run = await project.view_run(run_id)
    await wait_for_reader(project.world.sleep, GRACE_SECONDS)
    if as_json:
        write_line(msgspec.json.encode(summarize(run)) + b"\n")
    else:
        _show_summary(project, run)
    if run.outcome is None:
        return interrupted or 1
    return interrupted if interrupted and run.outcome != Outcome.SUCCESS else EXIT_CODES[Outcome(run.outcome)]


def summarize(run: RunView) -> dict[str, object]:
    return {
        "run_id": run.id,
        "name": run.name,
        "state": run.state,
        "outcome": run.outcome,
        "error": run.error,
        "tasks": [
            {
                "name": task.name,
                "state": task.state,
                "outcome": task.outcome,
                "attempts": task.attempts,
                "error": task.error if task.outcome == Outcome.FAILURE or task.given_up else None,
                "log": task.log_path,
            }
            for task in run.tasks
        ],
    }


def _show_summary(project: Project, run: RunView) -> None:
    colors = {Outcome.SUCCESS: "green", Outcome.FAILURE: "red", Outcome.CANCELED: "yellow", None: "yellow"}
    outcome = Outcome(run.outcome) if run.outcome else None
    reason = run.reason or run.error if outcome is Outcome.FAILURE else None
    seconds = run.elapsed_seconds(run.as_of)
    elapsed = f", {show_seconds(seconds)} elapsed" if seconds is not None else ""
    why = f" – {reason}" if reason and not run.failed_tasks else ""
    state = click.style(run.state, fg=colors[outcome], bold=True) + (" (interrupted)" if run.interrupted_at else "")
    tell(f"{state}  {run.name}: {show_counts(run.counts)}{elapsed}{why}")
    _show_failures(project, run.failed_tasks, "red")
    _show_failures(project, [task for task in run.tasks if task.given_up], "yellow")
    for command, effect in write_last_hints(project, run):
        tell(click.style(f"  {command}  # {effect}", dim=True))
    if run.obstacle:
        tell(run.obstacle)


def write_last_hints(project: Project, run: RunView) -> Iterator[tuple[str, str]]:
    """What to do after a run: its logs, and every step that leads on; the worker of a retried run is the next command."""
    if any(task.attempts for task in run.tasks):
        yield project.hint("logs", short(run.id)), "shows what its tasks wrote"
    for command, step in list_commands(project, run):
        if step.operation == "retry":
            yield f"{command} && {project.hint('resume', short(run.id))}", step.effect
        elif step.operation != "pause" and (step.operation != "cancel" or not run.attended):
            yield command, step.effect


def _show_failures(project: Project, tasks: Sequence[TaskView], color: str) -> None:
    for task in tasks[:MOST_FAILURES_SHOWN]:
        error = (task.error or task.state).rstrip().replace("\n", "\n      ")
        tell(f"  {click.style('✗ ' + task.name, fg=color)}  {error}")
        if task.log_path:
            tell(click.style(f"    log: {near(project.settings.directory / task.log_path)}", dim=True))
    if len(tasks) > MOST_FAILURES_SHOWN:
        tell(f"  … and {len(tasks) - MOST_FAILURES_SHOWN} more")
