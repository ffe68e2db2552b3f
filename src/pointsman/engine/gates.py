"""Gates: who may decide them, how many have to agree, and what follows when nobody decides in time.

The metadata of the last move of an open gate has who approved it so far and since when it is open, so a decision needs nothing
but the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from pointsman.engine.policy import read_policy
from pointsman.errors import NotAllowed
from pointsman.kernel.machine import Machine
from pointsman.store.rows import Run, Task

GATE_SIGNALS = ("approve", "reject", "skip")
"""Signals that decide a gate. Skipping one passes it, too."""
PASSING = ("approve", "skip")
"""Those of them that pass it."""
ON_EXPIRY = ("expire", "reject", "cancel")
"""What a gate gets that nobody has decided in time, unless it says so itself: the first of these that its machine takes."""

EXPIRED = "nobody decided in time"
"""The reason for what a gate gets then."""


class Approvals(Struct, frozen=True):
    """Who has approved a gate, and since when it is open."""

    approved_by: tuple[str, ...]
    opened_at: datetime


def read_approvals(task: Task) -> Approvals:
    """The approvals of an open gate so far."""
    try:
        return msgspec.json.decode(task.metadata or "null", type=Approvals)
    except msgspec.MsgspecError:
        return Approvals((), task.entered_at)


def expires_at(task: Task) -> datetime | None:
    """When an open gate is no longer to be decided."""
    seconds = read_policy(task.policy).approval_seconds
    return None if seconds is None else read_approvals(task).opened_at + timedelta(seconds=seconds)


def check_decider(task: Task, run: Run, signal: str, actor: str) -> None:
    """Refuse a decision about a gate by a person whom it does not name, or who submitted the run and may not approve it."""
    if not task.is_gate or signal not in GATE_SIGNALS:
        return
    approvers = read_policy(task.policy).approvers
    if approvers and actor not in approvers:
        others = [each for each in approvers if each != find_excluded(task, run)]
        raise NotAllowed(f"{actor} may not decide about {task.name}. It is up to {' or '.join(others)}.")
    if signal in PASSING and actor == find_excluded(task, run):
        raise NotAllowed(f"{actor} submitted {run.name} and may not approve {task.name}. It is up to somebody else.")


def find_excluded(task: Task, run: Run) -> str | None:
    """The person who may not pass a gate because the run is theirs."""
    return None if read_policy(task.policy).self_approval else read_policy(run.policy).submitter


def completes_quorum(task: Task, actor: str) -> bool:
    """Whether a gate is passed when this person approves it as well."""
    return len({*read_approvals(task).approved_by, actor}) >= read_policy(task.policy).quorum


def add_approval(task: Task, actor: str) -> Approvals:
    """The approvals of an open gate, with one more."""
    approvals = read_approvals(task)
    return Approvals((*approvals.approved_by, actor), approvals.opened_at)


def find_misfits(machine: Machine, quorum: int, on_expiry: str | None) -> Iterator[tuple[str, str]]:
    """Why a machine cannot keep what a gate asks for: (what, message)."""
    gates = [state.name for state in machine.states if machine.moves(state.name, "approve")]
    if not any(guard.name == "is_gate" for move in machine.transitions for guard in move.guards):
        yield "gate", f"{machine.name} has no gates: it could never be approved. Choose the lifecycle standard or approval."
    elif quorum > 1 and not any(guard.name == "quorum_reached" for move in machine.transitions for guard in move.guards):
        yield (
            "quorum",
            f"`quorum` has no effect: {machine.name} passes a gate with its first approval. Choose the lifecycle standard.",
        )
    elif on_expiry and not any(machine.moves(state, on_expiry) for state in gates):
        yield "on_expiry", f"A gate of {machine.name} does not take `{on_expiry}`. Choose another, or the lifecycle standard."
