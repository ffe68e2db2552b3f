"""The worker: claims as many tasks as it has slots, runs each, and reports the results.

A separate thread sends its heartbeats. It ends when it has been drained (it finishes its tasks and claims no more), stopped (it
ends their processes with SIGTERM) or killed (with SIGKILL). Tasks that were stopped or killed wait for another attempt.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.workers import HeartbeatReply
from pointsman.errors import PointsmanError, StoreError, StoreGone, StoreUnavailable, TransitionRefused, WorkerUnavailable
from pointsman.kernel.machine import Phase
from pointsman.lifecycles import DEFAULT
from pointsman.settings import Settings
from pointsman.store.contract import Wakeup
from pointsman.worker import processes, records
from pointsman.worker.attempt import Attempt, AttemptContext, Note
from pointsman.worker.attempt_socket import AttemptSocket
from pointsman.worker.containment import NOTHING, contain, release
from pointsman.worker.heartbeat import Answered, Heartbeat
from pointsman.worker.lease import Lease
from pointsman.worker.leftovers import end_dead_workers, end_former_attempts, leftovers_duty
from pointsman.worker.pace import Pace
from pointsman.worker.prepare import Preparation
from pointsman.worker.reports import Reports
from pointsman.worker.resources import LackKind, ResourceWatch
from pointsman.worker.runner import Runners, inherit_environment
from pointsman.worker.scope import Scopes
from pointsman.worker.shipping import Receiver
from pointsman.worker.shortage import Shortage
from pointsman.world import World

Heard = TypeVar("Heard")
POLLS_PER_LEASE = 3
"""How often an idle worker polls for tasks without a wake-up."""
RETRY_SECONDS = 1.0
"""The delay before the next claim when the database is unavailable or the worker may not claim."""

NO_METADATA: Mapping[str, Any] = {}


class Worker:
    """Runs the tasks of a database, or of one run."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        world: World,
        *,
        name: str,
        run_id: str | None = None,
        lifecycle: str = DEFAULT,
        metadata: Mapping[str, Any] = NO_METADATA,
        owns_process: bool = False,
        receiver: Receiver | None = None,
        notify: Callable[[str], None] = lambda _: None,
        note: Note = lambda *_: None,
    ) -> None:
        """`notify` shows messages to the user; `note` is called for every attempt that starts and ends.

        `receiver` takes logs and artifacts to the server, if that has the database.
        A worker that `owns_process` is all that this process does: everything that the process starts is ended with it.
        """
        self._engine = engine
        self._settings = settings
        self._world = world
        self._name = name
        self._run_id = run_id
        self._lifecycle = lifecycle
        self._metadata = metadata
        self._owns_process = owns_process
        self._receiver = receiver
        self._notify = notify
        self._note = note
        self._store_error: StoreError | None = None
        self._claiming: asyncio.Task[list[Claim] | None] | None = None
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._used_slots = 0
        self._mode: Literal["work", "drain", "stop", "kill"] = "work"
        self._changed = asyncio.Event()
        self._has_nothing = asyncio.Event()
        """It has found nothing to claim, and runs nothing."""
        self._may_claim = True
        """Whether there may be tasks to claim."""
        self._pace = Pace(world.clock)
        self._shortage = Shortage(notify, self._wake_up, world.clock)
        self._resources: ResourceWatch | None = None
        self._heartbeat: Heartbeat | None = None
        self.was_lost = False
        """It was silent for so long that the engine has given it up."""

    async def work(self) -> None:
        """Work until drained or killed. First end the processes that a dead worker has left here."""
        processes.become_subreaper()
        directory, lease_seconds, sleep = self._settings.directory, self._settings.lease_seconds, self._world.sleep
        await end_dead_workers(self._engine, directory, sleep)
        row = await self._engine.register_worker(
            self._name,
            capabilities=self._settings.capabilities,
            workspace_id=self._settings.workspace,
            max_concurrent_tasks=self._settings.slots,
            lease_seconds=lease_seconds,
            lifecycle=self._lifecycle,
            only_run_id=self._run_id,
            metadata=dict(self._metadata),
        )
        containment = contain(row.id) if self._owns_process else NOTHING
        record = records.Record(directory, row.id, containment, self._run_id)
        self._engine.start_duty(leftovers_duty(self._engine, directory, lease_seconds, sleep))
        inherited = inherit_environment(os.environ, self._settings.pass_env)
        runners = Runners(self._world, directory)
        clock = self._world.clock
        scopes = Scopes(self._engine, clock)
        preparation = Preparation(self._settings, scopes, row.id, dict(os.environ), inherited, clock, self._settings.all_tools)
        attempt_socket = AttemptSocket(row.id, self._world.chance, preparation.make_tools, self._notify)
        context = AttemptContext(
            engine=self._engine,
            world=self._world,
            preparation=preparation,
            clear=lambda claim: end_former_attempts(self._engine, claim, directory, sleep),
            reports=Reports(self._engine, self._changed.set),
            record=record,
            runners=runners,
            grace_seconds=self._settings.grace_seconds,
            notify=self._notify,
            note=self._note,
            on_store=self._on_store,
            pace=self._pace,
            shortage=self._shortage,
            socket=attempt_socket,
            receiver=self._receiver,
        )
        self._heartbeat = self._start_heartbeat(row.id)
        self._resources = self._make_resource_watch(row.id)
        watching = asyncio.create_task(self._resources.keep_watching(), name="resources")
        stop_listening = [
            self._engine.listen(Wakeup.TASKS, self._wake_up),
            self._engine.listen(Wakeup.WORKERS, self._heartbeat.beat_now),
        ]
        failure: Exception | None = None
        try:
            await self._loop(row.id, context)
        except Exception as error:
            failure = error
            raise
        finally:
            if self._tasks:  # the loop failed: no task may run without a worker to report it
                self.kill()
                await asyncio.wait(self._tasks.values())
            for stop in stop_listening:
                stop()
            watching.cancel()
            await asyncio.wait({watching})
            self._heartbeat.stop()
            if not self._is_given_up:
                await asyncio.to_thread(self._heartbeat.join)
            runners.close()
            await attempt_socket.close()
            if self._owns_process:
                processes.end_strays()
            if await self._leave(row.id, failure):
                record.close()
            # Leaving a cgroup takes up to 20 ms, in which this process can do its last work; it ends only when this has ended.
            threading.Thread(target=release, args=(containment,), name="release").start()
        if isinstance(self._store_error, StoreGone):
            raise self._store_error

    def drain(self) -> None:
        """Finish the running tasks and claim no more. Those that are suspended continue, or it would wait for them for ever."""
        if self._mode == "work":
            self._mode = "drain"
            for attempt in self._attempts.values():
                attempt.suspend(wanted=False)
            self._changed.set()

    def stop(self) -> None:
        """End the processes of the running tasks, which wait for another attempt, and claim no more."""
        if self._mode in ("work", "drain"):
            self._mode = "stop"
            for attempt in self._attempts.values():
                attempt.stop("interrupted")
            self._changed.set()

    def kill(self) -> None:
        """Kill the running tasks at once; they wait for another attempt."""
        self._mode = "kill"
        for key, attempt in list(self._attempts.items()):
            attempt.stop("killed")
            if self._is_given_up and not attempt.is_running:
                self._tasks[key].cancel()  # it waits for the database
        if self._is_given_up and self._claiming:
            self._claiming.cancel()
        self._changed.set()

    def give_up(self, error: StoreGone) -> None:
        """There is no database any more to report to: kill the running tasks, and let `work` raise the error."""
        if self._attempts and self._mode != "kill":
            self._notify("The database is gone. Killing running tasks.")
        self._store_error = error
        self.kill()

    @property
    def is_idle(self) -> bool:
        """It runs no task, and has not asked for any."""
        return not self._tasks and self._claiming is None

    async def wait_until_idle(self, longest_seconds: float) -> None:
        """Wait until it has run out of tasks once more, or for this long."""
        self._has_nothing.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_seconds):
                await self._has_nothing.wait()

    def last_line(self, task_id: str) -> str:
        """The last line of output of a task, if it runs here."""
        return next((attempt.last_line for (each, _), attempt in self._attempts.items() if each == task_id), "")

    def has_begun(self, task_id: str) -> bool:
        """Whether the work of a task is running here."""
        return any(attempt.is_running for (each, _), attempt in self._attempts.items() if each == task_id)

    async def _loop(self, worker_id: str, context: AttemptContext) -> None:
        """Send the reports, claim for the free slots, start what was claimed, and repeat.

        Each iteration is one commit. Reports that arrive during a commit go into the next one.
        """
        pause = 0.0
        while self._mode == "work" or self._tasks:
            await self._wait_for_others()
            self._changed.clear()
            handed_over = self._pace.hand_over()
            has_reported = context.reports.hand_over()
            may_claim = self._mode == "work" and not self._shortage.is_on and not self._lacks_resources
            room = self._settings.slots - self._used_slots if may_claim else 0
            if room and (has_reported or self._may_claim):
                self._may_claim = False
                asked_at = self._world.clock.boottime()
                # A separate task, so that its command is queued right behind the reports.
                self._claiming = asyncio.create_task(self._claim(worker_id, room))
                await asyncio.wait({self._claiming})
                claims = None if self._claiming.cancelled() else self._claiming.result()
                if claims is not None:
                    self._pace.committed(handed_over)
                for claim in claims or ():
                    self._start(claim, asked_at, context)
                self._claiming = None
                self._may_claim |= len(claims or ()) == room
                pause = RETRY_SECONDS if claims is None else self._settings.lease_seconds / POLLS_PER_LEASE
            else:
                if not self._tasks:
                    self._has_nothing.set()
                await self._wait_for_change(pause if room else None)

    async def _wait_for_others(self) -> None:
        """Wait for attempts that are about to end, so that they share the commit."""
        while self._mode == "work" and (seconds := self._pace.patience()):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def _wait_for_change(self, seconds: float | None) -> None:
        """Wait until an attempt ends or a wake-up arrives; wake-ups may get lost, so poll after a while."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            self._may_claim = True

    async def _claim(self, worker_id: str, limit: int) -> list[Claim] | None:
        """Claim tasks; None while the database is unavailable or the worker may not claim."""
        try:
            claims = await self._engine.claim_tasks(worker_id, limit, run_id=self._run_id)
        except WorkerUnavailable:
            return None
        except StoreError as error:
            self._on_store(error)
            return None
        self._on_store(None)
        return claims

    def _on_store(self, error: StoreError | None) -> None:
        """Tell the user once when the database fails, and once when it answers again."""
        if isinstance(error, StoreGone):
            self.give_up(error)
        elif isinstance(self._store_error, StoreGone):
            return
        elif str(error) != str(self._store_error):
            self._notify(str(error) if error else f"The {'server' if self._receiver else 'database'} answers again.")
        self._store_error = error

    @property
    def _is_given_up(self) -> bool:
        """Whether it was killed while the database is unavailable or gone: it ends without reporting."""
        return self._mode == "kill" and isinstance(self._store_error, StoreUnavailable | StoreGone)

    @property
    def _lacks_resources(self) -> bool:
        return self._resources is not None and self._resources.lack is not None

    def _make_resource_watch(self, worker_id: str) -> ResourceWatch:
        return ResourceWatch(
            self._engine,
            worker_id,
            self._settings,
            self._shortage,
            self._world.sleep,
            self._notify,
            runs_work=lambda: any(attempt.is_running for attempt in self._attempts.values()),
            give_back=self._give_back,
            holds_tasks=lambda: bool(self._tasks),
            on_end=self._wake_up,
        )

    def _give_back(self, why: LackKind) -> None:
        """Stop the running tasks. Without processes, those that run have what they need, and the others never start."""
        for attempt in self._attempts.values():
            if why != "out of processes" or not attempt.is_running:
                attempt.stop(why)

    def _wake_up(self) -> None:
        self._may_claim = True
        self._changed.set()

    def _start(self, claim: Claim, asked_at: float, context: AttemptContext) -> None:
        assert self._heartbeat
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
        self._pace.start(key)
        former = self._stop_former(claim)
        lease = Lease(self._world.clock, self._settings.lease_seconds, asked_at, self._heartbeat.beat_now)
        attempt = self._attempts[key] = Attempt(claim, lease, context, free)
        task = self._tasks[key] = asyncio.create_task(_execute_after(former, attempt), name=claim.name)
        task.add_done_callback(ended)
        if self._mode in ("stop", "kill"):
            attempt.stop("killed" if self._mode == "kill" else "interrupted")
        elif self._resources and self._resources.lack:
            attempt.stop(self._resources.lack.kind)

    def _stop_former(self, claim: Claim) -> list[asyncio.Task[None]]:
        """Stop attempts of the same task that still run here: they have lost their lease, and no heartbeat has told yet."""
        former = [key for key in self._tasks if key[0] == claim.task_id]
        for key in former:
            self._attempts[key].stop("lost")
        return [self._tasks[key] for key in former]

    def _start_heartbeat(self, worker_id: str) -> Heartbeat:
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(
            self._engine,
            worker_id,
            self._settings.lease_seconds,
            held=lambda: list(self._attempts),
            on_reply=lambda answered: _call(loop, self._on_heartbeat, answered),
            on_error=lambda error: _call(loop, self._on_store, error),
            clock=self._world.clock,
        )
        heartbeat.start()
        return heartbeat

    def _on_heartbeat(self, answered: Answered) -> None:
        """Stop attempts that lost their lease or were canceled; pause, drain or end as requested."""
        self._on_store(None)
        processes.reap_strays(())
        reply = answered.reply
        for key in set(answered.attempts).difference(reply.lost):
            if attempt := self._attempts.get(key):
                attempt.lease.confirm(answered.asked_at)
        for key in reply.lost:
            if attempt := self._attempts.get(key):
                attempt.stop("lost")
        for key in reply.cancelled:
            if attempt := self._attempts.get(key):
                attempt.stop("canceled")
        if reply.worker.phase == Phase.DONE or reply.worker.terminate_wanted:
            self.was_lost = reply.worker.phase == Phase.DONE and reply.worker.missing
            self.kill()
        elif reply.worker.drain_wanted:
            self.drain()
        for key, attempt in self._attempts.items():
            attempt.suspend(wanted=self._is_suspended(key, reply))

    def _is_suspended(self, key: tuple[str, int], reply: HeartbeatReply) -> bool:
        """In a pause, if a person or the settings say so; not when it drains."""
        if self._mode != "work":
            return False
        is_paused = reply.worker.pause_wanted and not self._lacks_resources
        by_settings = self._settings.on_pause == "suspend" and (is_paused or key in reply.paused)
        return reply.suspended or by_settings

    async def _leave(self, worker_id: str, failure: Exception | None) -> bool:
        """Deregister, which releases the tasks that it still holds (a late claim); whether the database was told.

        If not, the next worker here that finds the record does it.
        """
        if self._is_given_up:
            return False
        engine = self._engine.for_tenant(actor="worker")
        try:
            row = await engine.get_worker(worker_id)
            if row.phase != Phase.DONE and failure:
                with suppress(TransitionRefused):  # not every machine has a state for it
                    row = await engine.signal_worker(worker_id, "fail", reason=f"{type(failure).__name__}: {failure}")
            if row.phase != Phase.DONE and self._mode != "kill":
                with suppress(TransitionRefused):  # in some machines, only a worker that has begun to work can end it
                    row = await engine.signal_worker(worker_id, "drain", reason="the worker ended")
            if row.phase != Phase.DONE:
                await engine.signal_worker(worker_id, "terminate", ended=True, reason="the worker ended")
        except StoreError:
            return False
        except PointsmanError:
            pass
        return True


async def _execute_after(former: list[asyncio.Task[None]], attempt: Attempt) -> None:
    """A worker never begins a task that it still runs."""
    if former:
        await asyncio.wait(former)
    await attempt.execute()


def _call(loop: asyncio.AbstractEventLoop, heard: Callable[[Heard], None], what: Heard) -> None:
    with suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(heard, what)
