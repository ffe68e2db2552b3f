"""Whether a worker still has what it needs. One that has run out of something is paused until it has enough again (000 §4.1).

    out of memory        it and all that it runs use more than `max_memory_bytes`     its tasks are stopped and given back
    out of disk space    the disk of the project has less than `min_free_disk_bytes`  its tasks are stopped and given back
    out of processes     nothing runs, and nothing could be started for a while       tasks that wait for that are given back

The worker decides this itself, so that it holds for a single worker as for one of a pool. The engine shows the pause where the
machine of the worker has a state for it; the worker claims nothing in any case.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from pointsman.engine.engine import Engine
from pointsman.errors import PointsmanError, StoreError
from pointsman.settings import Settings
from pointsman.worker import processes
from pointsman.worker.shortage import Shortage
from pointsman.world import Sleep

LOOK_SECONDS = 1.0
"""Between two looks at the resources."""
SHORTAGE_SECONDS = 2.0
"""How long nothing runs and nothing can be started before the tasks that wait for it are given back."""
MEGABYTE = 1_000_000

LackKind = Literal["out of memory", "out of disk space", "out of processes"]


class Lack(Struct, frozen=True):
    """What a worker has run out of."""

    kind: LackKind
    detail: str


class ResourceWatch(Struct):
    """Looks at the resources of a worker, and keeps it paused while it lacks one."""

    engine: Engine
    worker_id: str
    settings: Settings
    shortage: Shortage
    sleep: Sleep
    notify: Callable[[str], None]
    runs_work: Callable[[], bool]
    """Whether the work of any task is running: when it ends, what the others wait for becomes free."""
    give_back: Callable[[LackKind], None]
    """Called when the worker has run out of something."""
    holds_tasks: Callable[[], bool]
    on_end: Callable[[], None]
    """Called when the worker may claim again."""
    lack: Lack | None = None
    _is_paused: bool = False
    """The worker has paused itself, and not resumed yet."""

    async def keep_watching(self) -> None:
        while True:
            await self.sleep(LOOK_SECONDS)
            with suppress(StoreError):  # the worker says so; the next look tells the engine
                await self._look()

    async def _look(self) -> None:
        if self.lack is None:
            self.lack = await self._find_lack()
            if self.lack:
                self.notify(f"{self.lack.detail} The worker is paused and gives tasks back.")
                self.give_back(self.lack.kind)
        elif not self.holds_tasks() and await self._has_enough():
            self.lack = None
            self.notify("The worker claims tasks again.")
            self.on_end()
        if self._is_paused != (self.lack is not None):
            await self._tell_engine()

    async def _find_lack(self) -> Lack | None:
        if self.runs_work():
            self.shortage.renew()
        elif self.shortage.has_lasted(SHORTAGE_SECONDS):
            return Lack("out of processes", f"Nothing could be started for {SHORTAGE_SECONDS:g}s.")
        return await self._look_at_limits()

    async def _has_enough(self) -> bool:
        return await self._look_at_limits() is None and await processes.can_start()

    async def _look_at_limits(self) -> Lack | None:
        if self.settings.max_memory_bytes is None and self.settings.min_free_disk_bytes is None:
            return None
        return await asyncio.to_thread(find_lack, self.settings)  # a disk may be slow to answer

    async def _tell_engine(self) -> None:
        """Pause or resume. A machine may have no such state, or a person may have been quicker."""
        signal = "pause" if self.lack else "resume"
        reason = f"{self.lack.kind}: {self.lack.detail}" if self.lack else "resources are back"
        as_worker = self.engine.for_tenant(actor="worker")
        try:
            await as_worker.signal_worker(self.worker_id, signal, reason=reason)
            self._is_paused = self.lack is not None
        except StoreError:
            raise
        except PointsmanError:
            if self._is_paused:  # it may have been silent for too long: then it comes back paused
                self._is_paused = (await as_worker.get_worker(self.worker_id)).pause_wanted


def find_lack(settings: Settings) -> Lack | None:
    """What settings forbid a worker to use up."""
    most, least = settings.max_memory_bytes, settings.min_free_disk_bytes
    # Again if need be: between fork and exec, a child seems to use as much as its parent.
    if most is not None and (used := processes.measure_memory()) > most and processes.measure_memory() > most:
        return Lack("out of memory", f"The worker and its tasks use {_show(used)} of memory, more than {_show(most)}.")
    if least is not None and (free := _measure_free_disk(settings.directory)) is not None and free < least:
        return Lack("out of disk space", f"The disk of {settings.directory} has {_show(free)} left, less than {_show(least)}.")
    return None


def _measure_free_disk(directory: Path) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None  # whatever needs the folder says so


def _show(size: int) -> str:
    return f"{size / MEGABYTE:,.1f} MB"
