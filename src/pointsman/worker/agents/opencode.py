"""opencode: `opencode run --format json`, with the message on stdin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pointsman.worker.agent import (
    AgentCall,
    AgentEvent,
    BuiltIn,
    Finished,
    Invocation,
    JsonReader,
    Now,
    Said,
    SessionSeen,
    ToolCalled,
    ToolReturned,
    UsageLimit,
    Used,
    pick,
    pick_count,
    pick_text,
    pick_usd,
    show_argument,
)
from pointsman.worker.usage_limit import find_reset

MODES = {"plan": ("--agent=plan",), "edit": (), "full": ("--auto",)}
TELLING = ("command", "filePath", "pattern", "path", "url", "query")
STOP = "stop"
"""The reason of the last step. Another one follows after `tool-calls`, and after `unknown`: a stream that was cut."""
TRUNCATED = {"length": "its answer reached the limit of the model", "content-filter": "the model refused to answer"}


class OpenCode(BuiltIn):
    name = "opencode"
    program: tuple[str, ...] = ("opencode",)
    install = "`npm install -g opencode-ai`"
    lacks = frozenset(("max_turns", "append_system_prompt"))

    def invoke(self, call: AgentCall) -> Invocation:
        arguments = ["run", "--format=json", f"--dir={call.cwd}", *MODES[call.permissions]]
        files: dict[str, str] = {}
        env: dict[str, str] = {}
        if call.model is not None:
            arguments.append(f"--model={call.model}")
        if call.servers:
            env["OPENCODE_CONFIG"] = path = f"{call.stem}.opencode.json"
            files[path] = json.dumps({"mcp": {name: _as_server(server) for name, server in call.servers.items()}})
        if call.session_id is not None:
            arguments.append(f"--session={call.session_id}")
        return Invocation(
            arguments=(*arguments, *call.arguments), stdin=call.message.encode("utf-8", "replace"), files=files, env=env
        )

    def reader(self, now: Now) -> OpenCodeReader:
        return OpenCodeReader(now)


def _as_server(server: Any) -> dict[str, Any]:
    if "command" not in server:
        return {"type": "remote", "enabled": True, **server}
    command = [server["command"], *server.get("args", ())]
    return {"type": "local", "enabled": True, "command": command, "environment": server.get("env", {})}


class OpenCodeReader(JsonReader):
    def __init__(self, now: Now) -> None:
        super().__init__(now)
        self._text = ""

    def take(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        if session_id := pick_text(value, "sessionID"):
            yield SessionSeen(session_id)
        yield from self._take(value, value.get("part"))

    def _take(self, value: dict[str, Any], part: object) -> Iterable[AgentEvent]:
        match value.get("type"):
            case "text":
                self._text = pick_text(part, "text")
                return [Said(self._text)]
            case "tool_use":
                return self._take_tool(part)
            case "step_finish":
                return self._take_step(part)
            case "error":
                return [self._fail(value.get("error"))]
        return ()

    def _take_tool(self, part: object) -> Iterator[AgentEvent]:
        state = pick(part, "state")
        yield ToolCalled(pick_text(part, "tool"), show_argument(pick(state, "input"), *TELLING))
        is_error = pick(state, "status") == "error"
        yield ToolReturned(pick_text(state, "error" if is_error else "output"), is_error=is_error)

    def _take_step(self, part: object) -> Iterator[AgentEvent]:
        tokens = pick(part, "tokens")
        tokens_in = sum(pick_count(tokens, *keys) for keys in (("input",), ("cache", "read"), ("cache", "write")))
        tokens_out = pick_count(tokens, "output") + pick_count(tokens, "reasoning")
        cached = pick_count(tokens, "cache", "read")
        yield Used(tokens_in, tokens_out, pick_usd(part, "cost"), cached_tokens_in=cached)
        reason = pick(part, "reason")
        if reason == STOP:
            yield Finished(self._text)
        elif reason in TRUNCATED:
            yield Finished(self._text, TRUNCATED[str(reason)])

    def _fail(self, error: object) -> Finished:
        message = pick_text(error, "data", "message") or pick_text(error, "message") or pick_text(error, "name")
        is_limit = pick(error, "data", "statusCode") == 429
        limit = UsageLimit(find_reset(message, self.now()), message) if is_limit else None
        return Finished(self._text, message or "it reported an error without a reason", limit)
