"""The Unix socket by which running work reaches its worker: one for each worker process, one token for each attempt.

    $POINTSMAN_SOCKET   ◀── {"token": "…", "tool": "ask", "arguments": {"text": "Which region?"}}
                        ──▶ {"result": {…}}   or   {"error": "…"}

Requests and replies are lines of JSON. A token is good for the tools of its attempt (`worker/inside_tools.py`) while the
attempt holds its task, and for nothing else. The socket is created for the first attempt that starts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pointsman.errors import PointsmanError
from pointsman.worker.inside_tools import InsideTools
from pointsman.worker.runner import Job
from pointsman.worker.socket_folder import find_socket, remove_socket
from pointsman.world import Chance

MAX_REQUEST_BYTES: Final = 1 << 20
MAX_CONNECTIONS: Final = 32
"""When there are more, the one that has been waiting longest for a request is closed."""
MAX_DISCARDED_BYTES: Final = 64 << 20
"""How much of a request that is too large is read, so that its sender gets to see the reply."""
IDLE_SECONDS: Final = 60.0
"""How long a connection may wait for a request, or for its client to read a reply."""
SOCKET: Final = "POINTSMAN_SOCKET"
TOKEN: Final = "POINTSMAN_TOKEN"  # noqa: S105 - the name of a variable
UNKNOWN = "This token is not valid: its attempt has ended, or it is of another worker. Only a running attempt can use it."
FULL = "The worker has too many connections. Try again."
Refusal = Callable[[], str | None]
MakeTools = Callable[[Job, Refusal], InsideTools]

log = logging.getLogger(__name__)


class Request(Struct, frozen=True):
    token: str
    tool: str
    arguments: dict[str, Any] = {}


class AttemptSocket:
    """The socket of a worker, and the attempts that may use it."""

    def __init__(self, worker_id: str, chance: Chance, make_tools: MakeTools, notify: Callable[[str], None]) -> None:
        self._worker_id = worker_id
        self._chance = chance
        self._make_tools = make_tools
        self._notify = notify
        self._tools: dict[str, InsideTools] = {}
        """By token."""
        self._path: str | None = None
        self._is_unusable = False
        self._serving: asyncio.Task[asyncio.Server] | None = None
        self._connections: dict[asyncio.StreamWriter, bool] = {}
        """Whether each of them waits for its client, in the order in which they began to wait."""

    def admit(self, job: Job, refusal: Refusal) -> Job:
        """The job with a token of its own; where no socket can be made, the job as it is."""
        if self._path is None and not self._is_unusable:
            self._path = self._open()
        if self._path is None:
            return job
        token = f"{self._chance.getrandbits(128):032x}"
        job = replace(job, env={**job.env, SOCKET: self._path, TOKEN: token})
        self._tools[token] = self._make_tools(job, refusal)
        return job

    def dismiss(self, job: Job) -> None:
        """The work of the attempt has ended: its token is no longer good for anything."""
        self._tools.pop(job.env.get(TOKEN, ""), None)

    async def close(self) -> None:
        self._tools.clear()
        if self._serving:
            server = await self._serving
            server.close()
            for writer in self._connections:
                writer.transport.abort()
        if self._path:
            remove_socket(self._worker_id)

    def _open(self) -> str | None:
        """Listen at once; who connects before the server runs waits in the backlog."""
        path = find_socket(self._worker_id)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(mode=0o700)
            listening.bind(str(path))
            listening.listen(MAX_CONNECTIONS)
        except OSError as error:
            listening.close()
            self._is_unusable = True
            self._notify(f"Tasks cannot reach their worker: cannot listen on {path}: {error.strerror}. They run without it.")
            return None
        serving = asyncio.start_unix_server(self._serve, sock=listening, limit=MAX_REQUEST_BYTES)
        self._serving = asyncio.create_task(serving, name="attempt socket")
        return str(path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: requests are answered in their order."""
        if not self._make_room():
            writer.write(_error(FULL))
            writer.close()
            return
        try:
            while not writer.is_closing():
                self._mark(writer, waits=True)
                async with asyncio.timeout(IDLE_SECONDS):
                    line = await _read_line(reader)
                if not line:
                    break
                self._mark(writer, waits=False)
                writer.write(await self._answer(line))
                self._mark(writer, waits=True)
                async with asyncio.timeout(IDLE_SECONDS):
                    await writer.drain()
        except _TooLarge as error:
            writer.write(_error(str(error)))
        except (OSError, TimeoutError):
            pass
        finally:
            self._connections.pop(writer, None)
            writer.close()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest, if there are too many; whether there is room for another one."""
        if len(self._connections) < MAX_CONNECTIONS:
            return True
        idle = next((writer for writer, waits in self._connections.items() if waits), None)
        if idle is None:
            return False
        del self._connections[idle]
        idle.transport.abort()
        return True

    def _mark(self, writer: asyncio.StreamWriter, *, waits: bool) -> None:
        self._connections.pop(writer, None)
        self._connections[writer] = waits

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.MsgspecError as error:
            return _error(f'The request is invalid: {error}. Write a line {{"token": …, "tool": …, "arguments": {{…}}}}.')
        except UnicodeDecodeError:
            return _error("The request is not UTF-8.")
        tools = self._tools.get(request.token)
        if tools is None:
            return _error(UNKNOWN)
        try:
            result = await tools.call(request.tool, request.arguments)
        except PointsmanError as error:
            return _error(str(error))
        except Exception as error:
            log.exception("tool %s failed", request.tool)
            return _error(f"This is a bug in Pointsman: {type(error).__name__}: {error}")
        return msgspec.json.encode({"result": result}) + b"\n"


class _TooLarge(Exception):
    """A request has too many bytes."""


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """The next line; nothing at the end. One that is too large is read, up to a limit, and raised."""
    discarded = 0
    while discarded < MAX_DISCARDED_BYTES:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError as error:
            discarded += len(await reader.readexactly(error.consumed))
            continue
        if not discarded:
            return line
        break
    raise _TooLarge(f"The request is larger than {MAX_REQUEST_BYTES >> 20} MiB. Write large things to a file, and name it.")


def _error(message: str) -> bytes:
    return msgspec.json.encode({"error": message}) + b"\n"
