"""What requests consist of. Written from the declarations of the routes by `make docs`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct


class Backoff(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delay before a retry: `base_seconds`, multiplied by `factor` for each further one, plus up to `jitter`."""

    base_seconds: float = 1.0
    """The first delay."""
    factor: float = 2.0
    """How much longer each delay is than the one before."""
    max_seconds: float = 3600.0
    """The longest delay."""
    jitter: float = 0.1
    """A random share is added, so that tasks that failed together retry apart."""


class NewTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task to be done."""

    name: str
    """Unique in its run."""
    payload: Any = None
    """What the worker gets to see; any JSON up to a megabyte."""
    depends_on: Collection[str] = ()
    """Names of the tasks that must succeed before it begins."""
    parent: str | None = None
    """The name of the task that this is a subtask of."""
    tool: str | None = None
    """A declared tool, whose circuit breaker and limits apply."""
    capabilities: Collection[str] = ()
    """What its worker must be able to do."""
    priority: int = 0
    """Higher goes first."""
    gate: bool = False
    """It waits for an approval, and no worker claims it."""
    critical: bool = True
    """Its failure fails the run."""
    review: bool = False
    """A person accepts or rejects its result."""
    checks: bool = False
    """Its worker checks the result and reports that, too."""
    auxiliary: bool = False
    """It only serves other tasks: under no lifecycle does a person review its result."""
    max_retries: int | None = None
    """How often it is retried; by default, as its attempts allow."""
    max_attempts: int | None = None
    """How many attempts it gets in all; by default, as its lifecycle says."""
    max_reclaims: int = 3
    """How often it is taken up again after its worker was lost."""
    backoff: Backoff = Backoff()
    """How long it waits between retries."""
    retry_on_failure: bool = True
    """False: a failure is final."""
    expected_exit_codes: Sequence[int] = (0,)
    """The exit codes that mean success."""
    timeout_seconds: float | None = None
    """How long one attempt may take."""
    reclaim_after_seconds: float | None = None
    """An older attempt may be taken over, whatever its worker says."""
    approval_seconds: float | None = None
    """How long a gate waits for a person."""
    approvers: Collection[str] = ()
    """Who may decide a gate; anybody, if empty."""
    quorum: int = 1
    """How many different people have to approve a gate."""
    self_approval: bool = True
    """Whether the person who submitted the run may approve a gate."""
    on_expiry: Literal["approve", "reject", "cancel", "skip"] | None = None
    """What happens to a gate that nobody decides in time."""
    on_open_circuit: Literal["wait", "fail"] = "wait"
    """While the circuit of its tool is open."""
    budget_usd: Decimal | None = None
    """What it may spend, over all attempts."""


class RunFilter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which runs to list: those that fulfill every condition."""

    state: str | None = None
    """Only runs in this state."""
    phase: Literal["held", "queued", "active", "done"] | None = None
    """Only runs in this phase."""
    outcome: Literal["success", "failure", "canceled"] | None = None
    """Only runs that ended like this."""
    lifecycle: str | None = None
    """Only runs that follow this lifecycle."""
    name: str | None = None
    """Only runs of this name, which is that of their flow."""
    tag: str | None = None
    """Only runs with this tag."""
    text: str | None = None
    """Only runs with this text in their id, name, reason or error. Case matters."""
    created_after: datetime | None = None
    """Only runs that were created at this time or later."""
    created_before: datetime | None = None
    """Only runs that were created before this time."""
