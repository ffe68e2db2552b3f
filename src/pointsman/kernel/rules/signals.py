"""Every signal of the engine is handled, and what the engine relies on for claims holds."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.errors import Finding, Place, nearest
from pointsman.kernel.draft import StateDraft
from pointsman.kernel.machine import Kind, Phase
from pointsman.kernel.subject import Subject, exhaustive

CLAIM = "claim"
LEASE_EXPIRED = "lease_expired"
LEASE_LOST = "lease_lost"
OVERSTAY = "overstay"
READY = "ready"


def unbound_trigger(subject: Subject) -> Iterator[Finding]:
    by_name = {trigger.text for trigger in subject.draft.by_name}
    reported: set[tuple[str, Place]] = set()
    for move in subject.draft.moves:
        if move.automatic or subject.signals(move) or move.trigger.text in by_name:
            continue
        if (move.trigger.text, move.trigger.place) in reported:
            continue
        reported.add((move.trigger.text, move.trigger.place))
        close = nearest(move.trigger.text, subject.known)
        hint = f" (did you mean {close[0]}?)" if close else ""
        advice = f"Bind it under `signals:`{hint}, or list it under `by_name:` if only people send it."
        message = f"No signal causes trigger {move.trigger} from {move.from_state}."
        yield Finding("unbound-trigger", move.trigger.place, message, advice)


def several_signals(subject: Subject) -> Iterator[Finding]:
    for move in subject.draft.moves:
        signals = subject.signals(move)
        if len(signals) > 1:
            message = f"Trigger {move.trigger} stands for {' and '.join(signals)} from {move.from_state}."
            advice = f"Bind each to its states: `{signals[0]}: {move.trigger} from {move.from_state}`."
            yield Finding("several-signals", move.place, message, advice)


def vain_binding(subject: Subject) -> Iterator[Finding]:
    for binding in subject.draft.bindings:
        moves = [move for move in subject.draft.moves if move.trigger.text == binding.trigger.text and not move.automatic]
        left = {move.from_state.text for move in moves}
        for state in binding.from_states:
            if moves and state.text in subject.states and state.text not in left:
                message = f"{binding.signal} is bound to trigger {binding.trigger} from {state}, which it never leaves."
                yield Finding("vain-binding", state.place, message, "Name a state that the trigger leaves, or remove it.")
    for signal, target in subject.draft.fallbacks:
        # A target with a fallback of its own is checked there; a required one is reported as uncovered.
        checked_elsewhere = target.text in subject.fallbacks or target.text in subject.known.required
        if target.text in subject.known and target.text not in subject.taken and not checked_elsewhere:
            message = f"{signal} falls back to {target}, which this machine does not handle."
            advice = "Name a signal that the machine handles, or remove the fallback."
            yield Finding("vain-binding", target.place, message, advice)


def vain_overstay(subject: Subject) -> Iterator[Finding]:
    limited = {name for name, draft in subject.states.items() if draft.state.longest_stay_seconds is not None}
    advice = "Give the state a `longest_stay`, or remove this line."
    for move in subject.moves:
        if OVERSTAY in subject.signals(move) and move.from_state.text not in limited:
            message = f"{move.from_state} handles {OVERSTAY}, but has no longest stay."
            yield Finding("vain-overstay", move.place, message, advice)
    for signal, _ in subject.draft.fallbacks:
        if signal.text == OVERSTAY and not limited:
            yield Finding("vain-overstay", signal.place, f"{OVERSTAY} has a fallback, but no state has a longest stay.", advice)


def uncovered_signal(subject: Subject) -> Iterator[Finding]:
    for signal, meaning in subject.known.required.items():
        # A fallback that leads nowhere is reported separately.
        if signal not in subject.taken and signal not in subject.fallbacks:
            message = f"Machine {subject.draft.name} does not handle the signal {signal} ({meaning})."
            advice = f"Bind it to a trigger under `signals:`, or name another signal for it: `fallbacks: {{{signal}: …}}`."
            yield Finding("uncovered-signal", subject.draft.name.place, message, advice)


def fallback_cycle(subject: Subject) -> Iterator[Finding]:
    reported: set[str] = set()
    for signal, _ in subject.draft.fallbacks:
        way = subject.followed(signal.text)
        if signal.text not in reported and subject.fallbacks.get(way[-1]) == signal.text:
            reported.update(way)
            message = f"Fallbacks form a cycle: {' -> '.join([*way, signal.text])}."
            yield Finding("fallback-cycle", signal.place, message, "Remove one of these fallbacks.")


def task_phases(subject: Subject) -> Iterator[Finding]:
    """What the engine relies on for claims."""
    if subject.kind is not Kind.TASK:
        return
    for name, draft in subject.states.items():
        phase = draft.state.phase
        if phase is Phase.ACTIVE and not _taken_over(subject, name):
            yield from _unlosable_lease(subject, draft)
        if phase is Phase.QUEUED and subject.answers(CLAIM) and not subject.taken_by(name, CLAIM):
            message = f"State {name} is queued, but no worker can claim it."
            yield Finding("unclaimable", draft.place, message, f"Add a transition for {CLAIM}, or make its phase `held`.")
        if phase is Phase.HELD and draft.state.initial and not subject.taken_by(name, READY):
            message = f"Tasks start in {name}, which is held, but it does not handle {READY}."
            yield Finding("never-ready", draft.place, message, f"Add a transition for {READY}, or make its phase `queued`.")
    for move in subject.moves:
        if CLAIM not in subject.signals(move):
            continue
        if subject.states[move.to_state.text].state.phase is not Phase.ACTIVE:
            message = f"{move} is a claim, but {move.to_state} is not active."
            yield Finding("idle-claim", move.place, message, "Let the claim lead to a state of phase `active`.")
        elif subject.states[move.from_state.text].state.phase not in (Phase.QUEUED, Phase.ACTIVE):
            message = f"{move} is a claim, but {move.from_state} is neither queued nor active: no worker can claim it."
            yield Finding("idle-claim", move.place, message, "Let the claim leave a state of phase `queued`.")


def _taken_over(subject: Subject, state: str) -> bool:
    """Whether a claim takes over a task from a lost worker, with no other condition than its expired lease."""
    claims = subject.taken_by(state, CLAIM)
    return any({condition.name.text for condition in claim.conditions} <= {LEASE_EXPIRED} for claim in claims)


def _unlosable_lease(subject: Subject, draft: StateDraft) -> Iterator[Finding]:
    if LEASE_LOST in subject.fallbacks and not subject.answers(LEASE_LOST):
        return  # a fallback that leads nowhere is reported separately
    moves = subject.taken_by(draft.state.name, LEASE_LOST)
    advice = f"Add a transition for {LEASE_LOST}, a fallback for it, or let {CLAIM} take the task over."
    if not moves:
        message = f"State {draft.state.name} is active, but does not handle {LEASE_LOST}, the loss of its worker."
        yield Finding("unlosable-lease", draft.place, message, advice)
    elif not exhaustive(moves):
        message = f"State {draft.state.name} is active, but when its worker is lost, the guards may block every transition."
        yield Finding("unlosable-lease", draft.place, message, "Add one with `[else]`.")
