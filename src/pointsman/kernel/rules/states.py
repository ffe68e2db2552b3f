"""There is one initial state, every state is reachable from it, and every state leads to an end."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.errors import Finding
from pointsman.kernel.machine import Kind, Phase, reach
from pointsman.kernel.subject import Subject


def initial_state(subject: Subject) -> Iterator[Finding]:
    initial = [state for state in subject.states.values() if state.state.initial]
    if not initial:
        message = f"Machine {subject.draft.name} has no initial state."
        yield Finding("no-initial-state", subject.draft.name.place, message, "Give one state `initial: true`.")
    for state in initial[1:]:
        message = f"{state.state.name} is a second initial state beside {initial[0].state.name}."
        yield Finding("several-initial-states", state.place, message, "Keep `initial: true` on one state only.")


def outcome(subject: Subject) -> Iterator[Finding]:
    for draft in subject.states.values():
        state = draft.state
        if state.phase is Phase.DONE and state.outcome is None:
            message = f"State {state.name} is done but has no outcome."
            yield Finding("outcome", draft.place, message, "Add `outcome: success`, `failure` or `canceled`.")
        if state.phase is not Phase.DONE and state.outcome is not None:
            message = f"State {state.name} has an outcome but is not done."
            yield Finding("outcome", draft.place, message, "Make its phase `done`, or remove the outcome.")
        if state.terminal and state.phase is not Phase.DONE:
            message = f"State {state.name} is terminal but its phase is {state.phase}."
            yield Finding("outcome", draft.place, message, "Make its phase `done`, or remove `terminal`.")
        if state.sealed and not state.terminal:
            message = f"State {state.name} is sealed but not terminal."
            yield Finding("outcome", draft.place, message, "Remove `sealed`, or make the state terminal.")


def restless_end(subject: Subject) -> Iterator[Finding]:
    for move in subject.moves:
        state = subject.states[move.from_state.text].state
        if move.automatic and state.terminal and not state.sealed:
            message = f"{move} leaves {move.from_state} automatically, but the state is terminal."
            yield Finding("restless-end", move.place, message, "Add `terminal: false` to the state, or let a signal cause it.")


def sealed_exit(subject: Subject) -> Iterator[Finding]:
    for move in subject.moves:
        state = subject.states[move.from_state.text].state
        if state.sealed and state.terminal:
            message = f"{move} leaves a sealed state."
            yield Finding("sealed-exit", move.place, message, "Remove the transition, or `sealed` from the state.")


def unreachable_state(subject: Subject) -> Iterator[Finding]:
    initial = [name for name, state in subject.states.items() if state.state.initial]
    if not initial:
        return
    reached = reach(initial, subject.edges())
    for name, state in subject.states.items():
        if name not in reached:
            message = f"State {name} cannot be reached from {initial[0]}."
            yield Finding("unreachable-state", state.place, message, "Add a transition that leads to it, or remove it.")


def dead_end(subject: Subject) -> Iterator[Finding]:
    endless = subject.kind is Kind.BREAKER
    ends = {name for name, state in subject.states.items() if (state.state.initial if endless else state.state.terminal)}
    if not ends and not endless:
        message = f"Machine {subject.draft.name} has no terminal state."
        yield Finding("dead-end", subject.draft.name.place, message, "Give at least one state `phase: done`.")
        return
    alive = reach(ends, subject.edges(backwards=True))
    goal = "the initial state again" if endless else "a terminal state"
    for name, state in subject.states.items():
        if ends and name not in alive:
            message = f"State {name} does not lead to {goal}."
            yield Finding("dead-end", state.place, message, "Add a transition out of it, or make it `phase: done`.")
