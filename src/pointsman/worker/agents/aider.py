"""aider: plain text, with the message in a file. It has no sessions, and may exit with 0 after a failed request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pointsman.worker.agent import AgentCall, AgentEvent, BuiltIn, Finished, Invocation, Now, Said, Used, pick_usd

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
FAILURE = re.compile(r"\blitellm\.\w*(?:Error|Exception)\b.*")
TOKENS = re.compile(r"^Tokens: (?P<sent>[0-9.]+[kM]?) sent,.*?(?P<received>[0-9.]+[kM]?) received")
COST = re.compile(r"\bCost: \$(?P<message>[0-9.]+) message, \$[0-9.]+ session")
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
        return Invocation(
            arguments=(*arguments, *call.arguments),
            files={path: message},
            commits=call.permissions != "plan" and not set(call.arguments) & set(WITHOUT_COMMITS),
        )

    def reader(self, now: Now) -> AiderReader:  # noqa: ARG002 - it names no times
        return AiderReader()


class AiderReader:
    def __init__(self) -> None:
        self._failure: str | None = None
        self._last = ""

    def read(self, line: bytes) -> Iterator[AgentEvent]:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if found := FAILURE.search(text):
            self._failure = found[0]
        tokens, cost = TOKENS.match(text), COST.search(text)
        if tokens or (cost and text.startswith(("Tokens: ", "Cost: "))):
            sent, received = (_count(tokens["sent"]), _count(tokens["received"])) if tokens else (0, 0)
            yield Used(sent, received, pick_usd([cost["message"]], 0) if cost else None)
        self._last = text if text.strip() else self._last
        yield Said(f"{text}\n", continues=True)

    def end(self, exit_code: int | None) -> Iterator[AgentEvent]:
        if exit_code is not None:
            yield Finished(self._last, self._failure)


def _count(text: str) -> int:
    """`1.2k` tokens."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1] in UNITS else (text, 1)
    try:
        return round(float(number) * unit)
    except ValueError:
        return 0
