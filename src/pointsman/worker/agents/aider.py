"""aider: plain text, with the message in a file. It has no sessions, and may exit with 0 after a failed request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pointsman.worker.agent import AgentCall, AgentEvent, BuiltIn, Finished, Invocation, Now, Said, Used, pick_usd

MODES = {"plan": ("--chat-mode=ask",), "edit": ("--no-suggest-shell-commands",), "full": ()}
FAILURE = re.compile(r"\blitellm\.\w*(?:Error|Exception)\b.*")
COST = re.compile(r"^Tokens: .*\bCost: \$(?P<message>[0-9.]+) message, \$[0-9.]+ session")
MESSAGE_SUFFIX = ".message"


class Aider(BuiltIn):
    name = "aider"
    program: tuple[str, ...] = ("aider",)
    install = "`python -m pip install aider-install && aider-install`"
    lacks = frozenset(("max_turns", "append_system_prompt", "mcp"))
    commits = True

    def invoke(self, call: AgentCall) -> Invocation:
        path = f"{call.stem}{MESSAGE_SUFFIX}"
        arguments = [f"--message-file={path}", "--yes-always", "--no-stream", "--no-pretty", *MODES[call.permissions]]
        if call.model is not None:
            arguments.append(f"--model={call.model}")
        message = call.message.encode("utf-8", "replace").decode()
        return Invocation(arguments=(*arguments, *call.arguments), files={path: message})

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
        if (cost := COST.match(text)) and (amount := pick_usd(cost["message"])) is not None:
            yield Used(cost_usd=amount)
        self._last = text if text.strip() else self._last
        yield Said(f"{text}\n", continues=True)

    def end(self, exit_code: int | None) -> Iterator[AgentEvent]:
        if exit_code is not None:
            yield Finished(self._last, self._failure)
