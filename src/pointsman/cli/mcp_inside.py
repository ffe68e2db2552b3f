"""The tools of `pointsman mcp` inside a task: each call is a request to the worker of the attempt, over its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from pointsman.cli.mcp import Tool, describe_tool
from pointsman.errors import Problem, RequestInvalid
from pointsman.worker.attempt_socket import SOCKET, TOKEN
from pointsman.worker.inside_tools import TOOLS

INSTRUCTIONS = (
    "You work on one task of Pointsman, a workflow engine. Read the outputs of earlier tasks with read_upstream. Say now and "
    "then with report_progress what you are doing. If only a person can decide something, call ask, and end your work at once: "
    "you are started again with the answer. Split work that can be done apart with add_subtasks. When the work is done, call "
    "finish with its result."
)
READING = ("read_upstream",)
HARMLESS = ("ask", "report_progress", "report_cost", "finish")
"""Programs that plan refuse tools without a hint that they only read. Subtasks may run anything, so `add_subtasks` has none."""
MAX_REPLY_BYTES = 16 << 20
PATIENCE_SECONDS = 60.0


def list_tools(environ: Mapping[str, str]) -> dict[str, Tool]:
    if missing := [name for name in (SOCKET, TOKEN) if not environ.get(name)]:
        message = f"Inside a task, this command needs {' and '.join(missing)}. Pass them on from the environment of the task."
        raise RequestInvalid([Problem("", message)])
    calls = {name: partial(ask_worker, environ, name) for name in TOOLS}
    return {
        name: describe_tool(declared, calls[name], reads=name in READING, is_harmless=name in HARMLESS)
        for name, declared in TOOLS.items()
    }


async def ask_worker(environ: Mapping[str, str], tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the worker replies to one request."""
    request = msgspec.json.encode({"token": environ[TOKEN], "tool": tool, "arguments": arguments}) + b"\n"
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(environ[SOCKET], limit=MAX_REPLY_BYTES)
            try:
                writer.write(request)
                reply = await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        raise _unreachable(f"it did not reply within {PATIENCE_SECONDS:g} seconds") from None
    except (OSError, ValueError) as error:
        raise _unreachable(str(error)) from None
    if not reply:
        raise _unreachable("it closed the connection")
    answer = msgspec.json.decode(reply, type=dict[str, Any])
    if "error" in answer:
        raise RequestInvalid([Problem("", str(answer["error"]))])
    result = answer["result"]
    assert isinstance(result, dict)
    return result


def _unreachable(why: str) -> RequestInvalid:
    message = f"The worker of this attempt does not answer ({why}). It may have ended; then this attempt counts for nothing."
    return RequestInvalid([Problem("", message)])
