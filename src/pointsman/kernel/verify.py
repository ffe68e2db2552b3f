"""Checks a machine against every rule; all findings at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pointsman.errors import Finding
from pointsman.kernel.draft import MachineDraft
from pointsman.kernel.rules import signals, states, transitions, words
from pointsman.kernel.subject import Subject
from pointsman.kernel.vocabulary import Vocabulary

Rule = Callable[[Subject], Iterator[Finding]]

WORD_RULES: tuple[Rule, ...] = (
    words.duplicate_state,
    words.unknown_state,
    words.unknown_guard,
    words.unknown_effect,
    words.unknown_need,
    words.unknown_signal,
    words.unknown_trigger,
)

GRAPH_RULES: tuple[Rule, ...] = (
    signals.unbound_trigger,
    signals.several_signals,
    signals.vain_binding,
    signals.vain_overstay,
    states.initial_state,
    states.outcome,
    states.restless_end,
    states.sealed_exit,
    states.unreachable_state,
    states.dead_end,
    transitions.duplicate_transition,
    transitions.ambiguous_transition,
    transitions.shadowed_transition,
    transitions.contradictory_guards,
    transitions.automatic_cycle,
    signals.uncovered_signal,
    signals.fallback_cycle,
    signals.task_phases,
)


def verify(draft: MachineDraft, vocabulary: Vocabulary) -> list[Finding]:
    """Every finding in a machine, in the order of the file."""
    subject = Subject(draft, vocabulary)
    rules = (*WORD_RULES, *GRAPH_RULES) if draft.whole else WORD_RULES
    findings = [finding for rule in rules for finding in rule(subject)]
    return sorted(findings, key=lambda finding: (finding.place.line, finding.place.column))
