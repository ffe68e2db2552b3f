"""What a client does for each request: it makes an idempotency key, sends, tries again, and reads the answer.

Every change has a key, so that each request may be sent again: while the server does not answer, is too busy or starts anew.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode
from weakref import WeakSet

import msgspec

from pointsman.client.problems import make_error, read_retry_after
from pointsman.client.transport import KEY_HEADER, Reply, Transport
from pointsman.errors import (
    CallRefused,
    EngineClosed,
    OutcomeUnknown,
    Overloaded,
    PointsmanError,
    Problem,
    RequestInvalid,
    ServerFailed,
    ServerUnavailable,
    StoreUnavailable,
)
from pointsman.world import RandomIds, SystemClock

RETRY_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
TOO_MANY_REQUESTS = 429
PASSING = (StoreUnavailable, Overloaded, CallRefused)
"""What may be otherwise a moment later; of the last, only too many requests."""
T = TypeVar("T")
Item_co = TypeVar("Item_co", covariant=True)


class Page(Protocol[Item_co]):
    """A part of a list."""

    @property
    def items(self) -> tuple[Item_co, ...]: ...
    @property
    def next(self) -> str | None: ...


class Closeable(Protocol):
    def close(self) -> None: ...


class Patience:
    """How long to go on trying. Pauses double, up to some seconds, and a server may ask for longer ones."""

    def __init__(self, closing: threading.Event, retry_seconds: float) -> None:
        self._closing, self._left = closing, retry_seconds
        self._retry_seconds = retry_seconds
        self._pause = FIRST_PAUSE_SECONDS

    def wait(self, error: PointsmanError) -> None:
        """Wait before the next try, or raise what went wrong at the last one."""
        pause = max(self._pause, _asks_to_wait(error) or 0.0)
        if not may_pass(error) or pause > self._left:
            raise error
        self._left -= pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        if self._closing.wait(pause):
            raise EngineClosed("The client was closed while it waited for the server.")

    def renew(self) -> None:
        """The server has answered."""
        self._left, self._pause = self._retry_seconds, FIRST_PAUSE_SECONDS


def may_pass(error: PointsmanError) -> bool:
    return isinstance(error, PASSING) and not (isinstance(error, CallRefused) and error.status != TOO_MANY_REQUESTS)


def _asks_to_wait(error: PointsmanError) -> float | None:
    if isinstance(error, CallRefused):
        return read_retry_after(error.headers)
    return error.retry_after_seconds if isinstance(error, ServerUnavailable | Overloaded) else None


class Session:
    """A server, and how to talk to it. Thread-safe."""

    def __init__(self, open_transport: Callable[[], Transport], *, retry_seconds: float) -> None:
        self.open_transport = open_transport
        """For streams: each has a transport of its own, so that it can be ended from elsewhere."""
        self.retry_seconds = retry_seconds
        self.transport = open_transport()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._ids, self._clock = RandomIds(), SystemClock()
        self._streams: WeakSet[Closeable] = WeakSet()

    @property
    def url(self) -> str:
        return self.transport.url

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def add(self, stream: Closeable) -> None:
        """A stream, which ends with the session."""
        with self._lock:
            self._streams.add(stream)
        if self.is_closed:
            stream.close()

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            streams = tuple(self._streams)
        self.transport.close()
        for stream in streams:
            stream.close()

    def send(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> T:
        """Send a request until there is an answer, and decode it."""
        changes = method != "GET"
        headers = {KEY_HEADER: self._name_request(request_id)} if changes else {}
        content = msgspec.json.encode(body or {}) if changes else None
        reply = self.exchange(
            lambda: self.transport.request(method, add_query(path, query), body=content, headers=headers),
            has_own_key=changes and request_id is None,
        )
        return read_answer(reply, answer, self.url)

    def exchange(self, ask: Callable[[], Reply], *, has_own_key: bool = False) -> Reply:
        """The first answer that is a success. `has_own_key`: nobody else knows the key of the request."""
        patience = Patience(self._closing, self.retry_seconds)
        was_sent = False
        while True:
            try:
                reply = ask()
                if reply.status < 300:
                    return reply
                raised = make_error(reply)
            except StoreUnavailable as error:
                raised = error
            was_sent = was_sent or isinstance(raised, OutcomeUnknown) or getattr(raised, "may_have_happened", False)
            try:
                patience.wait(raised)
            except PASSING as error:
                if not (has_own_key and was_sent and may_pass(error)) or isinstance(error, OutcomeUnknown):
                    raise
                message = f"{error} An earlier try may have been carried out: look before you send it again."
                raise OutcomeUnknown(message) from error

    def _name_request(self, request_id: str | None) -> str:
        if request_id is None:
            with self._lock:  # ids that are made at the same moment differ only if one is made after the other
                return self._ids.new("request", self._clock.now())
        if not request_id.isprintable():
            raise RequestInvalid([Problem("request_id", "Must be one line of text.")])
        return request_id


class Calls:
    """The base of the routes."""

    _session: Session

    def _send(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> T:
        return self._session.send(method, path, answer, query=query, body=body, request_id=request_id)


def read_answer(reply: Reply, answer: type[T], url: str) -> T:
    try:
        if answer is str:
            return reply.body.decode()  # type: ignore[return-value] # T is str
        return msgspec.json.decode(reply.body, type=answer)
    except (msgspec.DecodeError, UnicodeError) as error:
        advice = "Is it a server of Pointsman, and of the same version as this client?"
        raise ServerFailed(f"The answer of {url} is no {answer.__name__}: {error} {advice}") from error


def given(**values: object) -> dict[str, object]:
    """Without what is None, for which the server has a default."""
    return {name: value for name, value in values.items() if value is not None}


def segment(value: object) -> str:
    """A part of a path, whatever is in it."""
    quoted = quote(str(value), safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def add_query(path: str, query: Mapping[str, Any] | None) -> str:
    values = {name: _write(value) for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(values)}" if values else path


def _write(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(msgspec.to_builtins(value))


def iterate(list_page: Callable[..., Page[T]], after: str | None) -> Iterator[T]:
    """What is on all pages."""
    while True:
        page = list_page(after=after)
        yield from page.items
        if page.next is None or not page.items:
            return
        after = page.next


async def iterate_async(list_page: Callable[..., Awaitable[Page[T]]], after: str | None) -> AsyncIterator[T]:
    """What is on all pages."""
    while True:
        page = await list_page(after=after)
        for item in page.items:
            yield item
        if page.next is None or not page.items:
            return
        after = page.next
