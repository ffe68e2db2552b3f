"""Codex: `codex exec --json`, with the message on stdin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pointsman.worker.agent import (
    AgentCall,
    AgentEvent,
    BuiltIn,
    Finished,
    Invocation,
    JsonReader,
    Noted,
    Now,
    Said,
    SessionSeen,
    ToolCalled,
    ToolReturned,
    UsageLimit,
    Used,
    pick,
    pick_count,
    pick_dicts,
    pick_text,
)
from pointsman.worker.usage_limit import find_reset

SANDBOXES = {"plan": "read-only", "edit": "workspace-write", "full": "danger-full-access"}
LIMIT = "hit your usage limit"
NOT_BARE = re.compile(r"[^A-Za-z0-9_-]")
"""What names of servers may not have: codex takes quotes for a part of the name."""


class Codex(BuiltIn):
    name = "codex"
    program: tuple[str, ...] = ("codex",)
    install = "`npm install -g @openai/codex`"
    lacks = frozenset(("max_turns", "append_system_prompt"))

    def invoke(self, call: AgentCall) -> Invocation:
        arguments = ["exec", "--json", f"--cd={call.cwd}", f"--sandbox={SANDBOXES[call.permissions]}", "--skip-git-repo-check"]
        if call.folder and call.permissions == "edit":
            arguments.append(f"--add-dir={call.folder}")
        if call.model is not None:
            arguments.append(f"--model={call.model}")
        for name, server in call.servers.items():
            arguments += _configure(name, server)
        arguments += call.arguments
        arguments += ["resume", call.session_id, "-"] if call.session_id is not None else ["-"]
        return Invocation(arguments=tuple(arguments), stdin=call.message.encode("utf-8", "replace"))

    def reader(self, now: Now) -> CodexReader:
        return CodexReader(now)


def _configure(name: str, server: Any) -> Iterator[str]:
    """A server as overrides of the configuration, with tools that it may call: nobody is there to be asked for each call.

    The variables of our own are named, not given: arguments are visible to all users. Without `required`, codex begins before
    the server has started, and without its tools.
    """
    values = {"default_tools_approval_mode": "approve", **{key: value for key, value in server.items() if key != "env"}}
    if name == "pointsman":
        values["required"] = True
        values["env_vars"] = list(pick(server, "env") or ())  # type: ignore[call-overload]  # the runner has made it
    elif isinstance(env := server.get("env"), dict):
        values["env"] = {str(key): str(value) for key, value in env.items()}
    path = f"mcp_servers.{NOT_BARE.sub('_', name)}"
    for key, value in values.items():
        yield f"--config={path}.{key}={_as_toml(value)}"


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_as_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


class CodexReader(JsonReader):
    def __init__(self, now: Now) -> None:
        super().__init__(now)
        self._text = ""
        self._error = ""

    def take(self, value: dict[str, Any]) -> Iterable[AgentEvent]:
        match value.get("type"):
            case "thread.started" if session_id := pick_text(value, "thread_id"):
                return [SessionSeen(session_id)]
            case "item.started":
                return self._start_item(value.get("item"))
            case "item.completed":
                return self._take_item(value.get("item"))
            case "turn.completed":
                usage = value.get("usage")
                cached = pick_count(usage, "cached_input_tokens")
                used = Used(
                    pick_count(usage, "input_tokens"),
                    pick_count(usage, "output_tokens"),
                    cached_tokens_in=cached,
                    is_total=True,
                    of_session=True,
                )
                return [used, Finished(self._text)]
            case "turn.failed":
                return [self._fail(pick_text(value, "error", "message") or self._error)]
            case "error":  # also says that a request is repeated: only `turn.failed` is the end
                self._error = pick_text(value, "message")
                return [Noted(self._error)]
        return ()

    def _fail(self, message: str) -> Finished:
        limit = UsageLimit(find_reset(message, self.now()), message) if LIMIT in message else None
        return Finished(self._text, message or "the turn failed without a reason", limit)

    def _start_item(self, item: object) -> Iterator[AgentEvent]:
        match pick(item, "type"):
            case "command_execution":
                yield ToolCalled("shell", pick_text(item, "command"))
            case "mcp_tool_call":
                yield ToolCalled(f"{pick_text(item, 'server')}.{pick_text(item, 'tool')}")
            case "web_search":
                yield ToolCalled("web_search", pick_text(item, "query"))

    def _take_item(self, item: object) -> Iterator[AgentEvent]:
        match pick(item, "type"):
            case "agent_message":
                self._text = pick_text(item, "text")
                yield Said(self._text)
            case "command_execution":
                yield ToolReturned(pick_text(item, "aggregated_output"), is_error=pick(item, "exit_code") not in (0, None))
            case "file_change":
                paths = [pick_text(change, "path") for change in pick_dicts(item, "changes")]
                yield ToolCalled("edit", ", ".join(paths))
            case "mcp_tool_call":
                yield ToolReturned(error := pick_text(item, "error", "message"), is_error=bool(error))
            case "error":
                yield Noted(pick_text(item, "message"))
