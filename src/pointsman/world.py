"""The outside world: time, ids, randomness, sleeping, the process. It is passed in, so that a simulation can replace it."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from pointsman.tracing import Tracing

BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On systems without the first, the second does not stop during a suspension."""


class Clock(Protocol):
    def now(self) -> datetime:
        """The instant, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment, for measuring how long something takes."""
        ...

    def boottime(self) -> float:
        """Like `monotonic`, but it also counts the time in which the machine is suspended."""
        ...


class Ids(Protocol):
    def new(self, prefix: str, at: datetime) -> str:
        """A name that nothing else has; names sort by `at`."""
        ...

    def short(self, prefix: str) -> str:
        """`prefix` and twelve hexadecimal digits, as document 000 names its jobs."""
        ...


class Chance(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def getrandbits(self, count: int, /) -> int: ...


class Sleep(Protocol):
    def __call__(self, seconds: float) -> Awaitable[None]: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(BOOTTIME)


class RandomIds:
    """Version 7 UUIDs behind a prefix: 48 bits of milliseconds, 74 of chance. Those made here one after the other sort so."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.SystemRandom()
        self._last = 0

    def new(self, prefix: str, at: datetime) -> str:
        milliseconds = int(at.timestamp() * 1000)
        chance = self._source.getrandbits(74)
        number = milliseconds << 80 | 7 << 76 | (chance >> 62) << 64 | 2 << 62 | chance & (1 << 62) - 1
        if self._last >> 80 == milliseconds and number <= self._last:
            number = self._last + 1
        self._last = number
        return f"{prefix}_{number:032x}"

    def short(self, prefix: str) -> str:
        return f"{prefix}_{self._source.getrandbits(48):012x}"


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is handed in; the defaults are the real ones."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    chance: Chance = field(default_factory=random.SystemRandom)
    sleep: Sleep = _sleep
    process: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    """The name of this process, for people."""
    tracing: Tracing = field(default_factory=Tracing)
