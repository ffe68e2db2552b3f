"""Claude Code: JSON lines in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
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
    join_texts,
    pick,
    pick_count,
    pick_dicts,
    pick_text,
    pick_usd,
    show_argument,
)
from pointsman.worker.usage_limit import find_reset, from_seconds

MODES = {"plan": "plan", "edit": "acceptEdits", "full": "bypassPermissions"}
TOO_MANY_REQUESTS = 429
OVERSPENT = "error_max_budget_usd"
TELLING = ("command", "file_path", "notebook_path", "pattern", "path", "url", "query", "description", "prompt")
"""The arguments of tools that say most, the best first."""
INPUT_TOKENS = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
MESSAGE_TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
WITHOUT_REASON = "it reported an error without a reason"
REASONS = {
    "": WITHOUT_REASON,
    "success": WITHOUT_REASON,
    "error_max_turns": "it has used all its turns (`max_turns`)",
    OVERSPENT: "it has spent the budget that it was given",
    "error_during_execution": "an error occurred",
    "error_max_structured_output_retries": "it did not produce valid structured output",
}


class Claude(BuiltIn):
    name = "claude"
    program: tuple[str, ...] = ("claude",)
    install = "`npm install -g @anthropic-ai/claude-code`"

    def invoke(self, call: AgentCall) -> Invocation:
        files: dict[str, str] = {}
        arguments = ["-p", "--output-format=stream-json", "--input-format=stream-json", "--verbose"]
        arguments.append(f"--permission-mode={MODES[call.permissions]}")
        # `=` throughout: a value that begins with a dash must not become a flag.
        if call.model is not None:
            arguments.append(f"--model={call.model}")
        if call.max_turns is not None:
            arguments.append(f"--max-turns={call.max_turns}")
        if call.budget_usd is not None:
            arguments.append(f"--max-budget-usd={call.budget_usd:f}")
        if call.append_system_prompt:
            files[path := f"{call.stem}.system.txt"] = call.append_system_prompt
            arguments.append(f"--append-system-prompt-file={path}")
        if call.folder:
            arguments.append(f"--add-dir={call.folder}")
        if call.servers:
            files[path := f"{call.stem}.mcp.json"] = json.dumps({"mcpServers": call.servers})
            arguments += [f"--mcp-config={path}", f"--allowedTools={','.join(f'mcp__{name}' for name in call.servers)}"]
        if call.session_id is not None:
            arguments.append(f"--resume={call.session_id}")
        message = {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": call.message}]}}
        return Invocation(
            arguments=(*arguments, *call.arguments),
            stdin=json.dumps(message).encode() + b"\n",
            keeps_stdin=True,
            files=files,
        )

    def reader(self, now: Now) -> ClaudeReader:
        return ClaudeReader(now)


class ClaudeReader(JsonReader):
    def __init__(self, now: Now) -> None:
        super().__init__(now)
        self._resets_at: datetime | None = None
        """When the last rejected request may be repeated."""
        self._is_rejected = False

    def take(self, value: dict[str, Any]) -> Iterable[AgentEvent]:
        match value.get("type"):
            case "system":
                return self._take_system(value)
            case "assistant":
                return self._take_assistant(value)
            case "user":
                return self._take_user(value)
            case "rate_limit_event":
                self._is_rejected = pick(value, "rate_limit_info", "status") == "rejected"
                self._resets_at = from_seconds(pick(value, "rate_limit_info", "resetsAt"), self.now())
            case "result":
                return self._take_result(value)
        return ()

    def _take_system(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        if value.get("subtype") == "init" and (session_id := pick_text(value, "session_id")):
            yield SessionSeen(session_id, pick_text(value, "model") or None)
        elif value.get("subtype") == "api_retry":
            yield Noted(f"API error, retry {pick_count(value, 'attempt')} in {pick_count(value, 'retry_delay_ms') / 1000:g}s")

    def _take_assistant(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        message = value.get("message")
        if (key := pick_text(message, "id")) and (usage := pick(message, "usage")):
            yield Used(
                sum(pick_count(usage, name) for name in MESSAGE_TOKENS),
                pick_count(usage, "output_tokens"),
                model=pick_text(message, "model") or None,
                key=key,
                cached_tokens_in=pick_count(usage, "cache_read_input_tokens"),
            )
        for block in pick_dicts(message, "content"):
            if block.get("type") == "text":
                yield Said(pick_text(block, "text"))
            elif block.get("type") == "tool_use":
                yield ToolCalled(pick_text(block, "name"), show_argument(block.get("input"), *TELLING))

    def _take_user(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        for block in pick_dicts(value, "message", "content"):
            if block.get("type") == "tool_result":
                text = pick_text(block, "content") or join_texts(pick_dicts(block, "content"))
                yield ToolReturned(text, is_error=block.get("is_error") is True)

    def _take_result(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        if session_id := pick_text(value, "session_id"):
            yield SessionSeen(session_id)
        yield self._count(value)
        yield self._finish(value)

    def _count(self, value: dict[str, Any]) -> Used:
        """`modelUsage` has every request of the call; `usage` lacks those that were repeated without streaming."""
        models = value.get("modelUsage")
        each = list(models.values()) if isinstance(models, dict) else []
        model = next(iter(models), None) if isinstance(models, dict) else None
        return Used(
            sum(pick_count(usage, name) for usage in each for name in INPUT_TOKENS),
            sum(pick_count(usage, "outputTokens") for usage in each),
            pick_usd(value, "total_cost_usd"),
            model,
            cached_tokens_in=sum(pick_count(usage, "cacheReadInputTokens") for usage in each),
            is_total=True,
            of_session=True,
        )

    def _finish(self, value: dict[str, Any]) -> Finished:
        text, subtype = pick_text(value, "result"), pick_text(value, "subtype")
        if subtype == "success" and value.get("is_error", False) is False:
            return Finished(text)
        errors = pick(value, "errors")
        said = [each for each in errors if isinstance(each, str)] if isinstance(errors, list) else []
        message = text or "; ".join(said) or REASONS.get(subtype, subtype)
        if value.get("api_error_status") == TOO_MANY_REQUESTS or self._is_rejected:
            until = self._resets_at or find_reset(message, self.now())
            return Finished(text, message, UsageLimit(until, message))
        retryable = subtype not in ("error_max_turns", OVERSPENT)
        return Finished(text, message, is_overspent=subtype == OVERSPENT, retryable=retryable)
