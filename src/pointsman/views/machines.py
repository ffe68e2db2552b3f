"""Machines: their states and transitions, as programs read them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pointsman.kernel.machine import Machine


class StateView(Struct, frozen=True, kw_only=True):
    """A state."""

    name: str
    phase: str
    outcome: str | None
    initial: bool
    terminal: bool
    sealed: bool
    needs: tuple[str, ...]
    longest_stay_seconds: float | None


class TransitionView(Struct, frozen=True, kw_only=True, rename={"from_state": "from", "to_state": "to"}):
    """A declared transition."""

    from_state: str
    to_state: str
    trigger: str
    signal: str | None
    guards: tuple[str, ...]
    automatic: bool
    severity: str
    effects: tuple[str, ...]


class MachineView(Struct, frozen=True, kw_only=True):
    """A machine of a lifecycle."""

    name: str
    lifecycle: str
    kind: str
    version: int
    states: tuple[StateView, ...]
    transitions: tuple[TransitionView, ...]
    fallbacks: Mapping[str, str]
    """Signals that count as another one in states that do not handle them."""


def make_machine_view(machine: Machine) -> MachineView:
    return MachineView(
        name=machine.name,
        lifecycle=machine.lifecycle,
        kind=machine.kind.value,
        version=machine.version,
        states=tuple(
            StateView(
                name=state.name,
                phase=state.phase.value,
                outcome=state.outcome.value if state.outcome else None,
                initial=state.initial,
                terminal=state.terminal,
                sealed=state.sealed,
                needs=state.needs,
                longest_stay_seconds=state.longest_stay_seconds,
            )
            for state in machine.states
        ),
        transitions=tuple(
            TransitionView(
                from_state=move.from_state,
                to_state=move.to_state,
                trigger=move.trigger,
                signal=move.signal,
                guards=move.conditions,
                automatic=move.automatic,
                severity=move.severity.value,
                effects=move.effects,
            )
            for move in machine.transitions
        ),
        fallbacks=dict(machine.fallbacks),
    )
