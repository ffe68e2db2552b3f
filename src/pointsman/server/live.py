"""Live events: one reader of the event stream in a process, and any number of clients that follow it.

    event stream ── one reader ──▶ recent batches ──▶ client, client, client …     frames are encoded once for each filter
                 ◀── pages ─────── a client whose cursor is older than these catches up, a few clients at a time

Clients have cursors and no queues. A slow one costs what its connection buffers, and is dropped when it stands still.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum

from pointsman.engine.engine import Engine
from pointsman.errors import CallRefused, EngineClosed, PointsmanError, Problem, RequestInvalid
from pointsman.server.auth import Holder
from pointsman.server.events import (
    Event,
    EventFilter,
    Frame,
    StreamQuery,
    make_events,
    read_cursor,
    read_filter,
    write_frame,
    write_frames,
)
from pointsman.store.contract import Wakeup
from pointsman.views.keys import KeyState, make_key_view
from pointsman.world import World

PAUSE_SECONDS = 0.1
"""Between two looks at the event stream: what happens meanwhile is sent at once, which costs far less."""
HEARTBEAT_SECONDS = 15.0
RETRY_SECONDS = 1.0
PAGE = 500
CATCH_UPS = 4
"""How many clients read pages at the same time."""
RECENT_EVENTS = 10_000
RECENT_CHARACTERS = 16 << 20
STREAMS_PER_TENANT = 2_000
CLOSED = "The server is stopping."

log = logging.getLogger(__name__)


class Ending(Enum):
    """Why a stream ended: the close code of a WebSocket, and the reason it gives."""

    LEFT = (1000, "")
    STOPPING = (1001, "The server is stopping. Connect again with the last cursor.")
    TALKED = (1003, "This stream takes no messages.")
    KEY_ENDED = (1008, "The API key is no longer valid.")


@dataclass(slots=True)
class Batch:
    """What the reader found at once: all events behind `start` up to `end`."""

    start: int
    end: int
    events: list[Event]
    size: int
    _frames: dict[EventFilter, tuple[Frame, ...]] = field(default_factory=dict)

    def frames(self, wanted: EventFilter, after: int) -> tuple[Frame, ...]:
        """The frames for a filter. Clients that continue amid the batch are few, so theirs are not kept."""
        if after > self.start:
            later = (event for event in self.events if event.position > after and wanted.wants(event))
            return tuple(write_frames(later, self.end))
        if wanted not in self._frames:
            self._frames[wanted] = tuple(write_frames(filter(wanted.wants, self.events), self.end))
        return self._frames[wanted]


@dataclass(eq=False, slots=True)
class Stream:
    """What one client follows."""

    holder: Holder
    wanted: EventFilter
    cursor: int = 0
    """Everything up to here has been handed to its connection."""
    ending: Ending | None = None
    is_heartbeat_due: bool = True
    """At first as well: it says that the client has caught up with what there was when it joined, and where it is."""
    joined_at: int = 0
    """The end of the event stream when the client joined. The reader may not have come so far yet."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, ending: Ending) -> None:
        self.ending = self.ending or ending
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    async def sleep(self) -> None:
        await self._wake.wait()
        self._wake.clear()


class Live:
    """All streams of a process. It reads nothing while there are none."""

    def __init__(self, engine: Engine, world: World, streams_per_tenant: int = STREAMS_PER_TENANT) -> None:
        self._engine, self._world, self._limit = engine, world, streams_per_tenant
        self._streams: set[Stream] = set()
        self._recent: deque[Batch] = deque()
        self._sizes = [0, 0]
        self._head = 0
        """The reader has read everything up to here."""
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._catching_up = asyncio.Semaphore(CATCH_UPS)
        self._keys_changed = asyncio.Event()
        self._is_closed = False

    async def join(self, holder: Holder, query: StreamQuery) -> Stream:
        """A new stream; whoever has it calls `leave` in the end."""
        cursor = read_cursor(query.after)
        if self._is_closed:
            raise EngineClosed(CLOSED)
        if sum(each.holder.tenant == holder.tenant for each in self._streams) >= self._limit:
            message = f"This server has {self._limit:,} streams for this tenant already. Close some, or use another server."
            raise CallRefused("too-many-streams", message, headers={"Retry-After": "10"})
        stream = Stream(holder, EventFilter(holder.tenant))
        self._streams.add(stream)
        try:
            stream.wanted = await read_filter(self._engine, holder.tenant, query)
            await self._start()
            stream.joined_at = int(await self._engine.last_position() or 0)
            stream.cursor = stream.joined_at if cursor is None else cursor
            _check_cursor(stream)
        except BaseException:
            self.leave(stream)
            raise
        return stream

    def leave(self, stream: Stream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._stop()

    def close(self) -> None:
        """End all streams, and take no more."""
        self._is_closed = True
        for stream in self._streams:
            stream.end(Ending.STOPPING)

    async def next_frames(self, stream: Stream) -> tuple[Frame, ...]:
        """Wait for the next frames of a stream; none when it has ended."""
        while stream.ending is None:
            if stream.cursor < self._head:
                if frames := await self._advance(stream):
                    return frames
            elif stream.is_heartbeat_due and stream.cursor >= stream.joined_at:
                stream.is_heartbeat_due = False
                return (write_frame((), stream.cursor),)
            else:
                await stream.sleep()
        return ()

    async def _advance(self, stream: Stream) -> tuple[Frame, ...]:
        batch = next((each for each in self._find_recent(stream.cursor)), None)
        if batch is None:
            return await self._catch_up(stream)
        frames = batch.frames(stream.wanted, stream.cursor)
        stream.cursor = batch.end
        return frames

    def _find_recent(self, cursor: int) -> Iterator[Batch]:
        """The batch in which a cursor is, if it is recent. Most clients are at the last one."""
        for batch in reversed(self._recent):
            if batch.start <= cursor:
                yield batch
                return

    async def _catch_up(self, stream: Stream) -> tuple[Frame, ...]:
        async with self._catching_up:
            head, wanted = self._head, stream.wanted
            engine = self._engine.for_tenant(wanted.tenant)
            try:
                page = await engine.list_transitions(after=str(stream.cursor), limit=PAGE, run_id=wanted.run_id)
                events = await make_events(self._engine, page)
            except EngineClosed:
                stream.end(Ending.STOPPING)
                return ()
            except PointsmanError as error:
                log.warning("a client cannot catch up: %s", error)
                await self._world.sleep(RETRY_SECONDS)
                return ()
        last = int(page[-1].position) if page else 0
        stream.cursor = last if len(page) == PAGE else max(last, head)
        return tuple(write_frames(filter(wanted.wants, events), stream.cursor))

    # the reader, and what happens from time to time

    async def _start(self) -> None:
        async with self._starting:
            if not self._tasks:
                self._head = int(await self._engine.last_position() or 0)
                self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._keep_house())]

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._recent.clear()
        self._sizes = [0, 0]

    async def _read(self) -> None:
        """Nothing is lost when the database is away: the reader continues where it was."""
        while True:
            try:
                async with aclosing(self._engine.watch_all(after=str(self._head), pause_seconds=PAUSE_SECONDS)) as pages:
                    async for page in pages:
                        self._add(int(page[-1].position), await make_events(self._engine, page))
            except EngineClosed:
                self.close()
                return
            except Exception as error:
                log.warning("the event stream cannot be read: %s", error, exc_info=not isinstance(error, PointsmanError))
                await self._world.sleep(RETRY_SECONDS)

    def _add(self, end: int, events: list[Event]) -> None:
        batch = Batch(self._head, end, events, sum(len(event.text) for event in events))
        self._recent.append(batch)
        self._head = end
        self._measure(batch, 1)
        while len(self._recent) > 1 and (self._sizes[0] > RECENT_EVENTS or self._sizes[1] > RECENT_CHARACTERS):
            self._measure(self._recent.popleft(), -1)
        for stream in self._streams:
            stream.wake()

    def _measure(self, batch: Batch, sign: int) -> None:
        self._sizes[0] += sign * len(batch.events)
        self._sizes[1] += sign * batch.size

    async def _keep_house(self) -> None:
        """Heartbeats; and the end of streams whose key has ended."""
        forget = self._engine.listen(Wakeup.KEYS, self._keys_changed.set)
        try:
            while True:
                is_beat = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await self._keys_changed.wait()
                        is_beat = False
                self._keys_changed.clear()
                await self._end_without_key()
                for stream in self._streams:
                    stream.is_heartbeat_due |= is_beat
                    stream.wake()
        finally:
            forget()

    async def _end_without_key(self) -> None:
        try:
            now, keys = await self._engine.now(), await self._engine.list_all_keys()
        except EngineClosed:
            self.close()
            return
        except PointsmanError as error:
            log.warning("the API keys of streams cannot be checked: %s", error)
            return
        valid = {key.id for key in keys if make_key_view(key, now).state == KeyState.VALID}
        for stream in self._streams:
            if stream.holder.key_id not in (valid if keys else {""}):
                stream.end(Ending.KEY_ENDED)


def _check_cursor(stream: Stream) -> None:
    if stream.cursor > stream.joined_at:
        last = stream.joined_at
        message = f"The event stream has only {last:,} positions. Is it of another database? Leave it out to begin now."
        raise RequestInvalid([Problem("after", message)])
