"""Every word that a machine uses is declared, by the machine or by the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.errors import Finding, suggest
from pointsman.kernel.draft import Word
from pointsman.kernel.subject import Subject


def duplicate_state(subject: Subject) -> Iterator[Finding]:
    for state in subject.draft.states:
        first = subject.states[state.state.name]
        if first is not state:
            message = f"State {state.state.name} is declared twice; first on line {first.place.line}."
            yield Finding("duplicate-state", state.place, message, "Remove one of the two declarations.")


def unknown_state(subject: Subject) -> Iterator[Finding]:
    if subject.draft.state_names is None:
        return
    named = [word for move in subject.draft.moves for word in (move.from_state, move.to_state)]
    named += [state for binding in subject.draft.bindings for state in binding.from_states]
    known = dict.fromkeys([*subject.states, *sorted(subject.draft.state_names)])
    yield from _unknown("state", _distinct(named), known)


def unknown_guard(subject: Subject) -> Iterator[Finding]:
    named = [condition.name for move in subject.draft.moves for condition in move.conditions]
    yield from _unknown("guard", _distinct(named), subject.vocabulary.guards)


def unknown_effect(subject: Subject) -> Iterator[Finding]:
    named = [effect for move in subject.draft.moves for effect in move.effects]
    yield from _unknown("effect", _distinct(named), subject.vocabulary.effects)


def unknown_need(subject: Subject) -> Iterator[Finding]:
    named = [need for state in subject.draft.states for need in state.needs]
    yield from _unknown("need", named, subject.vocabulary.needs)


def unknown_signal(subject: Subject) -> Iterator[Finding]:
    if subject.kind is None:
        return
    named = [binding.signal for binding in subject.draft.bindings]
    named += [signal for fallback in subject.draft.fallbacks for signal in fallback]
    yield from _unknown("signal", _distinct(named), subject.known)


def unknown_trigger(subject: Subject) -> Iterator[Finding]:
    if not subject.draft.moves_read:
        return
    triggers = dict.fromkeys(move.trigger.text for move in subject.draft.moves if not move.automatic)
    automatic = {move.trigger.text for move in subject.draft.moves if move.automatic}
    for word in [binding.trigger for binding in subject.draft.bindings] + subject.draft.by_name:
        if word.text in automatic and word.text not in triggers:
            message = f"Trigger {word} is automatic: no signal causes it."
            yield Finding("unknown-trigger", word.place, message, "Remove the binding, or `automatic` from the transition.")
        else:
            yield from _unknown("trigger", [word], triggers)


def _unknown(what: str, named: Iterable[Word], known: Iterable[str]) -> Iterator[Finding]:
    known = tuple(known)
    for word in named:
        if word.text not in known:
            yield Finding(f"unknown-{what}", word.place, f"There is no {what} named {word}.", suggest(word.text, known))


def _distinct(words: Iterable[Word]) -> Iterable[Word]:
    """One word per position: a line with several sources has its guards and its target once."""
    return dict.fromkeys(words)
