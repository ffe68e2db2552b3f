"""The journal: all transitions, one JSON line each (document 002.8), copied from the event stream of the database.

    worker, run, resume ── a duty appends what is new, whoever moved it ──▶ .state/transitions.jsonl
    any other engine ───── appends at its end, if it has changed anything ──▶ (the same file)

Each line has the position of its transition in the stream, so a process continues after the last line, and several processes
may take turns with one file. What a process could not append, because it was killed, the next one appends. If the database does
not know the last line, the file belongs to another database: it is renamed to `transitions.<n>.jsonl`, and used again when that
database is back.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from pointsman.engine.duties import Duty
from pointsman.engine.engine import Engine
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.engine.queries import HELD_BACK_SECONDS, LONGEST_PAUSE_SECONDS
from pointsman.errors import LogUnreadable, NotFound, PointsmanError, RequestInvalid, StoreGone
from pointsman.events.event import event_type
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Wakeup, read_position
from pointsman.store.rows import Transition
from pointsman.world import Sleep

JOURNAL = Path(".state") / "transitions.jsonl"
"""Within the folder of a project."""
PAGE = 5_000
LONGEST_LINE = 1 << 20
USUAL_LINES = 1 << 14
"""Usually enough for the last two lines."""
REST_SECONDS = 0.5
RETRIED = (Kind.RUN, Kind.TASK)
BY_HAND = "sql"
"""The law stores no count of retries with a move that was made by hand."""
NEVER_FULL = 2
"""One turn writes everything there is."""
MOST_LOOKS = 20
"""At the end of an engine, while another transaction holds the stream back: the next process appends what is missing then."""

log = logging.getLogger(__name__)


class _Last(msgspec.Struct):
    """The last line."""

    timestamp: datetime
    entity_id: str
    to_state: str
    metadata: dict[str, Any]

    @property
    def position(self) -> str:
        return str(self.metadata["position"])

    @property
    def tenant(self) -> str:
        return str(self.metadata.get("tenant", DEFAULT_TENANT))


@asynccontextmanager
async def kept(engine: Engine, path: Path, sleep: Sleep, *, as_duty: bool) -> AsyncIterator[None]:
    """Keep the journal of an open engine: always, or only at its end and if the engine has changed anything."""
    if as_duty:
        engine.start_duty(journal_duty(engine, path, sleep))
    try:
        yield
    finally:
        if as_duty or engine.commit_metrics.batches:
            await _complete(engine, path, sleep)


async def _complete(engine: Engine, path: Path, sleep: Sleep) -> None:
    """The journal is a copy, so that it cannot be written is no failure of the work."""
    try:
        await append(engine, path)
        for _ in range(MOST_LOOKS):
            if not await engine.is_held_back():
                return
            await sleep(HELD_BACK_SECONDS)
            await append(engine, path)
    except StoreGone:
        pass  # there is nothing to copy from, and whoever works with the database says so
    except (OSError, PointsmanError) as error:
        log.warning("%s is not up to date: %s. Rebuild it: pointsman history --rebuild", path, str(error).rstrip("."))


def journal_duty(engine: Engine, path: Path, sleep: Sleep) -> Duty:
    """The duty that appends new transitions. Its cursor is the last line of the file."""
    appended: str | None = None

    async def perform() -> int:
        nonlocal appended
        before, appended = appended, await append(engine, path)
        while await engine.is_held_back():  # no wake-up tells when the transactions that hold it back have ended
            await sleep(HELD_BACK_SECONDS)
            appended = await append(engine, path)
        return int(appended != before)

    return Duty(
        name="journal",
        perform=perform,
        interval_seconds=LONGEST_PAUSE_SECONDS,
        full_batch=NEVER_FULL,
        rest_seconds=REST_SECONDS,
        wakes_on=Wakeup.EVENTS,
    )


async def append(engine: Engine, path: Path) -> str | None:
    """Bring the journal up to date; returns the last position."""
    async with _locked(path) as file:
        last = _find_last(file, path)
        if last is None or await _knows(engine, last):
            position, latest = (last.position, last.timestamp) if last else (None, None)
            _, position = await _write(engine, file, position, latest)
            return position
        await _change_logs(engine, path)
    return await append(engine, path)


async def rebuild(engine: Engine, path: Path) -> int:
    """Rewrite the whole journal from the database; returns the number of lines."""
    async with _locked(path) as file:
        os.ftruncate(file, 0)
        written, _ = await _write(engine, file, None, None)
        return written


async def _knows(engine: Engine, last: _Last) -> bool:
    """Whether a line comes from this database; a new database reuses the positions of a deleted one."""
    before = str(max(0, int(last.position) - 1))
    moves = await engine.list_all_transitions(after=before, limit=1)
    if not moves:  # the stream may lag for a moment, even behind what was read before
        with suppress(NotFound, RequestInvalid):
            moves = await engine.for_tenant(last.tenant).list_history(last.entity_id)
    return any(
        (move.position, move.entity_id, move.to_state) == (last.position, last.entity_id, last.to_state) for move in moves
    )


async def _change_logs(engine: Engine, path: Path) -> None:
    """Rename the journal of another database, and bring back that of this database if there is one."""
    own = None
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        own = own or (aside if await _belongs(engine, aside) else None)
        number += 1
    _exchange(path, aside, own)


def _exchange(path: Path, aside: Path, own: Path | None) -> None:
    path.rename(aside)
    if own is not None:
        own.rename(path)
        aside.rename(own)


async def _belongs(engine: Engine, path: Path) -> bool:
    async with _locked(path) as file:
        try:
            last = _find_last(file, path)
        except LogUnreadable:
            return False
    return last is not None and await _knows(engine, last)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
            if _is_at(path, file):
                yield file
                return
        finally:
            os.close(file)


def _is_at(path: Path, file: int) -> bool:
    """Whether the file still has that name: it may have been renamed while we waited for the lock."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file))
    return False


def _find_last(file: int, path: Path) -> _Last | None:
    """The last line; an incomplete one, after a crash, is removed, since the stream still has it."""
    size = os.fstat(file).st_size
    for length in (USUAL_LINES, 2 * LONGEST_LINE):
        begin = max(0, size - length)
        *_, incomplete = lines = os.pread(file, size - begin, begin).split(b"\n")
        if len(lines) > 2:  # the first one may be incomplete
            break
    if incomplete:
        os.ftruncate(file, size - len(incomplete))
    if len(lines) < 2:
        return None
    try:
        last = msgspec.json.decode(lines[-2], type=_Last)
        read_position(last.position)
    except (msgspec.MsgspecError, KeyError, RequestInvalid):
        message = f"{path} does not end with a line of Pointsman. Move it away, or run: pointsman history --rebuild"
        raise LogUnreadable(message) from None
    return last


async def _write(engine: Engine, file: int, position: str | None, latest: datetime | None) -> tuple[int, str | None]:
    written = 0
    while page := await engine.list_all_transitions(after=position, limit=PAGE):
        lines = []
        for transition in page:
            # The clocks of processes may differ by some milliseconds; the order of the stream counts.
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
    """A transition as a line of document 002, which `pointsman validate` reads."""
    metadata = _counts(transition) | transition.details
    if name is not None:
        metadata["name"] = name
    metadata |= {"machine": machine, "position": transition.position}
    if transition.tenant != DEFAULT_TENANT:
        metadata["tenant"] = transition.tenant
    for key in ("run_id", "reason", "actor"):
        if (value := getattr(transition, key)) is not None:
            metadata.setdefault(key, value)
    event = {
        "timestamp": timestamp,
        "event_type": event_type(machine),
        "severity": transition.severity,
        "entity_id": transition.entity_id,
        "from_state": transition.from_state,
        "to_state": transition.to_state,
        "trigger": transition.trigger,
        "metadata": metadata,
    }
    return msgspec.json.encode(event) + b"\n"


def _counts(transition: Transition) -> dict[str, Any]:
    """How long the entity was in the state that it leaves, and its retries so far; the database stores no zero."""
    counts: dict[str, Any] = {}
    if transition.seconds_in_state is not None:
        counts["duration_seconds"] = transition.seconds_in_state
    if transition.kind in RETRIED and transition.actor != BY_HAND:
        counts["retry_count"] = 0
    return counts
