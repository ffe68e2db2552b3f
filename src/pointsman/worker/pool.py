"""A pool of worker processes, and their supervisor: it replaces workers that die, and ends all of them in order (000 §4.2).

    supervisor ── starts ──▶ a worker process, in a session of its own: Ctrl-C reaches the supervisor only
               ── stdin ───▶ nothing is ever written; its end tells the worker that the supervisor has gone
               ◀─ stdout ─── events of attempts, a JSON object per line
               ◀─ stderr ─── messages for people

Each worker is a process, so that a crash costs the tasks of one worker, and not of all.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pointsman.worker import processes
from pointsman.worker.processes import Spawned
from pointsman.world import Clock

STEADY_SECONDS = 10.0
"""A worker that has lived this long is replaced at once when it dies."""
MOST_EARLY_DEATHS = 6
"""After so many deaths in a row, each within that time, the worker is not replaced any more."""
FIRST_PAUSE_SECONDS = 0.25
"""Before the first replacement of a worker that died early; each further one waits twice as long."""
REST_SECONDS = 1.0
"""How long to wait for the last lines of a worker that has ended: a program that it started may keep the pipe open."""
LONGEST_LINE = 1 << 20


class PoolObserver(Protocol):
    """Whoever shows what happens in a pool."""

    def started(self, worker: str, pid: int) -> None: ...

    def ended(self, worker: str, message: str) -> None: ...

    def reported(self, worker: str, line: bytes) -> None:
        """An event of an attempt."""
        ...

    def said(self, worker: str, line: bytes) -> None:
        """A message for people."""
        ...


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker died, and how long it had lived."""

    message: str
    lived_seconds: float


class Pool:
    """Keeps one worker process for each name."""

    def __init__(
        self,
        names: Sequence[str],
        command: Callable[[str], Sequence[str]],
        clock: Clock,
        observer: PoolObserver,
        clean_up: Callable[[], Awaitable[object]],
    ) -> None:
        """`command` starts the worker with a name; `clean_up` ends what dead workers have left, and releases their tasks."""
        self._names = names
        self._command = command
        self._clock = clock
        self._observer = observer
        self._clean_up = clean_up
        self._mode: Literal["work", "drain", "kill"] = "work"
        self._ending = asyncio.Event()
        self._running: dict[str, Spawned] = {}

    async def work(self) -> bool:
        """Keep all workers until they have been drained or killed; whether any of them could live."""
        return any(await asyncio.gather(*(self._keep(name) for name in self._names)))

    def drain(self) -> None:
        """Let all workers finish their tasks, and replace none."""
        self._end("drain", signal.SIGTERM)

    def kill(self) -> None:
        """Let all workers kill their tasks. Another signal than before: two equal ones may arrive as one."""
        self._end("kill", signal.SIGINT)

    def kill_workers(self) -> None:
        """Kill the workers themselves: they do not answer."""
        self._end("kill", signal.SIGKILL)

    def _end(self, mode: Literal["drain", "kill"], number: signal.Signals) -> None:
        self._mode = mode
        self._ending.set()
        for spawned in self._running.values():
            processes.send_to_leader(spawned, number)

    async def _keep(self, name: str) -> bool:
        """Run a worker, and a new one when it dies; whether it could live."""
        early_deaths = 0
        while True:
            death = await self._run(name)
            if death is None:
                asked = "" if self._ending.is_set() else " A person drained or terminated it, so it is not replaced."
                self._observer.ended(name, f"It has ended.{asked}")
                return True
            await self._clean_up()
            if self._mode != "work":
                self._observer.ended(name, f"{death.message}.")
                return True
            early_deaths = early_deaths + 1 if death.lived_seconds < STEADY_SECONDS else 0
            if early_deaths == MOST_EARLY_DEATHS:
                often = f"It has died {early_deaths} times in a row, each time within {STEADY_SECONDS:g}s"
                self._observer.ended(name, f"{death.message}. {often}, and is not replaced any more.")
                return False
            pause = FIRST_PAUSE_SECONDS * 2 ** (early_deaths - 1) if early_deaths else 0.0
            self._observer.ended(name, f"{death.message}. A new worker replaces it{f' in {pause:g}s' if pause else ''}.")
            if await self._is_ending_within(pause):
                return True

    async def _is_ending_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return self._ending.is_set()

    async def _run(self, name: str) -> Death | None:
        """Run one worker process; None if it has ended by itself, because it was drained or terminated."""
        began = self._clock.monotonic()
        try:
            spawned, lifeline = _start(self._command(name))
        except OSError as error:
            return Death(f"It could not be started: {error.strerror}", 0.0)
        self._running[name] = spawned
        self._observer.started(name, spawned.pid)
        try:
            words = await self._listen(name, spawned)
        finally:
            del self._running[name]
            os.close(lifeline)
        code = processes.reap(spawned)
        if code == 0:
            return None
        if code == -signal.SIGTERM and self._mode == "drain":
            return Death("It has ended", 0.0)  # it was drained before it had begun
        how = f"exited with code {code}" if code is None or code > 0 else f"was killed by {signal.Signals(-code).name}"
        return Death(f"It {how}" + (f" – {words.rstrip('.')}" if words else ""), self._clock.monotonic() - began)

    async def _listen(self, name: str, spawned: Spawned) -> str:
        """Show what a worker says until it has ended; returns its last words."""
        assert spawned.stderr is not None
        stdout = Lines(lambda line: self._observer.reported(name, line))
        stderr = Lines(lambda line: self._observer.said(name, line))
        loop = asyncio.get_running_loop()
        pipes = [
            (await loop.connect_read_pipe(lambda lines=lines: lines, os.fdopen(descriptor, "rb", 0)))[0]  # type: ignore[misc]
            for lines, descriptor in ((stdout, spawned.stdout), (stderr, spawned.stderr))
        ]
        await processes.wait_for_end(spawned)
        await asyncio.wait({stdout.ended, stderr.ended}, timeout=REST_SECONDS)
        for pipe in pipes:
            pipe.close()
        return stderr.last.decode("utf-8", "replace").strip()


def _start(command: Sequence[str]) -> tuple[Spawned, int]:
    """A worker process, and the descriptor whose end it notices."""
    stdin, lifeline = os.pipe()
    try:
        return processes.spawn(command, cwd=Path.cwd(), env=os.environ, separate_stderr=True, stdin=stdin), lifeline
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(stdin)


class Lines(asyncio.Protocol):
    """Hands out what arrives line by line; a line that is too long is cut."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._rest = b""
        self.last = b""
        """The last line that was not empty."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hand_out(line)
        if len(self._rest) > LONGEST_LINE:
            self._hand_out(self._rest)
            self._rest = b""

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._hand_out(self._rest)
        if not self.ended.done():
            self.ended.set_result(None)

    def _hand_out(self, line: bytes) -> None:
        if line:
            self.last = line
            self._take(line)
