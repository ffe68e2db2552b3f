"""Shipping: the log of an attempt is sent to the server while it grows, and completely before the attempt is reported.

    <epoch>.log ───────────── every second: what is new ───▶ the same file in the project of the server
    <epoch>.log.2, .log.1, .agent ─── at the end ──────────▲

Of a log that is longer than its limit, only the first half can be followed; the rest is there when the work has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pointsman.errors import LeaseLost, PointsmanError, StoreError
from pointsman.worker.log import NOTICE_BYTES, name_part
from pointsman.world import Sleep

LOOK_SECONDS = 1.0
CHUNK_BYTES = 1 << 19
AT_THE_END = ("older", "newest", "agent")


class Ship(Protocol):
    """Sends bytes of a part of a log; the answer is how long this part is at the server, and so where to go on."""

    def __call__(self, task_id: str, epoch: int, part: str, offset: int, data: bytes) -> Awaitable[int]: ...


class Shipment:
    """The log of one attempt, on its way."""

    def __init__(self, ship: Ship, task_id: str, epoch: int, path: Path, sleep: Sleep) -> None:
        self._ship = ship
        self._task_id = task_id
        self._epoch = epoch
        self._path = path
        self._sleep = sleep
        self._sent = 0
        """How much of the head the server has."""
        self._sending = asyncio.create_task(self._keep_sending(), name="ship log")

    async def finish(self, insist: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> str | None:
        """Send the rest, and return why that was not possible. While the server is away, `insist` repeats it."""
        await self.stop()
        try:
            await insist(self._send_rest)
        except (LeaseLost, StoreError):
            raise
        except (OSError, PointsmanError) as error:
            return f"The log {self._path} is not complete at the server: {error}"
        return None

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
            offset = await self._ship(self._task_id, self._epoch, part, offset, chunk)
        return offset


def _read(path: Path, offset: int) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, CHUNK_BYTES, offset)
    finally:
        os.close(file)
