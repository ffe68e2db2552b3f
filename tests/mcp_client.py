"""`pointsman mcp` in a process of its own, and the public client of the protocol that talks to it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, StdioServerParameters, stdio_client

PATIENCE_SECONDS = 120.0


class Client:
    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def list_tools(self) -> list[str]:
        return [tool.name for tool in (await self._session.list_tools()).tools]

    async def list_harmless(self) -> set[str]:
        """The tools that are offered as reading only, which agents can call while they plan."""
        found = (await self._session.list_tools()).tools
        return {tool.name for tool in found if tool.annotations and tool.annotations.read_only_hint}

    async def call(self, tool: str, **arguments: Any) -> Any:
        """What a tool returns."""
        text, is_error = await self._call(tool, arguments)
        assert not is_error, text
        return json.loads(text)

    async def be_refused(self, tool: str, **arguments: Any) -> str:
        """Why a tool does nothing."""
        text, is_error = await self._call(tool, arguments)
        assert is_error, text
        return text

    async def _call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        result = await self._session.call_tool(tool, arguments)
        return str(getattr(result.content[0], "text", "")), bool(result.is_error)


@asynccontextmanager
async def open_client(*options: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    """The server gets `env` and the few variables that the client passes to every server."""
    command = ["-P", "-m", "pointsman", "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(env or {}))
    async with asyncio.timeout(PATIENCE_SECONDS), stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield Client(session)
