"""Shipping: the log and the artifacts of an attempt are at the server before the attempt is reported.

    <epoch>.log ───────────── every second: what is new ───▶ the same file in the project of the server
    <epoch>.log.2, .log.1, .agent ─── at the end ──────────▲
    <epoch>.artifacts/ ────────────── at the end ──────────▲

Of a log that is longer than its limit, only the first half can be followed; the rest is there when the work has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pointsman.artifacts import ArtifactFolder, ArtifactLimits
from pointsman.errors import LeaseLost, PointsmanError, StoreError
from pointsman.worker.log import NOTICE_BYTES, name_part
from pointsman.world import Sleep

LOOK_SECONDS = 1.0
CHUNK_BYTES = 1 << 19
AT_THE_END = ("older", "newest", "agent")


class Receiver(Protocol):
    """Takes bytes of files to the server; the answer is how long the file is there, and so where to go on."""

    def ship_log(self, task_id: str, epoch: int, part: str, offset: int, data: bytes) -> Awaitable[int]: ...

    def ship_artifact(self, task_id: str, epoch: int, name: str, offset: int, data: bytes) -> Awaitable[int]: ...


class Shipment:
    """The log and the artifacts of one attempt, on their way."""

    def __init__(self, receiver: Receiver, task_id: str, epoch: int, path: Path, limits: ArtifactLimits, sleep: Sleep) -> None:
        """`path` is that of the log."""
        self._receiver = receiver
        self._task_id = task_id
        self._epoch = epoch
        self._path = path
        self._sleep = sleep
        self._sent = 0
        """How much of the head the server has."""
        self._artifacts = ArtifactFolder.beside(path, limits)
        self._sent_artifacts: dict[str, int] = {}
        """How much of each the server has."""
        self._left_out = 0
        self._sending = asyncio.create_task(self._keep_sending(), name="ship log")

    async def finish(self, insist: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> list[str]:
        """Send the rest, and return what was not possible. While the server is away, `insist` repeats it."""
        await self.stop()
        problems = []
        for what, send in ((f"The log {self._path} is", self._send_rest), (f"{self._artifacts.path} is", self._send_artifacts)):
            try:
                await insist(send)
            except (LeaseLost, StoreError):
                raise
            except (OSError, PointsmanError) as error:
                problems.append(f"{what} not complete at the server: {error}")
        if self._left_out:
            limits = self._artifacts.limits
            problems.append(f"{self._left_out} files in {self._artifacts.path} were not sent. {limits}, and none is a link.")
        return problems

    async def stop(self) -> None:
        self._sending.cancel()
        await asyncio.wait({self._sending})

    async def _keep_sending(self) -> None:
        while True:
            await self._sleep(LOOK_SECONDS)
            with suppress(OSError, PointsmanError):  # what is still wrong at the end is said then
                self._sent = await self._send("head", self._sent)

    async def _send_rest(self) -> None:
        is_cut = name_part(self._path, "newest").exists()
        self._sent = await self._send("head", max(0, self._sent - NOTICE_BYTES) if is_cut else self._sent)
        for part in AT_THE_END:
            await self._send(part, 0)

    async def _send(self, part: str, offset: int) -> int:
        """Send what is behind an offset; how much the server has then."""
        path = name_part(self._path, part)
        while chunk := await asyncio.to_thread(_read, path, offset):
            offset = await self._receiver.ship_log(self._task_id, self._epoch, part, offset, chunk)
        return offset

    async def _send_artifacts(self) -> None:
        found = await asyncio.to_thread(self._artifacts.list_files)
        self._left_out = found.left_out
        for each in found.items:
            # One request at least, so that an empty file is there as well.
            while each.name not in self._sent_artifacts or self._sent_artifacts[each.name] < each.size:
                offset = self._sent_artifacts.get(each.name, 0)
                chunk = await asyncio.to_thread(self._artifacts.read, each.name, offset, CHUNK_BYTES)
                if offset and not chunk:
                    break  # it has become shorter
                sent = await self._receiver.ship_artifact(self._task_id, self._epoch, each.name, offset, chunk)
                self._sent_artifacts[each.name] = sent


def _read(path: Path, offset: int) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, CHUNK_BYTES, offset)
    finally:
        os.close(file)
