"""What must be true of a machine before anything may follow it; one function a rule, all findings at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations

from pointsman.errors import Finding, Place, nearest, suggest
from pointsman.kernel.draft import MachineDraft, MoveDraft, StateDraft, Word
from pointsman.kernel.machine import Kind, Phase
from pointsman.kernel.vocabulary import Signals, Vocabulary

CLAIM = "claim"
LEASE_LOST = "lease_lost"
READY = "ready"


class Subject:
    """A machine under examination: the draft, the words it may use, and its graph."""

    def __init__(self, draft: MachineDraft, vocabulary: Vocabulary) -> None:
        self.draft = draft
        self.kind = draft.kind
        self.vocabulary = vocabulary
        self.known = vocabulary.signals[draft.kind] if draft.kind else Signals(required={}, optional={})
        self.states: dict[str, StateDraft] = {}
        for state in draft.states:
            self.states.setdefault(state.state.name, state)
        self.moves = [move for move in draft.moves if move.from_state.text in self.states and move.to_state.text in self.states]
        self.fallbacks = {signal.text: target.text for signal, target in draft.fallbacks}
        known = frozenset(self.known)
        self.pulled: dict[int, tuple[str, ...]] = {id(move): tuple(draft.signals_of(move, known)) for move in draft.moves}
        self.taken = {signal for signals in self.pulled.values() for signal in signals}
        """The signals that some transition takes, fallbacks not counted."""

    def signals(self, move: MoveDraft) -> tuple[str, ...]:
        return self.pulled[id(move)]

    def exits(self, state: str) -> list[MoveDraft]:
        return [move for move in self.draft.moves if move.from_state.text == state]

    def taken_by(self, state: str, signal: str) -> list[MoveDraft]:
        """The moves that a signal tries in a state, fallbacks resolved."""
        for name in self.followed(signal):
            if moves := [move for move in self.exits(state) if name in self.signals(move)]:
                return moves
        return []

    def answers(self, signal: str) -> bool:
        """Whether a signal does something in some state, by a fallback or without."""
        return not self.taken.isdisjoint(self.followed(signal))

    def followed(self, signal: str) -> list[str]:
        """A signal and everything that it falls back to, in this order."""
        seen: dict[str, None] = {}
        while signal not in seen:
            seen[signal] = None
            signal = self.fallbacks.get(signal, signal)
        return list(seen)

    def reachable_from(self, names: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
        seen = set(names)
        frontier = list(seen)
        while frontier:
            fresh = edges.get(frontier.pop(), set()) - seen
            seen |= fresh
            frontier.extend(fresh)
        return seen

    def edges(self, *, backwards: bool = False, automatic_only: bool = False) -> dict[str, set[str]]:
        edges: dict[str, set[str]] = {name: set() for name in self.states}
        for move in self.moves:
            if move.automatic or not automatic_only:
                source, target = (move.to_state, move.from_state) if backwards else (move.from_state, move.to_state)
                edges[source.text].add(target.text)
        return edges


def verify(draft: MachineDraft, vocabulary: Vocabulary) -> list[Finding]:
    """Everything that is wrong with a machine, in the order of the file."""
    subject = Subject(draft, vocabulary)
    rules = (*WORD_RULES, *GRAPH_RULES) if draft.whole else WORD_RULES
    findings = [finding for rule in rules for finding in rule(subject)]
    return sorted(findings, key=lambda finding: (finding.place.line, finding.place.column))


# ── the words ──


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
    named = [binding.trigger for binding in subject.draft.bindings] + subject.draft.by_name
    yield from _unknown("trigger", named, triggers)


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
        advice = f"Bind it under `signals:`{hint}, or list it under `by_name:` if only people pull it."
        message = f"No signal pulls trigger {move.trigger} out of {move.from_state}."
        yield Finding("unbound-trigger", move.trigger.place, message, advice)


def several_signals(subject: Subject) -> Iterator[Finding]:
    for move in subject.draft.moves:
        signals = subject.signals(move)
        if len(signals) > 1:
            message = f"Trigger {move.trigger} stands for {' and '.join(signals)} out of {move.from_state}."
            advice = f"Say which in which state: `{signals[0]}: {move.trigger} from {move.from_state}`."
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
        # A target that falls back itself is judged there, and one that every machine must take is an uncovered signal.
        judged_elsewhere = target.text in subject.fallbacks or target.text in subject.known.required
        if target.text in subject.known and target.text not in subject.taken and not judged_elsewhere:
            message = f"{signal} falls back to {target}, which nothing in this machine takes."
            advice = "Name a signal that the machine takes, or remove the fallback."
            yield Finding("vain-binding", target.place, message, advice)


# ── the states ──


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
            message = f"State {state.name} is done but does not say how it ended."
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
            message = f"{move} leaves {move.from_state} by itself, but the work is over there."
            yield Finding("restless-end", move.place, message, "Add `terminal: false` to the state, or let a signal pull it.")


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
    reached = subject.reachable_from(initial, subject.edges())
    for name, state in subject.states.items():
        if name not in reached:
            message = f"Nothing leads from {initial[0]} to state {name}."
            yield Finding("unreachable-state", state.place, message, "Add a transition that leads to it, or remove it.")


def dead_end(subject: Subject) -> Iterator[Finding]:
    endless = subject.kind is Kind.BREAKER
    ends = {name for name, state in subject.states.items() if (state.state.initial if endless else state.state.terminal)}
    if not ends and not endless:
        message = f"Machine {subject.draft.name} has no terminal state: nothing in it can ever end."
        yield Finding("dead-end", subject.draft.name.place, message, "Give at least one state `phase: done`.")
        return
    alive = subject.reachable_from(ends, subject.edges(backwards=True))
    goal = "the initial state again" if endless else "a terminal state"
    for name, state in subject.states.items():
        if ends and name not in alive:
            message = f"No way leads from {name} to {goal}."
            yield Finding("dead-end", state.place, message, "Add a transition out of it, or make it `phase: done`.")


# ── the transitions ──


def duplicate_transition(subject: Subject) -> Iterator[Finding]:
    first: dict[tuple[str, str, str], MoveDraft] = {}
    for move in subject.moves:
        key = (move.from_state.text, move.to_state.text, move.trigger.text)
        if first.setdefault(key, move) is not move:
            message = f"{move} is declared twice; first on line {first[key].place.line}."
            yield Finding(
                "duplicate-transition", move.place, message, "Keep one of the two; all guards of a transition must hold."
            )


def ambiguous_transition(subject: Subject) -> Iterator[Finding]:
    reported: set[tuple[int, int]] = set()
    for asked, moves in _choices(subject):
        for earlier, later in combinations(moves, 2):
            pair = (id(earlier), id(later))
            if earlier.to_state.text == later.to_state.text and earlier.trigger.text == later.trigger.text:
                continue  # a duplicate, and reported as one
            if later.otherwise or _exclusive(earlier, later) or pair in reported:
                continue
            reported.add(pair)
            message = f"Both {earlier} (line {earlier.place.line}) and {later} may be taken on {asked}."
            advice = "Make their guards exclude each other (`[x]` and `[not x]`), or order them with `[else …]`."
            yield Finding("ambiguous-transition", later.place, message, advice)


def shadowed_transition(subject: Subject) -> Iterator[Finding]:
    reported: set[int] = set()
    for asked, moves in _choices(subject):
        for position, move in enumerate(moves):
            if not move.otherwise or id(move) in reported:
                continue
            if position == 0:
                reported.add(id(move))
                message = f"{move} says `else`, but nothing comes before it on {asked}."
                yield Finding("stray-else", move.place, message, "Remove `else`, or put the other transition before it.")
            elif _exhaustive(moves[:position]) or any(_implies(move, earlier) for earlier in moves[:position]):
                reported.add(id(move))
                message = f"{move} can never be taken: one before it always is."
                yield Finding("shadowed-transition", move.place, message, "Guard the earlier one, or remove this one.")
    for name, state in subject.states.items():
        exits = subject.exits(name)
        # Entities begin in the initial state without a move, and only a move is followed by automatic ones.
        if state.state.initial or not _exhaustive([move for move in exits if move.automatic]):
            continue
        for move in exits:
            if not move.automatic and id(move) not in reported:
                message = f"{move} can never be taken: {name} is left by itself at once."
                yield Finding("shadowed-transition", move.place, message, "Guard the automatic transition, or remove this one.")


def contradictory_guards(subject: Subject) -> Iterator[Finding]:
    reported: set[Place] = set()
    for move in subject.draft.moves:
        wanted = {condition.name.text for condition in move.conditions if not condition.negated}
        for condition in move.conditions:
            name = condition.name
            if condition.negated and name.text in wanted and name.place not in reported:
                reported.add(name.place)
                message = f"{move} asks for {name} and for not {name}."
                yield Finding("contradictory-guards", name.place, message, "Remove one of the two.")


def automatic_cycle(subject: Subject) -> Iterator[Finding]:
    edges = subject.edges(automatic_only=True)
    told: set[str] = set()
    for move in subject.moves:
        if not move.automatic or move.from_state.text in told:
            continue
        way = _way(edges, move.to_state.text, move.from_state.text)
        if way:
            told |= {move.from_state.text, *way}
            message = f"Automatic transitions run in a circle: {' -> '.join([move.from_state.text, *way])}."
            yield Finding("automatic-cycle", move.place, message, "Let a signal pull at least one of them.")


# ── the signals and the phases ──


def uncovered_signal(subject: Subject) -> Iterator[Finding]:
    for signal, meaning in subject.known.required.items():
        # A fallback that leads nowhere is reported for itself.
        if signal not in subject.taken and signal not in subject.fallbacks:
            message = f"Machine {subject.draft.name} has no answer to the signal {signal} ({meaning})."
            advice = f"Bind it to a trigger under `signals:`, or name another signal for it: `fallbacks: {{{signal}: …}}`."
            yield Finding("uncovered-signal", subject.draft.name.place, message, advice)


def fallback_cycle(subject: Subject) -> Iterator[Finding]:
    told: set[str] = set()
    for signal, _ in subject.draft.fallbacks:
        way = subject.followed(signal.text)
        if signal.text not in told and subject.fallbacks.get(way[-1]) == signal.text:
            told.update(way)
            message = f"Fallbacks run in a circle: {' -> '.join([*way, signal.text])}."
            yield Finding("fallback-cycle", signal.place, message, "Remove one of the fallbacks in the circle.")


def task_phases(subject: Subject) -> Iterator[Finding]:
    """What the engine relies on when it hands tasks to workers."""
    if subject.kind is not Kind.TASK:
        return
    for name, draft in subject.states.items():
        phase = draft.state.phase
        if phase is Phase.ACTIVE and not subject.taken_by(name, CLAIM):
            yield from _unlosable_lease(subject, draft)
        if phase is Phase.QUEUED and subject.answers(CLAIM) and not subject.taken_by(name, CLAIM):
            message = f"State {name} is queued, but no worker can claim it."
            yield Finding("unclaimable", draft.place, message, f"Add a transition for {CLAIM}, or make its phase `held`.")
        if phase is Phase.HELD and draft.state.initial and not subject.taken_by(name, READY):
            message = f"Tasks begin in {name}, which is held, but nothing takes {READY} there."
            yield Finding("never-ready", draft.place, message, f"Add a transition for {READY}, or make its phase `queued`.")
    for move in subject.moves:
        if CLAIM not in subject.signals(move):
            continue
        if subject.states[move.to_state.text].state.phase is not Phase.ACTIVE:
            message = f"{move} is a claim, but {move.to_state} is not active."
            yield Finding("idle-claim", move.place, message, "Let the claim lead to a state of phase `active`.")
        elif subject.states[move.from_state.text].state.phase not in (Phase.QUEUED, Phase.ACTIVE):
            message = f"{move} is a claim, but {move.from_state} is neither queued nor active: no worker is offered it."
            yield Finding("idle-claim", move.place, message, "Let the claim leave a state of phase `queued`.")


def _unlosable_lease(subject: Subject, draft: StateDraft) -> Iterator[Finding]:
    if LEASE_LOST in subject.fallbacks and not subject.answers(LEASE_LOST):
        return  # a fallback that leads nowhere is reported for itself
    moves = subject.taken_by(draft.state.name, LEASE_LOST)
    advice = f"Add a transition for {LEASE_LOST}, a fallback for it, or let {CLAIM} take the task over."
    if not moves:
        message = f"State {draft.state.name} is active, but its worker cannot be lost: nothing takes {LEASE_LOST} there."
        yield Finding("unlosable-lease", draft.place, message, advice)
    elif not _exhaustive(moves):
        message = f"State {draft.state.name} is active, and when its worker is lost every way out may be closed by its guards."
        yield Finding("unlosable-lease", draft.place, message, "Add one with `[else]`.")


Rule = Callable[[Subject], Iterator[Finding]]

WORD_RULES: tuple[Rule, ...] = (
    duplicate_state,
    unknown_state,
    unknown_guard,
    unknown_effect,
    unknown_need,
    unknown_signal,
    unknown_trigger,
)

GRAPH_RULES: tuple[Rule, ...] = (
    unbound_trigger,
    several_signals,
    vain_binding,
    initial_state,
    outcome,
    restless_end,
    sealed_exit,
    unreachable_state,
    dead_end,
    duplicate_transition,
    ambiguous_transition,
    shadowed_transition,
    contradictory_guards,
    automatic_cycle,
    uncovered_signal,
    fallback_cycle,
    task_phases,
)


def _unknown(what: str, named: Iterable[Word], known: Iterable[str]) -> Iterator[Finding]:
    known = tuple(known)
    for word in named:
        if word.text not in known:
            yield Finding(f"unknown-{what}", word.place, f"There is no {what} called {word}.", suggest(word.text, known))


def _distinct(words: Iterable[Word]) -> Iterable[Word]:
    """One word a place: a line with several sources names its guards and its target once."""
    return dict.fromkeys(words)


def _choices(subject: Subject) -> Iterator[tuple[str, list[MoveDraft]]]:
    """Every group of moves among which one must be chosen, with what asks for the choice."""
    for state in subject.states:
        exits = subject.exits(state)
        groups: dict[str, list[MoveDraft]] = {}
        for move in exits:
            names = ("becoming " + state,) if move.automatic else dict.fromkeys((*subject.signals(move), move.trigger.text))
            for name in names:
                groups.setdefault(name, []).append(move)
        yield from groups.items()


def _way(edges: Mapping[str, set[str]], start: str, end: str) -> list[str]:
    """The states on a shortest way from one to another, both included; empty where there is none."""
    ways = {start: [start]}
    frontier = [start]
    for state in frontier:
        if state == end:
            return ways[state]
        for following in sorted(edges[state] - ways.keys()):
            ways[following] = [*ways[state], following]
            frontier.append(following)
    return []


def _implies(later: MoveDraft, earlier: MoveDraft) -> bool:
    """Whether everything that `earlier` asks for is asked for by `later`, too."""
    asked = {(condition.name.text, condition.negated) for condition in later.conditions}
    return all((condition.name.text, condition.negated) in asked for condition in earlier.conditions)


def _exhaustive(moves: list[MoveDraft]) -> bool:
    """Whether one of the moves is taken whatever the facts are."""
    single = {(move.conditions[0].name.text, move.conditions[0].negated) for move in moves if len(move.conditions) == 1}
    return any(not move.conditions for move in moves) or any((name, not negated) in single for name, negated in single)


def _exclusive(one: MoveDraft, other: MoveDraft) -> bool:
    """Whether one of the two needs a guard that the other needs not to hold."""
    wanted = {(condition.name.text, condition.negated) for condition in one.conditions}
    return any((condition.name.text, not condition.negated) in wanted for condition in other.conditions)
