"""Gemini CLI: `gemini --output-format=stream-json`, with the message on stdin."""

from __future__ import annotations

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
    pick_text,
    show_argument,
)
from pointsman.worker.usage_limit import find_reset

MODES = {"plan": "plan", "edit": "auto_edit", "full": "yolo"}
QUOTA = ("quota", "rate limit", "RESOURCE_EXHAUSTED")
CODES = {
    41: "it is not logged in: authenticate, or pass GEMINI_API_KEY",
    42: "its input is invalid",
    44: "its sandbox failed",
    52: "its configuration is invalid",
    53: "it has used all its turns",
    54: "a tool failed",
    55: "the folder is not trusted",
    130: "it was cancelled",
}
TELLING = ("command", "file_path", "absolute_path", "path", "pattern", "query", "url")


class Gemini(BuiltIn):
    name = "gemini"
    program: tuple[str, ...] = ("gemini",)
    install = "`npm install -g @google/gemini-cli`"
    lacks = frozenset(("max_turns", "append_system_prompt", "mcp"))
    """It reads MCP servers from the settings of its user and of the folder, and from files of root; a call cannot add any."""

    def invoke(self, call: AgentCall) -> Invocation:
        arguments = ["--output-format=stream-json", f"--approval-mode={MODES[call.permissions]}", "--skip-trust"]
        if call.model is not None:
            arguments.append(f"--model={call.model}")
        if call.folder:
            arguments.append(f"--include-directories={call.folder}")
        if call.session_id is not None:
            arguments.append(f"--resume={call.session_id}")
        return Invocation(arguments=(*arguments, *call.arguments), stdin=call.message.encode("utf-8", "replace"))

    def reader(self, now: Now) -> GeminiReader:
        return GeminiReader(now)


class GeminiReader(JsonReader):
    def __init__(self, now: Now) -> None:
        super().__init__(now)
        self._texts: list[str] = []
        """The pieces of the current message."""
        self._has_finished = False

    def take(self, value: dict[str, Any]) -> Iterable[AgentEvent]:
        match value.get("type"):
            case "init" if session_id := pick_text(value, "session_id"):
                return [SessionSeen(session_id, pick_text(value, "model") or None)]
            case "message" if value.get("role") == "assistant":
                return [self._say(pick_text(value, "content"), continues=value.get("delta") is True)]
            case "tool_use":
                self._texts = []
                return [ToolCalled(pick_text(value, "tool_name"), show_argument(value.get("parameters"), *TELLING))]
            case "tool_result":
                output = pick_text(value, "output") or pick_text(value, "error", "message")
                return [ToolReturned(output, is_error=value.get("status") == "error")]
            case "error":
                return [Noted(pick_text(value, "message"))]
            case "result":
                return self._finish(value)
        return ()

    def end(self, exit_code: int | None) -> Iterator[AgentEvent]:
        if not self._has_finished and exit_code in CODES:
            yield Finished(error=CODES[exit_code], retryable=exit_code not in (41, 42, 52, 55))

    def _say(self, text: str, *, continues: bool) -> Said:
        self._texts = [*self._texts, text] if continues else [text]
        return Said(text, continues)

    def _finish(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        self._has_finished = True
        yield from _count(value.get("stats"))
        text = "".join(self._texts)
        if value.get("status") == "success":
            yield Finished(text)
            return
        message = pick_text(value, "error", "message") or "it reported an error without a reason"
        said = f"{pick_text(value, 'error', 'type')} {message}"
        is_limit = pick(value, "error", "code") == 429 or any(word.lower() in said.lower() for word in QUOTA)
        yield Finished(text, message, UsageLimit(find_reset(message, self.now()), message) if is_limit else None)


def _count(stats: object) -> Iterator[Used]:
    """The tokens of each model: by default it chooses one for each turn, and calls itself `auto`."""
    models = pick(stats, "models")
    for model, usage in models.items() if isinstance(models, dict) and models else [(None, stats)]:
        cached = pick_count(usage, "cached")
        yield Used(pick_count(usage, "input_tokens"), pick_count(usage, "output_tokens"), model=model, cached_tokens_in=cached)
