"""The contract of agents: what differs between the command lines of coding agents.

    AgentCall ─ invoke ─▶ Invocation ─ the process ─▶ lines ─ read ─▶ AgentEvent … ─ conclude ─▶ Ending

`pointsman.worker.agents` has one file for each. A line becomes events; unknown lines become none, and stay in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct, field

from pointsman.engine.checks import MAX_TOKENS, MAX_USD, SMALLEST_USD

Permissions = Literal["plan", "edit", "full"]
Now = Callable[[], datetime]


class SessionSeen(Struct, frozen=True):
    """The session that a later call can continue, and its model if the agent names it."""

    session_id: str
    model: str | None = None


class Said(Struct, frozen=True):
    """Text of the agent; `continues`: it follows the text before without a line break."""

    text: str
    continues: bool = False


class ToolCalled(Struct, frozen=True):
    name: str
    argument: str = ""


class ToolReturned(Struct, frozen=True):
    text: str
    is_error: bool = False


class Used(Struct, frozen=True):
    """Tokens and costs. Figures with a `key` replace those that had the same key, until a total follows; others add up."""

    tokens_in: int = 0
    """All of them, from a cache or not."""
    tokens_out: int = 0
    cost_usd: Decimal | None = None
    model: str | None = None
    key: str | None = None
    cached_tokens_in: int = 0
    """Those of `tokens_in` that came from a cache."""
    is_total: bool = False
    """The figures of the whole call: they replace all before."""
    of_session: bool = False
    """They may include what earlier calls have used in the same session."""


class Noted(Struct, frozen=True):
    """Something that people should see, and that decides nothing: a retry, a warning."""

    text: str


class UsageLimit(Struct, frozen=True):
    """The account has reached its usage limit; None: the reset time is unknown."""

    until: datetime | None
    message: str


class Finished(Struct, frozen=True):
    """The terminal event: what the agent says about its own success."""

    text: str = ""
    error: str | None = None
    """Why it failed; None for success."""
    limit: UsageLimit | None = None
    is_overspent: bool = False
    """It has stopped itself at the budget that it was given."""
    retryable: bool = True


AgentEvent = SessionSeen | Said | ToolCalled | ToolReturned | Used | Noted | Finished


class AgentCall(Struct, frozen=True, kw_only=True):
    """What an attempt asks of its agent."""

    message: str
    stem: str
    """What the names of the files of the attempt begin with."""
    cwd: Path
    session_id: str | None = None
    """The session to continue."""
    model: str | None = None
    max_turns: int | None = None
    permissions: Permissions = "edit"
    append_system_prompt: str | None = None
    budget_usd: Decimal | None = None
    arguments: tuple[str, ...] = ()
    folder: str = ""
    """Where it may write files of the attempt: its question, its output."""
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The MCP servers: `command`, `args`, `env`, or `url` and what else the agent understands."""


class Invocation(Struct, frozen=True, kw_only=True):
    """How the program is called."""

    arguments: tuple[str, ...]
    stdin: bytes | None = None
    keeps_stdin: bool = False
    """Its stdin is closed after the terminal event; else right after the message."""
    files: Mapping[str, str] = field(default_factory=dict)
    """By path: files to write first, for this user only."""
    env: Mapping[str, str] = field(default_factory=dict)
    commits: bool = False
    """It succeeds only with a new commit, whatever else it says."""


class AgentReader(Protocol):
    """Reads the output of one process."""

    def read(self, line: bytes) -> Iterable[AgentEvent]:
        """The events of a line of stdout."""
        ...

    def end(self, exit_code: int | None) -> Iterable[AgentEvent]:
        """The events that only the end reveals; the exit code is None for a process that was killed."""
        ...


class Agent(Protocol):
    """The command line of one coding agent."""

    name: str
    program: tuple[str, ...]
    install: str
    """How to install it, as the end of a sentence; empty if unknown."""
    lacks: frozenset[str]
    """The keys of a task that it has no place for."""

    def invoke(self, call: AgentCall) -> Invocation: ...

    def reader(self, now: Now) -> AgentReader: ...


class JsonReader:
    """Reads JSON objects, one in each line, by their `type`; other lines are no events."""

    def __init__(self, now: Now) -> None:
        self.now = now

    def read(self, line: bytes) -> Iterable[AgentEvent]:
        value = decode(line)
        return () if value is None else self.take(value)

    def take(self, value: dict[str, Any]) -> Iterable[AgentEvent]:
        """The events of an object."""
        raise NotImplementedError

    def end(self, exit_code: int | None) -> Iterable[AgentEvent]:  # noqa: ARG002 - for readers to override
        return ()


class BuiltIn:
    """What agents have in common that come with Pointsman."""

    name: str
    program: tuple[str, ...]
    install: str = ""
    lacks: frozenset[str] = frozenset()


def decode(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def pick(value: object, *keys: str | int) -> object:
    """The value behind keys and indexes; None where the structure is another one."""
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def pick_text(value: object, *keys: str | int) -> str:
    found = pick(value, *keys)
    return found if isinstance(found, str) else ""


def pick_dicts(value: object, *keys: str | int) -> list[dict[str, Any]]:
    found = pick(value, *keys)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def pick_count(value: object, *keys: str | int) -> int:
    found = pick(value, *keys)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < MAX_TOKENS else 0


def pick_usd(value: object, *keys: str | int) -> Decimal | None:
    found = pick(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        amount = Decimal(str(found))
        is_amount = amount.is_finite() and 0 <= amount < MAX_USD
    except (InvalidOperation, ValueError):
        return None
    return amount.quantize(SMALLEST_USD) if is_amount else None


def show_argument(value: object, *names: str) -> str:
    """The most telling argument of a tool: the first of these names, or all as JSON."""
    telling = next((text for name in names if (text := pick_text(value, name))), None)
    if telling is not None:
        return telling
    return msgspec.json.encode(value).decode() if value else ""


def join_texts(blocks: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(text for block in blocks if (text := pick_text(block, "text")))
