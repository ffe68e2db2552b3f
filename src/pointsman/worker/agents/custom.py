"""An agent that pointsman.toml defines: `[agents.NAME]` says how it is called, and where things are in its JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pointsman.settings import AgentProfile
from pointsman.worker.agent import (
    AgentCall,
    AgentEvent,
    Finished,
    Invocation,
    JsonReader,
    Noted,
    Now,
    Said,
    SessionSeen,
    ToolCalled,
    Used,
    decode,
    pick,
    pick_count,
    pick_text,
    pick_usd,
)

MESSAGE_SUFFIX = ".message"
PLACEHOLDER = re.compile(r"\{(prompt_file|folder|model|session)\}")


class Custom:
    lacks = frozenset(("max_turns", "append_system_prompt", "mcp"))

    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile
        self.name = profile.name
        self.program = profile.command[:1]
        self.install = profile.install and f"`{profile.install}`"

    def invoke(self, call: AgentCall) -> Invocation:
        profile, path = self._profile, f"{call.stem}{MESSAGE_SUFFIX}"
        values = {"prompt_file": path, "folder": call.folder, "model": call.model or "", "session": call.session_id or ""}
        words = [*profile.command[1:], *getattr(profile, call.permissions)]
        words += profile.model if call.model is not None else ()
        words += profile.resume if call.session_id is not None else ()
        arguments = [PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in words]
        message = call.message.encode("utf-8", "replace")
        on_stdin = profile.prompt == "stdin"
        return Invocation(
            arguments=(*arguments, *call.arguments),
            stdin=message if on_stdin else None,
            files={} if on_stdin else {path: message.decode()},
        )

    def reader(self, now: Now) -> CustomReader:
        return CustomReader(self._profile, now)


class CustomReader(JsonReader):
    def __init__(self, profile: AgentProfile, now: Now) -> None:
        super().__init__(now)
        self._profile = profile
        self._error = ""
        self._text = ""
        self._has_finished = False

    def read(self, line: bytes) -> Iterator[AgentEvent]:
        value = decode(line)
        if value is not None:
            yield from self.take(value)
        elif not self._profile.text:
            yield Said(f"{line.decode('utf-8', 'replace')}\n", continues=True)

    def take(self, value: dict[str, Any]) -> Iterator[AgentEvent]:
        profile = self._profile
        if isinstance(session_id := find(profile.session, value), str) and session_id:
            yield SessionSeen(session_id)
        if isinstance(text := find(profile.text, value), str) and text:
            self._text = text
            yield Said(text)
        if isinstance(tool := find(profile.tool, value), str) and tool:
            yield ToolCalled(tool)
        used = Used(
            pick_count([find(profile.tokens_in, value)], 0),
            pick_count([find(profile.tokens_out, value)], 0),
            pick_usd([find(profile.cost_usd, value)], 0),
        )
        if used != Used():
            yield used
        if error := find(profile.error, value):
            self._error = error if isinstance(error, str) else "it reported an error"
            yield Noted(self._error)
        if profile.result and (result := find(profile.result, value)) is not None:
            yield self._finish(result if isinstance(result, str) else self._text)

    def end(self, exit_code: int | None) -> Iterator[AgentEvent]:
        """Without a terminal event, the exit code alone decides; an error that was reported counts all the same."""
        if not self._has_finished and exit_code is not None and (self._error or not self._profile.result):
            yield self._finish(self._text)

    def _finish(self, text: str) -> Finished:
        self._has_finished = True
        return Finished(text, self._error or None)


def find(selector: str, value: dict[str, Any]) -> object:
    """What `TYPE: path.to.value` selects in an object; without a type, in any object."""
    if not selector:
        return None
    kind, colon, path = selector.rpartition(":")
    if colon and pick_text(value, "type") != kind.strip():
        return None
    keys = [int(key) if key.isdecimal() else key for key in path.strip().split(".")]
    return pick(value, *keys)
