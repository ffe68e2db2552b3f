"""The policy of a task or a run, as it was submitted: what the database does not enforce itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from pointsman.engine.checks import MAX_SECONDS
from pointsman.engine.fields import number
from pointsman.world import Chance

WORKSPACE = "workspace="


class Backoff(Struct, frozen=True, omit_defaults=True):
    """The delay before a retry: `base_seconds`, multiplied by `factor` for each further one, plus up to `jitter`."""

    base_seconds: Annotated[float, number(0, MAX_SECONDS), "The first delay."] = 1.0
    factor: Annotated[float, number(1, 1000), "How much longer each delay is than the one before."] = 2.0
    max_seconds: Annotated[float, number(0, MAX_SECONDS), "The longest delay."] = 3600.0
    jitter: Annotated[float, number(0, 10), "A random share is added, so that tasks that failed together retry apart."] = 0.1

    def delay(self, exponent: int, chance: Chance) -> timedelta:
        # The exponent is limited so that no number of retries overflows.
        seconds = min(self.base_seconds * self.factor ** min(exponent, 64), self.max_seconds)
        return timedelta(seconds=seconds * (1 + chance.uniform(0, self.jitter)))


class Policy(Struct, frozen=True, omit_defaults=True):
    backoff: Backoff = Backoff()
    timeout_seconds: float | None = None
    """A task: how long one attempt may take. A run: how long all of it may take."""
    reclaim_after_seconds: float | None = None
    """A task: an attempt older than this may be reclaimed, whatever its worker reports."""
    approval_seconds: float | None = None
    """A gate: how long it waits for a person."""
    approvers: tuple[str, ...] = ()
    """A gate: who may decide; anybody, if empty."""
    quorum: int = 1
    """A gate: how many different people have to approve."""
    self_approval: bool = True
    """A gate: whether the submitter of its run may approve it."""
    on_expiry: str | None = None
    """A gate: the signal that it gets when nobody has decided in time."""
    retry_on_failure: bool = True
    expected_exit_codes: tuple[int, ...] = (0,)
    """A task: the exit codes that mean success."""
    on_open_circuit: Literal["wait", "fail"] = "wait"
    auxiliary: bool = False
    """A task: it only serves others, and nobody reviews its result."""
    capabilities: tuple[str, ...] = ()
    """A run with workers of its own: the capabilities that each of them needs."""
    autostart: bool = True
    """A run: its tasks become ready on their own."""
    submitter: str | None = None
    """A run: who submitted it."""
    traceparent: str | None = None
    """A run: the span that submitted it."""

    @property
    def limits(self) -> list[tuple[str, float]]:
        """How long an attempt may take, by the purpose of the timer."""
        both = (("timeout", self.timeout_seconds), ("reclaim", self.reclaim_after_seconds))
        return [(purpose, seconds) for purpose, seconds in both if seconds is not None]


def name_workspace(workspace_id: str) -> str:
    """The capability that the workers of a workspace have, and no others."""
    return f"{WORKSPACE}{workspace_id}"


def find_workspace(capabilities: Iterable[str]) -> str | None:
    """The workspace among capabilities; `name_workspace` backwards."""
    return next((each.removeprefix(WORKSPACE) for each in capabilities if each.startswith(WORKSPACE)), None)


@lru_cache(maxsize=4096)
def read_policy(text: str) -> Policy:
    return msgspec.json.decode(text, type=Policy)


def write_policy(policy: Policy) -> str:
    return msgspec.json.encode(policy).decode()
