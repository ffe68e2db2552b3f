"""`pointsman mcp`: the tools of Pointsman for coding agents, by the Model Context Protocol, over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from pointsman import __version__
from pointsman.cli.project import Asked, person, project_options
from pointsman.errors import PointsmanError, Problem, RequestInvalid, suggest

if TYPE_CHECKING:
    from mcp import types

INSIDE = ("POINTSMAN_TOKEN", "POINTSMAN_SOCKET", "POINTSMAN_TASK_ID")
"""Only the processes of an attempt have these. One is enough: work without its token does not get the tools of a person."""
OLDEST = 2
"""The first major version of the package `mcp` that this works with."""

Call: TypeAlias = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Tool:
    """What an agent can call."""

    description: str
    schema: dict[str, Any]
    call: Call
    reads: bool = False
    """It changes nothing."""
    is_harmless: bool = False
    """It changes nothing but what people read of the task: an agent that may only read can call it, too."""


@click.command()
@click.option("--as", "actor", metavar="NAME", help="Who decides, for the history (default: the user of this system).")
@click.option("--read-only", is_flag=True, help="Offer only the tools that change nothing.")
@project_options
def command(*, actor: str | None, read_only: bool, asked: Asked) -> None:
    """Serve the Model Context Protocol on stdin and stdout, for a coding agent to start.

    Inside a task, the tools are those of the attempt: ask, add_subtasks, report_progress, report_cost, read_upstream, finish.

    Elsewhere, they are for your own agent, with your rights: list, inspect, logs, inbox, submit, decide.

    \b
    Examples:
      pointsman mcp
      pointsman mcp --read-only -C ~/projects/release
      pointsman mcp --as ada
    """
    require_package()
    if any(name in os.environ for name in INSIDE):
        from pointsman.cli import mcp_inside

        tools, instructions = mcp_inside.list_tools(os.environ), mcp_inside.INSTRUCTIONS
    else:
        from pointsman.cli import mcp_outside

        tools, instructions = mcp_outside.list_tools(asked, actor or person()), mcp_outside.INSTRUCTIONS
    serve({name: tool for name, tool in tools.items() if tool.reads or not read_only}, instructions)


def require_package() -> None:
    """The package is an optional one, and its first major version has another interface."""
    try:
        found = version("mcp")
    except PackageNotFoundError:
        found = ""
    if int(found.partition(".")[0] or 0) < OLDEST:
        has = f"found version {found}" if found else "which is not installed"
        message = f"This command needs the package `mcp`, version {OLDEST} or later ({has}): pip install 'pointsman[mcp]'"
        raise RequestInvalid([Problem("", message)])


def serve(tools: Mapping[str, Tool], instructions: str) -> None:
    """Serve until stdin ends."""
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    async def on_list_tools(_: object, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(name, tool) for name, tool in tools.items()])

    async def on_call_tool(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _call(tools, params.name, params.arguments or {})

    async def run() -> None:
        server: Server[Any] = Server(
            "pointsman", version=__version__, instructions=instructions, on_list_tools=on_list_tools, on_call_tool=on_call_tool
        )
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())

    asyncio.run(run())


def _describe(name: str, tool: Tool) -> types.Tool:
    from mcp import types

    hints = types.ToolAnnotations(read_only_hint=tool.reads or tool.is_harmless, open_world_hint=False)
    return types.Tool(name=name, description=tool.description, input_schema=tool.schema, annotations=hints)


async def _call(tools: Mapping[str, Tool], name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    """The result of a tool; whatever goes wrong is a result that the agent can read, too."""
    from mcp import types

    try:
        if name not in tools:
            raise RequestInvalid([Problem("", f"There is no tool '{name}'. {suggest(name, tools)}")])  # noqa: TRY301
        result = msgspec.to_builtins(await tools[name].call(arguments))
    except (PointsmanError, click.ClickException) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or 'The request'}: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - a traceback would help no agent
        return _refuse(f"This is a bug in Pointsman: {type(error).__name__}: {error}")
    text = msgspec.json.encode(result).decode()
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=result)


def _refuse(message: str) -> types.CallToolResult:
    from mcp import types

    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)


def describe_tool(declared: type[msgspec.Struct], call: Call, *, reads: bool = False, is_harmless: bool = False) -> Tool:
    """A tool whose schema and description are those of its declaration."""
    from pointsman.engine.fields import shape_of

    return Tool(join_lines(declared.__doc__ or ""), shape_of(declared).schema(), call, reads, is_harmless)


def join_lines(text: str) -> str:
    """A docstring as paragraphs."""
    paragraphs: Sequence[str] = text.strip().split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)
