"""A machine as the rows of the law: its states, and one rule for each declared move."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from pointsman.kernel.machine import Machine

WAITS = ("dependencies_met", "all_tasks_succeeded")
"""Guards that the database checks itself: of a task, that its dependencies have succeeded; of a run, that its tasks have."""


class StateRow(Struct, frozen=True):
    TABLE: ClassVar = "state"

    machine_id: int
    name: str
    phase: str
    outcome: str | None
    initial: bool
    kind: str


class RuleRow(Struct, frozen=True):
    TABLE: ClassVar = "rule"

    machine_id: int
    from_state: str
    to_state: str
    trigger: str
    severity: str
    to_phase: str
    to_outcome: str | None
    needs_worker: bool
    needs_session: bool
    needs_dependencies: bool


def state_rows(machine_id: int, machine: Machine) -> list[StateRow]:
    return [
        StateRow(
            machine_id, state.name, state.phase.value, state.outcome and state.outcome.value, state.initial, machine.kind.value
        )
        for state in machine.states
    ]


def rule_rows(machine_id: int, machine: Machine) -> list[RuleRow]:
    """One rule for each pair of states and trigger. If several moves share them, the rule requires what all of them require."""
    rules: dict[tuple[str, str, str], RuleRow] = {}
    for move in machine.transitions:
        target = machine.state(move.to_state)
        key = (move.from_state, move.to_state, move.trigger)
        waits = any(guard.name in WAITS and not guard.negated for guard in move.guards)
        rules[key] = RuleRow(
            machine_id,
            *key,
            severity=move.severity.value,
            to_phase=target.phase.value,
            to_outcome=target.outcome and target.outcome.value,
            needs_worker="worker" in target.needs,
            needs_session="session" in target.needs,
            needs_dependencies=waits and (key not in rules or rules[key].needs_dependencies),
        )
    return list(rules.values())
