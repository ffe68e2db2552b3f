"""Plays a coding agent in a task: a program that uses the tools of its attempt with the public client of the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import ClientSession, StdioServerParameters, stdio_client

NAMES = ("POINTSMAN_SOCKET", "POINTSMAN_TOKEN")


async def work() -> None:
    given = {name: os.environ[name] for name in NAMES}
    server = StdioServerParameters(command=sys.executable, args=["-P", "-m", "pointsman", "mcp"], env=given)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()

        async def call(tool: str, **arguments: Any) -> Any:
            result = await session.call_tool(tool, arguments)
            text = getattr(result.content[0], "text", "")
            return {"refused": text} if result.is_error else json.loads(text)

        seen: dict[str, Any] = {"tools": [tool.name for tool in (await session.list_tools()).tools]}
        seen["wrong"] = [
            await call("ask", text=" "),
            await call("ask", text="Where?", choices=["east"], default="west"),
            await call("add_subtasks", tasks=[{"name": "part", "runn": "true"}]),
            await call("add_subtasks", tasks=[{"name": "part", "run": "true", "needs": "nothing"}]),
            await call("report_cost", usd=-1),
            await call("read_upstream", task="hidden"),
            await call("finish", outputs=1),
        ]
        await call("report_progress", text="reading\x1b[2J\nwhat is there")
        seen["upstream"] = await call("read_upstream")
        await call("report_cost", usd=0.25)
        asked = await call("ask", text="Which colour?", choices=["red", "blue"])
        if "answer" not in asked:
            seen["second"] = await call("ask", text="Another one?")
            seen["finish"] = await call("finish", output="too early")
            sys.stdout.write(json.dumps(seen) + "\n")
            return
        seen["asked"] = asked
        await call("add_subtasks", tasks=[{"name": "one", "run": "echo one"}, {"name": "two", "run": "true", "needs": ["one"]}])
        seen["done"] = await call("finish", output={"colour": asked["answer"], "upstream": seen["upstream"]})
        seen["late"] = await call("ask", text="What else?")
        sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    asyncio.run(work())
