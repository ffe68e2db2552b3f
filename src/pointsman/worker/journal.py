"""The log of all transitions, one JSON line each (document 002.8), kept from the event stream of the database.

The database is the truth and the file a copy of it: each line carries the position of its transition in the stream, so whoever
appends goes on behind the last one, and several processes may take turns at one file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from pointsman.engine.engine import Engine
from pointsman.errors import LogUnreadable, StoreError
from pointsman.store.rows import Transition
from pointsman.world import Sleep

PAGE = 5_000
LONGEST_LINE = 1 << 20
USUAL_LINES = 1 << 14
"""Mostly the last few lines are found in as much."""
PAUSE_SECONDS = 0.5


class _Last(msgspec.Struct):
    """What has to be known of the last line."""

    timestamp: datetime
    metadata: dict[str, Any]


async def keep(engine: Engine, path: Path, sleep: Sleep) -> None:
    """Append whatever happens, until this is cancelled. While the database is away or the disk is full, it waits."""
    while True:
        with suppress(StoreError, OSError):
            position = await append(engine, path)
            async for _ in engine.watch(after=position):
                break
        await sleep(PAUSE_SECONDS)  # what comes in the meantime is one write


async def append(engine: Engine, path: Path) -> str | None:
    """Bring the log up to date; up to which position of the stream."""
    async with _locked(path) as file:
        last = _find_last(file, path)
        position = str(last.metadata["position"]) if last else None
        _, position = await _write(engine, file, position, last.timestamp if last else None)
        return position


async def rebuild(engine: Engine, path: Path) -> int:
    """Write the whole log anew from the database; how many lines it has."""
    async with _locked(path) as file:
        os.ftruncate(file, 0)
        written, _ = await _write(engine, file, None, None)
        return written


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _find_last(file: int, path: Path) -> _Last | None:
    """The last line; one that a crash has torn is cut off, since the stream still has it."""
    size = os.fstat(file).st_size
    for length in (USUAL_LINES, 2 * LONGEST_LINE):
        begin = max(0, size - length)
        *_, torn = lines = os.pread(file, size - begin, begin).split(b"\n")
        if len(lines) > 2:  # the first one may be the end of a longer one
            break
    if torn:
        os.ftruncate(file, size - len(torn))
    if len(lines) < 2:
        return None
    try:
        last = msgspec.json.decode(lines[-2], type=_Last)
        int(last.metadata["position"])
    except (msgspec.MsgspecError, KeyError, ValueError):
        message = f"{path} does not end with a line that Pointsman wrote. Move it away, or run: pointsman history --rebuild"
        raise LogUnreadable(message) from None
    return last


async def _write(engine: Engine, file: int, position: str | None, latest: datetime | None) -> tuple[int, str | None]:
    written = 0
    while page := await engine.list_transitions(after=position, limit=PAGE):
        lines = []
        for transition in page:
            # Processes that commit at the same time may be some milliseconds out of step; the stream has one order.
            latest = max(latest, transition.at) if latest else transition.at
            machine = await engine.get_machine(transition)
            lines.append(as_line(transition, machine.name, latest))
        await asyncio.to_thread(_write_all, file, b"".join(lines))
        written += len(page)
        position = page[-1].position
    return written, position


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def as_line(transition: Transition, machine: str, timestamp: datetime, name: str | None = None) -> bytes:
    """One transition as document 002 has it; `pointsman validate` reads it."""
    metadata = msgspec.json.decode(transition.metadata or "{}")
    if name is not None:
        metadata["name"] = name
    metadata |= {"machine": machine, "position": transition.position}
    for key in ("run_id", "reason", "actor"):
        if (value := getattr(transition, key)) is not None:
            metadata.setdefault(key, value)
    event = {
        "timestamp": timestamp,
        "event_type": f"{transition.kind}_state_transition",
        "severity": transition.severity,
        "entity_id": transition.entity_id,
        "from_state": transition.from_state,
        "to_state": transition.to_state,
        "trigger": transition.trigger,
        "metadata": metadata,
    }
    return msgspec.json.encode(event) + b"\n"
