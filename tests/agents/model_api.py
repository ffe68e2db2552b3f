"""A stand-in for the APIs of models, on loopback: it speaks what coding agents expect, and says what a test has planned.

    with serve(Messages()) as api:
        api.plan(Call("Write", {"file_path": "a", "content": "b"}), Text("done"))

Each request of a conversation takes the next turn of the plan; the last one repeats. What agents ask beside that (titles,
routing, lists of models) is answered, and takes no turn. Every request is recorded.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

PATIENCE_SECONDS = 300.0
Body = dict[str, Any]
Event = tuple[str | None, Body | str]
"""An event of a stream: its name, if the dialect has names, and its data."""


@dataclass(frozen=True)
class Text:
    """The model says something, and ends its turn."""

    text: str
    tokens_in: int = 100
    tokens_out: int = 20


@dataclass(frozen=True)
class Call:
    """The model calls a tool, by its name or by the end of it."""

    tool: str
    arguments: Body
    tokens_in: int = 100
    tokens_out: int = 20


@dataclass(frozen=True)
class Fail:
    """The request is refused with this status."""

    status: int
    message: str = "the stand-in refuses"
    headers: dict[str, str] = field(default_factory=dict)
    body: Body | None = None
    """What the dialect would not say by itself."""


@dataclass(frozen=True)
class Cut:
    """The connection breaks in the middle of the answer."""

    text: str = "I was about to"


@dataclass(frozen=True)
class Hang:
    """The answer begins, and does not go on until the test releases it, or the agent hangs up."""

    text: str = "Let me think"


Answer = Text | Call
Turn = Answer | Fail | Cut | Hang


@dataclass(frozen=True)
class Decide:
    """The turn depends on the request."""

    decide: Callable[[Request], Turn]


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Body

    @property
    def texts(self) -> list[str]:
        return list(_texts(self.body))

    def says(self, text: str) -> bool:
        """Whether a text of the request contains this one."""
        return any(text in each for each in self.texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


class Dialect(Protocol):
    """How an API is spoken."""

    def is_turn(self, request: Request) -> bool:
        """Whether it belongs to the conversation; other requests get `aside`."""
        ...

    def aside(self, request: Request) -> Body:
        """What is answered to other requests."""
        ...

    def list_tools(self, request: Request) -> list[str]:
        """The tools that the model is offered."""
        ...

    def wants_stream(self, request: Request) -> bool: ...

    def stream(self, answer: Answer, request: Request) -> list[Event]:
        """The answer as events. The first half of them is what a broken stream has."""
        ...

    def whole(self, answer: Answer, request: Request) -> Body:
        """The answer in one piece."""
        ...

    def refuse(self, fail: Fail) -> Body: ...


class ModelApi:
    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.turns: list[Request] = []
        """The requests of conversations."""
        self.asides: list[Request] = []
        self.problems: list[str] = []
        """What the stand-in could not answer: a test that has one has failed."""
        self.on_turn: Callable[[Request], None] = lambda _: None
        """Called with each request of a conversation, before it is answered."""
        self.release = threading.Event()
        """Lets hanging answers go on."""
        self.url = ""
        self._plan: list[Turn | Decide] = [Text("done")]
        self._lock = threading.Lock()

    def plan(self, *turns: Turn | Decide) -> None:
        self._plan = list(turns)

    def take(self, request: Request) -> Turn:
        self.on_turn(request)
        with self._lock:
            self.turns.append(request)
            turn = self._plan.pop(0) if len(self._plan) > 1 else self._plan[0]
        return turn.decide(request) if isinstance(turn, Decide) else turn

    def find_tool(self, call: Call, request: Request) -> Call:
        """The call with the name that the agent has for the tool."""
        names = self.dialect.list_tools(request)
        found = [name for name in names if name == call.tool] or [name for name in names if name.endswith(call.tool)]
        if not found:
            self.problems.append(f"The agent offers no tool {call.tool}, only {', '.join(names)}.")
            return call
        return Call(found[0], call.arguments, call.tokens_in, call.tokens_out)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._answer(Request(self.path, dict(self.headers), {}))

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            body = json.loads(content or b"{}")
        except ValueError:
            self.server.api.problems.append(f"{self.path}: not JSON: {content[:100]!r}")
            body = {}
        self._answer(Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body))

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - the name of the base class

    def _answer(self, request: Request) -> None:
        try:
            self._respond(request)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the agent has hung up
        except Exception as error:  # noqa: BLE001 - the agent would only see a broken connection
            self.server.api.problems.append(f"{self.path}: {error!r}")
            self.close_connection = True

    def _respond(self, request: Request) -> None:
        api = self.server.api
        if not api.dialect.is_turn(request):
            api.asides.append(request)
            return self._send(200, api.dialect.aside(request))
        match api.take(request):
            case Fail() as fail:
                self._send(fail.status, fail.body or api.dialect.refuse(fail), fail.headers)
            case Cut(text):
                self._begin()
                self._write(api.dialect.stream(Text(text), request), upto=2)
                self.close_connection = True
                self.connection.close()
            case Hang(text):
                self._hang(Text(text), request)
            case Call() as call:
                self._say(api.find_tool(call, request), request)
            case answer:
                self._say(answer, request)
        return None

    def _say(self, answer: Answer, request: Request) -> None:
        dialect = self.server.api.dialect
        if not dialect.wants_stream(request):
            return self._send(200, dialect.whole(answer, request))
        self._begin()
        self._write(dialect.stream(answer, request))
        return self._end()

    def _hang(self, answer: Text, request: Request) -> None:
        """Begin, and wait."""
        api = self.server.api
        streams = api.dialect.wants_stream(request)
        if streams:
            self._begin()
            self._write(api.dialect.stream(answer, request), upto=2)
        self.connection.settimeout(0.05)
        until = time.monotonic() + PATIENCE_SECONDS
        while not api.release.is_set() and time.monotonic() < until:
            with suppress(TimeoutError):
                if not self.connection.recv(1):
                    raise ConnectionError
        self.connection.settimeout(None)
        if not streams:
            return self._send(200, api.dialect.whole(answer, request))
        self._write(api.dialect.stream(answer, request), after=2)
        return self._end()

    def _send(self, status: int, body: Body, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {}), "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _begin(self) -> None:
        self.send_response(200)
        for name, value in {"content-type": "text/event-stream", "transfer-encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, events: list[Event], *, upto: int | None = None, after: int = 0) -> None:
        for name, data in events[after:upto]:
            text = data if isinstance(data, str) else json.dumps(data)
            head = f"event: {name}\n" if name else ""
            content = f"{head}data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
            self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, api: ModelApi) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.api = api

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent may hang up at any time."""


@contextmanager
def serve(dialect: Dialect) -> Iterator[ModelApi]:
    api = ModelApi(dialect)
    server = Server(api)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
