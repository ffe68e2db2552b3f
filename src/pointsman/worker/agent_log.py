"""The logs of coding agents: whose stream a log is, and what people and the next attempt can tell from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pointsman.settings import AgentProfile
from pointsman.worker.agent import Agent, AgentEvent, AgentReader, Finished, Said, ToolCalled, ToolReturned
from pointsman.worker.agents.aider import Aider
from pointsman.worker.agents.claude import Claude
from pointsman.worker.agents.codex import Codex
from pointsman.worker.agents.custom import Custom
from pointsman.worker.agents.gemini import Gemini
from pointsman.worker.agents.opencode import OpenCode
from pointsman.worker.log import name_part
from pointsman.worker.runner import OUTPUT_BYTES, read_file
from pointsman.worker.transcript import TranscriptReader

ANY_TIME = datetime.fromtimestamp(0, UTC)
"""No line of a transcript depends on the time. It is far from both ends of what a datetime can be, for sums with it."""
BUILT_IN: Mapping[str, Callable[[], Agent]] = {
    "claude": Claude,
    "codex": Codex,
    "gemini": Gemini,
    "opencode": OpenCode,
    "aider": Aider,
}


def find_built_in(name: str) -> Agent | None:
    """An agent that Pointsman knows by itself."""
    made = BUILT_IN.get(name)
    return made() if made else None


def find_agent(name: str, profile: AgentProfile | None) -> Agent | None:
    """The agent of a task; one of the settings has a name of its own."""
    return Custom(profile) if profile else find_built_in(name)


def find_reader(log: Path, profiles: Mapping[str, AgentProfile]) -> AgentReader | None:
    """What reads the log of an attempt; None unless it is the stream of a known agent."""
    content, _ = read_file(name_part(log, "agent"))
    name = (content or b"").decode("utf-8", "replace")
    agent = find_agent(name, profiles.get(name))
    return agent.reader(lambda: ANY_TIME) if agent else None


def read_transcript(log: Path, profiles: Mapping[str, AgentProfile]) -> TranscriptReader | None:
    """What makes the log of an attempt readable; None unless it is the stream of a known agent."""
    reader = find_reader(log, profiles)
    return TranscriptReader(reader) if reader else None


def has_heard(log: Path, reader: AgentReader) -> bool | None:
    """Whether an agent has heard what it was told: it has said or done something. None if its program has written nothing.

    Programs print warnings, and the id of their session, before they have stored what they were told; and some forget it if
    the first request for it fails.
    """
    content, _ = read_file(log)
    if content is None or len(content) > OUTPUT_BYTES:
        return None if content is None else True
    return any(_answers(event) for line in content.splitlines() for event in reader.read(line))


def _answers(event: AgentEvent) -> bool:
    return isinstance(event, Said | ToolCalled | ToolReturned) or (isinstance(event, Finished) and event.error is None)
