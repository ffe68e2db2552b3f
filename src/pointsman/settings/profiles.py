"""The settings as values: of a project, its tools, agents and notifications."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal, get_args

from pointsman.artifacts import ArtifactLimits
from pointsman.prices import Price

FOLDER = ".pointsman"
"""Where Pointsman keeps the database, logs and worker records of a project."""
OnPause = Literal["finish", "suspend"]
Event = Literal["person_needed", "run_ended", "run_failed", "breaker_opened"]
EVENTS: tuple[str, ...] = get_args(Event)
MOST_TRIES = 12
LONGEST_DELIVERY_SECONDS = 60.0
AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
"""The agents that Pointsman knows by itself."""


@dataclass(frozen=True, slots=True)
class ToolProfile:
    """A program that tasks use, with its limits and its breaker."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its first arguments; those of the task follow."""
    expected_exit_codes: tuple[int, ...] = (0,)
    retry_on_failure: bool = True
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown_seconds: float = 60.0
    max_concurrent: int | None = None
    rate_count: int | None = None
    rate_seconds: float | None = None
    """At most `rate_count` attempts start within this time."""
    env: dict[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    """Variables of the worker that its tasks inherit, beside those that all tasks do."""


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """The command line of a coding agent that Pointsman does not know by itself.

    Where something is found in a line: `TYPE: path.to.value` in JSON objects of that `type`, `path.to.value` in any object.
    """

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; `{prompt_file}` and `{folder}` stand for paths."""
    prompt: Literal["stdin", "file"] = "stdin"
    model: tuple[str, ...] = ()
    """The arguments that select `{model}`."""
    resume: tuple[str, ...] = ()
    """The arguments that continue `{session}`."""
    plan: tuple[str, ...] = ()
    """The arguments for `permissions: plan`; likewise `edit` and `full`."""
    edit: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    install: str = ""
    session: str = ""
    text: str = ""
    tool: str = ""
    cost_usd: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    result: str = ""
    """The text of the last event. Without this, the exit code alone decides."""
    error: str = ""
    """What is there when it has failed: a text, or true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTarget:
    """Where a notification goes when something happens: to a command, or to a webhook."""

    name: str
    on: tuple[str, ...]
    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_env: str | None = None
    """The variable that has the URL, where the URL itself is a secret."""
    secret_env: str | None = None
    """The variable that has the secret for signatures."""
    timeout_seconds: float = 10.0
    """The longest time that one try may take."""
    tries: int = MOST_TRIES
    """How many tries there are before the notification is dead."""
    allow_private: bool = False
    """Whether the webhook may be at an address of this machine or of a private network."""
    pass_env: tuple[str, ...] = ()
    """Additional variables that the command inherits."""

    @property
    def method(self) -> str:
        return "command" if self.command else "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a project, and the origin of each (`origins`, by name)."""

    directory: Path
    """The folder of the project."""
    store: str
    """The URL of the database."""
    slots: int
    """How many tasks a worker runs at once."""
    server: str | None = None
    """The URL of a server that has the database, and is asked instead of it."""
    capabilities: tuple[str, ...] = ()
    workspace: str | None = None
    """The workspace that the worker belongs to."""
    lease_seconds: float = 30.0
    """A worker that sends no heartbeat for this long loses its tasks."""
    grace_seconds: float = 10.0
    """The delay between SIGTERM and SIGKILL."""
    log_bytes: int = 100_000_000
    """The largest log of an attempt."""
    artifact_files: int = 1_000
    """How many artifacts an attempt may have."""
    artifact_bytes: int = 1_000_000_000
    """How large the artifacts of an attempt may be together."""
    max_queue: int = 10_000
    """How many changes may wait for the database in one process."""
    pass_env: tuple[str, ...] = ()
    """Additional variables that tasks inherit."""
    on_pause: OnPause = "finish"
    max_memory_bytes: int | None = None
    """A worker that uses more, with all that it runs, gives its tasks back."""
    min_free_disk_bytes: int | None = None
    """A worker gives its tasks back while the disk of the project has less space left."""
    tools: dict[str, ToolProfile] = field(default_factory=dict)
    agents: dict[str, AgentProfile] = field(default_factory=dict)
    """The agents that the settings add."""
    notify: dict[str, NotifyTarget] = field(default_factory=dict)
    """By name: where notifications go."""
    prices: dict[str, Price] = field(default_factory=dict)
    """By model: what its tokens cost."""
    tenant_budgets: dict[str, Decimal | None] = field(default_factory=dict)
    """By tenant: what all its runs together may spend; None for no limit."""
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where the runs are: on a server, or in a database."""
        return self.server or self.store

    @property
    def artifact_limits(self) -> ArtifactLimits:
        return ArtifactLimits(self.artifact_files, self.artifact_bytes)

    @property
    def all_tools(self) -> dict[str, ToolProfile]:
        """The declared tools, and those of all agents: an agent is a tool of the same name."""
        return {name: ToolProfile(name) for name in (*AGENTS, *self.agents)} | self.tools
