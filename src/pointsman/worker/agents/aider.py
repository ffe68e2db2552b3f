"""aider: plain text, with the message in a file. It has no sessions, and may exit with 0 after a failed request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pointsman.worker.agent import (
    AgentCall,
    AgentEvent,
    BuiltIn,
    Finished,
    Invocation,
    Now,
    Said,
    UsageLimit,
    Used,
    pick_usd,
)
from pointsman.worker.usage_limit import find_reset

MODES = {"plan": ("--chat-mode=ask",), "edit": ("--no-suggest-shell-commands",), "full": ()}
QUIET = (
    "--yes-always",
    "--no-stream",
    "--no-pretty",
    "--no-check-update",
    "--no-analytics",
    "--no-show-model-warnings",
    "--no-show-release-notes",
    "--no-gitignore",
    "--map-tokens=0",
)
"""Without questions and news, and without files in the work tree: the map of the repository would leave a cache there."""
WITHOUT_COMMITS = ("--no-git", "--no-auto-commits", "--dry-run")
LIMIT = "RateLimitError"
FAILURE = re.compile(r"\blitellm\.\w*(?:Error|Exception)\b.*")
RETRY = re.compile(r"Retrying in [0-9.]+ seconds")
TOKENS = re.compile(r"^Tokens: (?P<sent>[0-9.]+[kM]?) sent,.*?(?P<received>[0-9.]+[kM]?) received")
COST = re.compile(r"\bCost: \$(?P<message>[0-9.]+) message, \$[0-9.]+ session")
UNWRAPPED = "10000"
"""The width of its lines: it would break messages of errors after 80 characters."""
UNITS = {"k": 1_000, "M": 1_000_000}
MESSAGE_SUFFIX = ".message"


class Aider(BuiltIn):
    name = "aider"
    program: tuple[str, ...] = ("aider",)
    install = "`python -m pip install aider-install && aider-install`"
    lacks = frozenset(("max_turns", "append_system_prompt", "mcp"))

    def invoke(self, call: AgentCall) -> Invocation:
        path = f"{call.stem}{MESSAGE_SUFFIX}"
        arguments = [f"--message-file={path}", *QUIET, *MODES[call.permissions]]
        arguments += [f"--chat-history-file={call.stem}.chat.md", f"--input-history-file={call.stem}.input"]
        if call.model is not None:
            arguments.append(f"--model={call.model}")
        message = call.message.encode("utf-8", "replace").decode()
        has_repository = any((folder / ".git").exists() for folder in (call.cwd, *call.cwd.parents))
        if not has_repository:
            arguments.append("--no-git")  # else it would make a repository
        return Invocation(
            arguments=(*arguments, *call.arguments),
            files={path: message},
            env={"COLUMNS": UNWRAPPED},
            commits=has_repository and call.permissions != "plan" and not set(call.arguments) & set(WITHOUT_COMMITS),
        )

    def reader(self, now: Now) -> AiderReader:
        return AiderReader(now)


class AiderReader:
    def __init__(self, now: Now) -> None:
        self._now = now
        self._failure: str | None = None
        self._last = ""

    def read(self, line: bytes) -> Iterator[AgentEvent]:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if found := FAILURE.search(text):
            self._failure = found[0]
        elif RETRY.match(text):
            self._failure = None
        tokens, cost = TOKENS.match(text), COST.search(text)
        if tokens or (cost and text.startswith(("Tokens: ", "Cost: "))):
            self._failure = None  # the request has succeeded: what looked like a failure was its answer
            sent, received = (_count(tokens["sent"]), _count(tokens["received"])) if tokens else (0, 0)
            yield Used(sent, received, pick_usd([cost["message"]], 0) if cost else None)
        elif text.strip():
            self._last = text
        yield Said(f"{text}\n", continues=True)

    def end(self, exit_code: int | None) -> Iterator[AgentEvent]:
        if exit_code is not None:
            failure = self._failure or ""
            limit = UsageLimit(find_reset(failure, self._now()), failure) if LIMIT in failure else None
            yield Finished(self._last, self._failure, limit)


def _count(text: str) -> int:
    """`1.2k` tokens."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1] in UNITS else (text, 1)
    try:
        return round(float(number) * unit)
    except ValueError:
        return 0
