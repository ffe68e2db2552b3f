"""Loads lifecycle files: read, verify, build; every finding at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pointsman.errors import Finding, LifecycleInvalid, UnknownName
from pointsman.kernel.draft import Condition, LifecycleDraft, MachineDraft, MoveDraft
from pointsman.kernel.machine import Guard, Kind, Lifecycle, Machine, State, Transition
from pointsman.kernel.read import read_lifecycle
from pointsman.kernel.verify import verify
from pointsman.kernel.vocabulary import Predicate, Vocabulary

FindMachine = Callable[[str], Machine]
"""Finds a machine of another lifecycle by its full name, for `same_as`."""


def load_lifecycle(
    text: str,
    *,
    file: str,
    vocabulary: Vocabulary,
    find_machine: FindMachine,
    borrowed: Mapping[Kind, Machine],
    taken: Collection[str] = (),
) -> Lifecycle:
    """Load a lifecycle from the text of its file; kinds that it does not declare are borrowed, names in `taken` refused."""
    draft, findings = read_lifecycle(text, file)
    if draft is None:
        raise LifecycleInvalid(findings)
    if draft.name.text in taken:
        message = f"A lifecycle named {draft.name} exists already."
        findings.append(Finding("taken-name", draft.name.place, message, "Give yours another name."))
    same: dict[str, Machine] = {}
    for machine in draft.machines:
        findings += verify(machine, vocabulary)
        if machine.same_as:
            try:
                same[machine.name.text] = find_machine(machine.same_as.text)
            except UnknownName as error:
                findings.append(
                    Finding(
                        "unknown-machine",
                        machine.same_as.place,
                        str(error),
                        "Name a shipped machine; `pointsman machine list` shows them.",
                    )
                )
    findings += _one_machine_a_kind(draft, same)
    if findings:
        raise LifecycleInvalid(sorted(findings, key=lambda finding: (finding.place.line, finding.place.column)))
    machines = tuple(
        _rename(same[machine.name.text], draft, machine) if machine.same_as else _build(machine, draft, vocabulary)
        for machine in draft.machines
    )
    declared = {machine.kind for machine in machines}
    missing = tuple(machine for kind, machine in borrowed.items() if kind not in declared)
    return Lifecycle(draft.name.text, draft.version, draft.title, machines, missing, draft.defaults, text)


def _one_machine_a_kind(draft: LifecycleDraft, same: Mapping[str, Machine]) -> list[Finding]:
    findings = []
    first: dict[Kind, str] = {}
    for machine in draft.machines:
        name = machine.name.text
        kind = same[name].kind if name in same else machine.kind
        if kind is not None and first.setdefault(kind, name) != name:
            message = f"Machine {name} is a second one of kind {kind} beside {first[kind]}."
            findings.append(Finding("duplicate-kind", machine.name.place, message, "Keep one machine of each kind."))
    return findings


def _rename(machine: Machine, lifecycle: LifecycleDraft, draft: MachineDraft) -> Machine:
    return replace(machine, name=f"{lifecycle.name}.{draft.name}", lifecycle=lifecycle.name.text, version=lifecycle.version)


def _build(draft: MachineDraft, lifecycle: LifecycleDraft, vocabulary: Vocabulary) -> Machine:
    assert draft.kind is not None, "verified drafts have a kind"
    known = frozenset(vocabulary.signals[draft.kind])
    left = {move.from_state.text for move in draft.moves}
    return Machine(
        name=f"{lifecycle.name}.{draft.name}",
        lifecycle=lifecycle.name.text,
        kind=draft.kind,
        version=lifecycle.version,
        states=tuple(_seal(each.state, left) for each in draft.states),
        transitions=tuple(_transition(move, draft, known, vocabulary.guards) for move in draft.moves),
        fallbacks={signal.text: target.text for signal, target in draft.fallbacks},
    )


def _seal(state: State, left: set[str]) -> State:
    """A terminal state that nothing leaves is sealed, whether or not the file promises it."""
    return replace(state, sealed=state.terminal and state.name not in left)


def _transition(move: MoveDraft, draft: MachineDraft, known: frozenset[str], guards: Mapping[str, Predicate]) -> Transition:
    return Transition(
        from_state=move.from_state.text,
        to_state=move.to_state.text,
        trigger=move.trigger.text,
        signal=next(draft.signals_of(move, known), None),
        guards=tuple(_guard(condition, guards) for condition in move.conditions),
        otherwise=move.otherwise,
        automatic=move.automatic,
        severity=move.severity,
        effects=tuple(effect.text for effect in move.effects),
    )


def _guard(condition: Condition, guards: Mapping[str, Predicate]) -> Guard:
    name = condition.name.text
    return Guard.on(name, guards[name], negated=condition.negated)
