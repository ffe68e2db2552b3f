"""What arrives bit by bit: events, logs, a run until it ends. A broken connection is replaced, and nothing is lost or repeated.

Stream ── a transport of its own ──▶ items, until the stream ends or somebody closes it, from whichever thread
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Struct

from pointsman.client.answers import AttemptAnswer, AttemptPage, RunAnswer, TaskCompleted, TaskQuestion, TransitionEvent
from pointsman.client.problems import make_error
from pointsman.client.session import PASSING, Patience, Session, add_query, given, iterate, segment
from pointsman.client.transport import FOREVER, MAX_BODY_BYTES, Reply, Transport
from pointsman.errors import CallRefused, EngineClosed, ServerFailed, ServerUnavailable

EVENTS = "/api/v1/events/stream"
CLOSED = "The client was closed while its stream was open."
SILENCE_SECONDS = 45.0
"""Three heartbeats of a server. A connection that is silent for longer is broken."""
NO_SUCH_RANGE = "range-not-satisfiable"
DONE = "done"
"""The phase of what has ended."""
Event = TransitionEvent | TaskCompleted | TaskQuestion
T = TypeVar("T")


class Stream(Generic[T], Iterator[T]):
    """Items as they arrive. Leave it with `with`, or close it: its connection stays open until then."""

    def __init__(self, session: Session, follow: Callable[[Transport, Patience], Iterator[T]]) -> None:
        self._session = session
        self._transport = session.open_transport()
        self._closing = threading.Event()
        self._items = follow(self._transport, Patience(self._closing, session.retry_seconds))
        session.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return next(self._items)
        except (EngineClosed, StopIteration):
            if self._session.is_closed:
                raise EngineClosed(CLOSED) from None
            raise StopIteration from None

    def close(self) -> None:
        """End the stream; whoever waits for its next item finds that there is none."""
        self._closing.set()
        self._transport.close()
        with suppress(ValueError):  # another thread waits in it, and ends it now
            self._items.close()  # type: ignore[attr-defined] # it is a generator


class Frame(Struct, frozen=True):
    """Events that belong together, and how far the stream is with them."""

    cursor: str
    events: tuple[msgspec.Raw, ...]


class _Tagged(Struct, frozen=True):
    type: str


def follow_frames(transport: Transport, patience: Patience, query: Mapping[str, Any]) -> Iterator[Frame]:
    """All frames, across any number of connections."""
    cursor = query.get("after")
    while True:
        try:
            path = add_query(EVENTS, {**query, "after": cursor})
            with transport.stream("GET", path, timeout_seconds=SILENCE_SECONDS) as (reply, chunks):
                check(reply)
                for frame in read_frames(chunks):
                    patience.renew()
                    cursor = frame.cursor
                    yield frame
            raise ServerUnavailable("The server has ended the stream of events.")
        except PASSING as error:
            patience.wait(error)


def check(reply: Reply) -> None:
    if reply.status >= 300:
        raise make_error(reply)


def read_frames(chunks: Iterator[bytes]) -> Iterator[Frame]:
    """The frames of Server-Sent Events, as the server writes them."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > MAX_BODY_BYTES:
            raise ServerFailed(f"An event has more than {MAX_BODY_BYTES:,} bytes.")
        for text in whole:
            data = [line.removeprefix(b"data:") for line in text.splitlines() if line.startswith(b"data:")]
            if data:
                yield _decode(b"\n".join(data), Frame)


def _decode(text: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ServerFailed(
            f"An event is not as it should be: {error} Is the server of the same version as this client?"
        ) from error


class _Arrived(NamedTuple):
    event: Event
    cursor: str


class Events(Iterator[Event]):
    """The events of a tenant, each once, across broken connections and restarts of the server.

    Without `after`, they begin when it is entered with `with`, or with the first look at them.
    """

    def __init__(self, session: Session, query: Mapping[str, Any]) -> None:
        self.cursor: str | None = query.get("after")
        """Everything up to here has been handed out. Give it as `after` to continue later, on any server of the database."""
        self._frames = Stream(session, lambda transport, patience: follow_frames(transport, patience, query))
        self._arrived: deque[_Arrived] = deque()

    def __enter__(self) -> Self:
        if self.cursor is None:
            self._take(next(self._frames))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self._arrived:
            self._take(next(self._frames))
        event, self.cursor = self._arrived.popleft()
        return event

    def close(self) -> None:
        self._frames.close()

    def _take(self, frame: Frame) -> None:
        known = (TransitionEvent, TaskCompleted, TaskQuestion)
        names = {each.__struct_config__.tag for each in known}
        events: Sequence[Event] = [
            _decode(each, Event) for each in frame.events if _decode(each, _Tagged).type in names
        ]  # a later server may have others
        cursor = self.cursor
        for number, event in enumerate(events):
            is_last = number == len(events) - 1
            if is_last:
                cursor = frame.cursor
            elif events[number + 1].position != event.position:
                cursor = event.position
            self._arrived.append(_Arrived(event, cursor or frame.cursor))
        if not events:
            self.cursor = frame.cursor


def watch_run(session: Session, transport: Transport, patience: Patience, run_id: str) -> Iterator[RunAnswer]:
    """A run as it is, again whenever it may have changed."""
    query = {"run_id": run_id, "kind": "run", "type": "transition"}
    path = f"/api/v1/runs/{segment(run_id)}"
    for _ in follow_frames(transport, patience, query):
        yield session.send("GET", path, RunAnswer)


def follow_log(session: Session, transport: Transport, patience: Patience, task_id: str, attempt: int) -> Iterator[bytes]:
    """The bytes of a log, until its attempt has ended. A log is complete before that."""
    path = f"{name_log(task_id, attempt)}?follow=true"
    seen = 0
    while True:
        try:
            with transport.stream("GET", path, timeout_seconds=FOREVER) as (reply, chunks):
                check(reply)
                for block in skip(chunks, seen):
                    patience.renew()
                    seen += len(block)
                    yield block
            if find_attempt(session, task_id, attempt).ended_at is not None:
                break
            raise ServerUnavailable("The server has ended the log before its attempt.")
        except PASSING as error:
            patience.wait(error)
    yield from read_rest(transport, patience, name_log(task_id, attempt), seen)


def read_rest(transport: Transport, patience: Patience, path: str, seen: int) -> Iterator[bytes]:
    """What a log has behind the bytes that have been seen, now that it is complete."""
    while True:
        try:
            with transport.stream("GET", path, headers={"Range": f"bytes={seen}-"}) as (reply, chunks):
                if is_behind_end(reply):
                    return
                check(reply)
                for block in chunks:
                    seen += len(block)
                    yield block
                return
        except PASSING as error:
            patience.wait(error)


def is_behind_end(reply: Reply) -> bool:
    error = make_error(reply) if reply.status == 416 else None
    return isinstance(error, CallRefused) and error.problem == NO_SUCH_RANGE


def name_log(task_id: str, attempt: int) -> str:
    return f"/api/v1/tasks/{segment(task_id)}/attempts/{segment(attempt)}/log"


def find_attempt(session: Session, task_id: str, attempt: int) -> AttemptAnswer:
    def list_page(after: str | None) -> AttemptPage:
        return session.send("GET", f"/api/v1/tasks/{segment(task_id)}/attempts", AttemptPage, query=given(after=after))

    return next(each for each in iterate(list_page, None) if each.attempt == attempt)


def skip(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        if block := chunk[count:]:
            yield block
        count = max(count - len(chunk), 0)
