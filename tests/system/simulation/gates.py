"""Gates: each is decided once, by people whom it names, when enough of them agree or when its time is over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.system.simulation.elapsed import SLACK, TOLERANCE_SECONDS
from tests.system.simulation.process import Time
from tests.system.simulation.promises import PERSONS, Move, Promises, keep

ONCE = "a gate is decided once"
EXPIRES = "a gate expires in its time"
COUNTED = "every approval counts once"
NAMED = "only the named people decide a gate"
DECIDING = ("approve", "reject", "skip")
EXPIRED = "nobody decided in time"


@dataclass(slots=True)
class Gate:
    opened_after: float
    opened_before: float
    approved_by: set[str] = field(default_factory=set)
    is_decided: bool = False


class Gates:
    def __init__(self, promises: Promises, time: Time) -> None:
        self._promises = promises
        self._time = time
        self._gates: dict[str, Gate] = {}

    def has_approved(self, task_id: str, person: str) -> bool:
        return person in self._gates[task_id].approved_by

    def lists_open(self, run_id: str) -> list[str]:
        return [task.id for task in self._promises.tasks_of(run_id) if task.is_gate and self._is_open(task, task.state)]

    def follow(self, task: Any, state: str | None, moves: Sequence[Move], began_at: float) -> None:
        """Follow the moves that a gate made in a commit which began at this instant."""
        for move in moves:
            if state is not None and self._is_open(task, state):
                self._follow_decision(task, self._gates[task.id], move)
            elif self._is_open(task, move.to_state):
                keep(ONCE, task.id not in self._gates, f"{task.id} opens again")
                self._gates[task.id] = Gate(began_at, self._time.seconds)
            state = move.to_state

    def check_overdue(self, fired_at: float) -> None:
        """Timers were fired at this instant: no gate is open for longer than it says."""
        for task_id, gate in self._gates.items():
            limit = read_policy(self._promises.tasks[task_id].policy).get("approval_seconds")
            if limit is not None and not gate.is_decided:
                elapsed = fired_at - gate.opened_before
                in_time = elapsed <= limit * (1 + SLACK) + TOLERANCE_SECONDS
                keep(EXPIRES, in_time, f"{task_id} has {limit:g} seconds, and is open after {elapsed:.3f}")

    def _is_open(self, task: Any, state: str) -> bool:
        return self._promises.takes(self._promises.machine_of(task), state, "approve")

    def _follow_decision(self, task: Any, gate: Gate, move: Move) -> None:
        policy = read_policy(task.policy)
        stays_open = self._is_open(task, move.to_state)
        if (move.reason or "").startswith(EXPIRED):
            self._check_expiry(task, gate, move, policy)
        else:
            self._check_person(task, gate, move, policy, stays_open=stays_open)
        if not stays_open:
            keep(ONCE, not gate.is_decided, f"{task.id} is decided again: {move}")
            gate.is_decided = True

    def _check_expiry(self, task: Any, gate: Gate, move: Move, policy: dict[str, Any]) -> None:
        limit, elapsed = policy["approval_seconds"], self._time.seconds - gate.opened_after
        too_soon = elapsed < limit * (1 - SLACK) - TOLERANCE_SECONDS
        keep(EXPIRES, not too_soon, f"{task.id} has {limit:g} seconds, and expires after {elapsed:.3f}")
        fails = self._promises.takes(self._promises.machine_of(task), "WAITING_APPROVAL", "reject")
        wanted = policy.get("on_expiry") or ("reject" if fails else "cancel")
        keep(EXPIRES, move.trigger == wanted, f"{task.id} gets {move.trigger} instead of {wanted}")

    def _check_person(self, task: Any, gate: Gate, move: Move, policy: dict[str, Any], *, stays_open: bool) -> None:
        named = policy.get("approvers") or PERSONS
        may_decide = move.trigger not in DECIDING or move.actor is None or move.actor in named
        keep(NAMED, may_decide, f"{move.actor} decides {task.id}, which names {named}: {move}")
        if move.trigger != "approve":
            keep(COUNTED, not stays_open, f"{task.id} is still open: {move}")
            return
        keep(COUNTED, move.actor not in gate.approved_by, f"{move.actor} has approved {task.id} before")
        gate.approved_by.add(str(move.actor))
        enough = len(gate.approved_by) >= policy.get("quorum", 1)
        text = f"{sorted(gate.approved_by)} have approved {task.id}, which asks for {policy.get('quorum', 1)}: {move}"
        keep(COUNTED, enough != stays_open, text)


@cache
def read_policy(text: str) -> dict[str, Any]:
    policy: dict[str, Any] = json.loads(text)
    return policy
