"""The worker: claims as many tasks as it has slots for, runs each, and reports what became of it.

Who it is and what it holds is known to the engine; a heartbeat is sent for it in a thread of its own. It ends when it has been
drained (what runs is finished, nothing new is taken) or killed (what runs is ended at once, and others take it up).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.workers import HeartbeatReply
from pointsman.errors import PointsmanError, RequestError, StoreError, StoreUnavailable, TransitionRefused, WorkerUnavailable
from pointsman.kernel.machine import Phase
from pointsman.settings import Settings
from pointsman.store.contract import Wakeup
from pointsman.worker import processes, records
from pointsman.worker.attempt import Attempt, AttemptContext, Note
from pointsman.worker.heartbeat import Heartbeat
from pointsman.worker.pace import Pace
from pointsman.worker.prepare import Preparation
from pointsman.worker.reports import Reports
from pointsman.worker.runner import pick_environment
from pointsman.worker.runners.command import CommandRunner
from pointsman.worker.runners.python import PythonRunner
from pointsman.worker.scope import Scopes
from pointsman.world import World

LOOKS_IN_A_LEASE = 3
"""How often an idle worker looks for something to do without having heard of it."""
AWAY_SECONDS = 1.0
"""Between one try to reach a database that is away, or to be let work, and the next."""


class Worker:
    """Does the work of a database, or only of one run."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        world: World,
        *,
        name: str,
        run_id: str | None = None,
        say: Callable[[str], None] = lambda _: None,
        note: Note = lambda *_: None,
    ) -> None:
        """`say` is told what people should know, and `note` of every attempt that begins and ends."""
        self._engine = engine
        self._settings = settings
        self._world = world
        self._name = name
        self._run_id = run_id
        self._say = say
        self._note = note
        self._trouble: StoreError | None = None
        self._claiming: asyncio.Task[list[Claim] | None] | None = None
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._used_slots = 0
        self._wish: Literal["work", "drain", "kill"] = "work"
        self._changed = asyncio.Event()
        self._has_news = True
        """Whether there may be something to claim."""
        self._pace = Pace(world.clock)
        self._heartbeat: Heartbeat | None = None

    async def work(self) -> None:
        """Work until drained or killed. What a predecessor left behind here is ended first."""
        processes.become_subreaper()
        await self._bury_predecessors()
        row = await self._engine.register_worker(
            self._name,
            capabilities=self._settings.capabilities,
            max_concurrent_tasks=self._settings.slots,
            lease_seconds=self._settings.lease_seconds,
        )
        record = records.Record(self._settings.directory, row.id)
        environ = pick_environment(os.environ, self._settings.pass_env)
        functions = PythonRunner(self._world, (self._settings.directory,))
        context = AttemptContext(
            engine=self._engine,
            world=self._world,
            preparation=Preparation(self._settings, Scopes(self._engine), row.id, environ, self._world.clock),
            reports=Reports(self._engine, self._changed.set),
            record=record,
            commands=CommandRunner(self._world),
            functions=functions,
            grace_seconds=self._settings.grace_seconds,
            say=self._say,
            note=self._note,
            tell=self._tell,
            pace=self._pace,
        )
        self._heartbeat = self._start_heartbeat(row.id)
        stop_listening = [
            self._engine.listen(Wakeup.TASKS, self._hear_of_tasks),
            self._engine.listen(Wakeup.WORKERS, self._heartbeat.beat_now),
        ]
        try:
            await self._take_turns(row.id, context)
        finally:
            if self._tasks:  # something went wrong here: nothing runs on without anybody to report it
                self.kill()
                await asyncio.wait(self._tasks.values())
            for stop in stop_listening:
                stop()
            self._heartbeat.stop()
            if not self._is_given_up:
                await asyncio.to_thread(self._heartbeat.join)
            functions.close()
            if await self._leave(row.id):
                record.close()

    def drain(self) -> None:
        """Finish what runs, take nothing new."""
        if self._wish == "work":
            self._wish = "drain"
            self._changed.set()

    def kill(self) -> None:
        """End what runs at once; others take it up."""
        self._wish = "kill"
        for key, attempt in list(self._attempts.items()):
            attempt.stop("killed")
            if self._is_given_up and not attempt.is_at_work:
                self._tasks[key].cancel()  # it waits for the database
        if self._is_given_up and self._claiming:
            self._claiming.cancel()
        self._changed.set()

    def last_line(self, task_id: str) -> str:
        """The last line that a task has written, if it runs here."""
        return next((attempt.last_line for (each, _), attempt in self._attempts.items() if each == task_id), "")

    async def _take_turns(self, worker_id: str, context: AttemptContext) -> None:
        """Hand over what has been reported, claim for the slots that are free, begin what was claimed, and so on.

        One turn is one commit. What ends while it is written goes into the next one, together with whatever else does.
        """
        pause = 0.0
        while self._wish == "work" or self._tasks:
            await self._wait_for_neighbours()
            self._changed.clear()
            handed_over = self._pace.hand_over()
            has_reported = context.reports.hand_over()
            room = self._settings.slots - self._used_slots if self._wish == "work" else 0
            if room and (has_reported or self._has_news):
                self._has_news = False
                # A task of its own, so that its command is queued right behind those of the reports.
                self._claiming = asyncio.create_task(self._claim(worker_id, room))
                await asyncio.wait({self._claiming})
                claims = None if self._claiming.cancelled() else self._claiming.result()
                if claims is not None:
                    self._pace.committed(handed_over)
                for claim in claims or ():
                    self._begin(claim, context)
                self._has_news |= len(claims or ()) == room
                pause = AWAY_SECONDS if claims is None else self._settings.lease_seconds / LOOKS_IN_A_LEASE
            else:
                await self._wait_for_change(pause if room else None)

    async def _wait_for_neighbours(self) -> None:
        """Until what is about to end has ended, too."""
        while self._wish == "work" and (seconds := self._pace.patience()):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def _wait_for_change(self, seconds: float | None) -> None:
        """Until something has ended or is to be claimed; news may get lost, so after a while a look is worth it anyway."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            self._has_news = True

    async def _claim(self, worker_id: str, limit: int) -> list[Claim] | None:
        """What there is to do; None while the database is away or the worker may not work."""
        try:
            claims = await self._engine.claim_tasks(worker_id, limit, run_id=self._run_id)
        except WorkerUnavailable:
            return None
        except StoreError as error:
            self._tell(error)
            return None
        self._tell(None)
        return claims

    def _tell(self, error: StoreError | None) -> None:
        """Once when something is wrong with the database, and once when it is over."""
        if str(error) != str(self._trouble):
            self._say(str(error) if error else "The database answers again.")
        self._trouble = error

    @property
    def _is_given_up(self) -> bool:
        """It is to end at once, and whatever it still had to say, nobody would hear: the database is away."""
        return self._wish == "kill" and isinstance(self._trouble, StoreUnavailable)

    def _hear_of_tasks(self) -> None:
        self._has_news = True
        self._changed.set()

    def _begin(self, claim: Claim, context: AttemptContext) -> None:
        key = (claim.task_id, claim.epoch)
        is_free = False

        def free() -> None:
            nonlocal is_free
            if not is_free:
                is_free = True
                self._used_slots -= 1
                self._changed.set()

        def ended(_: asyncio.Task[None]) -> None:
            self._pace.end(key)
            del self._tasks[key]
            del self._attempts[key]
            self._changed.set()

        self._used_slots += 1
        self._pace.begin(key)
        attempt = self._attempts[key] = Attempt(claim, context, free)
        task = self._tasks[key] = asyncio.create_task(attempt.execute(), name=claim.name)
        task.add_done_callback(ended)
        if self._wish == "kill":
            attempt.stop("killed")

    def _start_heartbeat(self, worker_id: str) -> Heartbeat:
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(
            self._engine,
            worker_id,
            self._settings.lease_seconds,
            held=lambda: list(self._attempts),
            heard=lambda beat: _call(loop, self._hear, beat),
        )
        heartbeat.start()
        return heartbeat

    def _hear(self, beat: HeartbeatReply) -> None:
        """What the engine says: attempts that no longer count, tasks that are called off, what people want of the worker."""
        processes.reap_strays(())
        for key in beat.lost:
            if attempt := self._attempts.get(key):
                attempt.stop("lost")
        for key in beat.cancelled:
            if attempt := self._attempts.get(key):
                attempt.stop("called off")
        if beat.worker.phase == Phase.DONE:
            self.kill()
        elif beat.worker.drain_wanted:
            self.drain()
        if self._settings.on_pause == "suspend":
            for key, attempt in self._attempts.items():
                attempt.suspend(wanted=beat.worker.pause_wanted or key in beat.paused)

    async def _bury_predecessors(self) -> None:
        """Workers of this project that were killed: their processes are ended, and their tasks go to others at once."""
        dead = await records.end_predecessors(self._settings.directory, self._world.sleep)
        for worker_id in dead:
            with suppress(RequestError, TransitionRefused):
                await self._engine.for_tenant(actor="worker").signal_worker(
                    worker_id, "terminate", reason="its worker was killed"
                )
        records.forget(self._settings.directory, dead)

    async def _leave(self, worker_id: str) -> bool:
        """Say goodbye; what it still holds (a claim that came too late) goes to others at once.

        Whether it was heard: when the database is away, a successor that finds the record says it for this one.
        """
        if self._is_given_up:
            return False
        try:
            row = await self._engine.get_worker(worker_id)
            if row.phase != Phase.DONE and self._wish != "kill":
                row = await self._engine.for_tenant(actor="worker").signal_worker(worker_id, "drain", reason="the worker ends")
            if row.phase != Phase.DONE:
                await self._engine.for_tenant(actor="worker").signal_worker(worker_id, "terminate", reason="the worker ends")
        except StoreError:
            return False
        except PointsmanError:
            pass
        return True


def _call(loop: asyncio.AbstractEventLoop, heard: Callable[[HeartbeatReply], None], beat: HeartbeatReply) -> None:
    with suppress(RuntimeError):  # the loop has been closed: nobody listens any longer
        loop.call_soon_threadsafe(heard, beat)
