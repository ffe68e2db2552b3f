"""Reads YAML text into a draft, with a finding for everything that is not part of a lifecycle file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

from pointsman.errors import Finding, LifecycleInvalid, Place, nearest, suggest
from pointsman.kernel.compose import Mapping, Node, Scalar, Sequence, compose
from pointsman.kernel.draft import LifecycleDraft, MachineDraft, StateDraft, Word
from pointsman.kernel.grammar import Line, parse_binding, parse_duration, parse_moves
from pointsman.kernel.machine import Kind, Outcome, Phase, State, TaskDefaults

_LIFECYCLE_KEYS = ("lifecycle", "version", "title", "defaults", "machines")
_DEFAULTS_KEYS = ("max_attempts", "reclaim_after")
_MACHINE_KEYS = ("kind", "same_as", "states", "transitions", "signals", "fallbacks")
_STATE_KEYS = ("phase", "outcome", "initial", "terminal", "sealed", "needs", "longest_stay")
_BY_NAME = "by_name"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_LIFECYCLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")

Choice = TypeVar("Choice", bound=StrEnum)


def read_lifecycle(text: str, file: str) -> tuple[LifecycleDraft | None, list[Finding]]:
    """The draft of a lifecycle (None if the text has no mapping), and the findings."""
    reader = _Reader(file)
    root, broken = compose(text, file)
    if broken:
        return None, [broken]
    if not isinstance(root, Mapping):
        advice = f"Begin with `lifecycle: NAME`; the keys are {', '.join(_LIFECYCLE_KEYS)}."
        reader.report("structure", Place(file, 1, 1), "The file is not a mapping.", advice)
        return None, reader.findings
    return reader.lifecycle(root), reader.findings


class _Reader:
    """Walks the YAML nodes, which have lines and columns."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self._keys: dict[int, Place] = {}
        """The position of the key of each value: an empty value has no position of its own."""

    def report(self, rule: str, place: Place, message: str, advice: str) -> None:
        self.findings.append(Finding(rule, place, message, advice))

    def place(self, node: Node) -> Place:
        if isinstance(node, Scalar) and not node.value and id(node) in self._keys:
            return self._keys[id(node)]
        quote = 1 if isinstance(node, Scalar) and node.style in ("'", '"') else 0
        return Place(self.file, node.line + 1, node.column + 1 + quote)

    def line(self, node: Scalar) -> Line:
        return Line(node.value, self.place(node), folded=node.line != node.end_line)

    # ── levels of the file ──

    def lifecycle(self, root: Mapping) -> LifecycleDraft:
        keys = self.keys(root, "a lifecycle file", _LIFECYCLE_KEYS)
        draft = LifecycleDraft(name=self.required_word(keys, root, "lifecycle", "the name of the lifecycle"))
        if "version" in keys:
            draft.version = self.count(keys["version"], "the version")
        if "title" in keys:
            draft.title = self.text(keys["title"], "the title") or ""
        if "defaults" in keys:
            draft.defaults = self.defaults(keys["defaults"])
        for name, node in self.entries(keys.get("machines"), "machines"):
            self.check_name(name, "a machine")
            draft.machines.append(self.machine(name, node))
        if not draft.machines and not self.findings:
            place = self.place(keys.get("machines", root))
            self.report("structure", place, "The file declares no machines.", "Add one to the `machines:` mapping.")
        return draft

    def defaults(self, node: Node) -> TaskDefaults:
        keys = self.keys(node, "the defaults", _DEFAULTS_KEYS)
        return TaskDefaults(
            self.count(keys["max_attempts"], "`max_attempts`") if "max_attempts" in keys else 1,
            self.duration(keys["reclaim_after"], "`reclaim_after`") if "reclaim_after" in keys else None,
        )

    def machine(self, name: Word, node: Node) -> MachineDraft:
        draft = MachineDraft(name)
        before = len(self.findings)
        keys = self.keys(node, f"machine {name}", _MACHINE_KEYS)
        if not isinstance(node, Mapping):
            draft.whole = False
            return draft
        if "same_as" in keys:
            text = self.text(keys["same_as"], "`same_as`")
            draft.same_as = Word(text, self.place(keys["same_as"])) if text else None
            draft.whole = False
            for key, value in keys.items():
                if key != "same_as":
                    message = f"Machine {name} has `{key}` beside `same_as`."
                    self.report("structure", self.place(value), message, "Keep one of the two.")
            return draft
        draft.kind = self.choice(keys.get("kind"), Kind, f"the kind of machine {name}", name.place)
        for key in ("states", "transitions"):
            if key not in keys:
                self.report("structure", name.place, f"Machine {name} has no `{key}`.", f"Add `{key}:` to it.")
        if isinstance(keys.get("states"), Mapping):
            draft.state_names = set()
        draft.moves_read = isinstance(keys.get("transitions"), Sequence)
        for state, state_node in self.entries(keys.get("states"), "states", unique=False):
            self.state(draft, state, state_node)
        for item in self.items(keys.get("transitions"), "transitions"):
            self.transition(draft, item)
        for signal, signal_node in self.entries(keys.get("signals"), "signals"):
            self.binding(draft, signal, signal_node)
        for signal, signal_node in self.entries(keys.get("fallbacks"), "fallbacks"):
            target = self.text(signal_node, f"the fallback of {signal}")
            if target:
                draft.fallbacks.append((signal, Word(target, self.place(signal_node))))
        draft.whole = len(self.findings) == before
        return draft

    def state(self, draft: MachineDraft, name: Word, node: Node) -> None:
        assert draft.state_names is not None
        draft.state_names.add(name.text)
        self.check_name(name, "a state")
        keys = self.keys(node, f"state {name}", _STATE_KEYS)
        if not isinstance(node, Mapping):
            return
        phase = self.choice(keys.get("phase"), Phase, f"the phase of state {name}", name.place)
        if phase is None:
            return
        outcome = (
            self.choice(keys["outcome"], Outcome, f"the outcome of state {name}", name.place) if "outcome" in keys else None
        )
        needs = tuple(self.words(keys["needs"], "`needs`")) if "needs" in keys else ()
        stay = self.duration(keys["longest_stay"], "the longest stay") if "longest_stay" in keys else None
        state = State(
            name=name.text,
            phase=phase,
            outcome=outcome,
            initial=self.flag(keys, "initial", default=False),
            terminal=self.flag(keys, "terminal", default=phase is Phase.DONE),
            sealed=self.flag(keys, "sealed", default=False),
            needs=tuple(need.text for need in needs),
            longest_stay_seconds=stay,
        )
        draft.states.append(StateDraft(state, name.place, needs))

    def transition(self, draft: MachineDraft, node: Node) -> None:
        states, rule = node.entries[0] if isinstance(node, Mapping) and len(node.entries) == 1 else (node, node)
        if not isinstance(states, Scalar) or not isinstance(rule, Scalar) or states is rule:
            advice = "Write it as `FROM -> TO : trigger`, with a space on both sides of the colon."
            self.report("syntax", self.place(node), "This is not a transition.", advice)
            draft.moves_read = False
            return
        self._keys[id(rule)] = self.place(states)
        try:
            draft.moves.extend(parse_moves(self.line(states), self.line(rule)))
        except LifecycleInvalid as invalid:
            self.findings += invalid.findings
            draft.moves_read = False

    def binding(self, draft: MachineDraft, signal: Word, node: Node) -> None:
        if signal.text == _BY_NAME:
            draft.by_name.extend(self.words(node, "`by_name`"))
            return
        for item in node.items if isinstance(node, Sequence) else [node]:
            if self.text(item, f"the trigger of signal {signal}") is None or not isinstance(item, Scalar):
                continue
            try:
                draft.bindings.append(parse_binding(signal, self.line(item)))
            except LifecycleInvalid as invalid:
                self.findings += invalid.findings

    # ── shapes of nodes ──

    def keys(self, node: Node, what: str, known: tuple[str, ...]) -> dict[str, Node]:
        """The values of a mapping by key; an unknown key is reported, and a misspelt one is taken for the nearest."""
        keys: dict[str, Node] = {}
        for key, value in self.entries(node, what):
            if key.text in known:
                keys[key.text] = value
            else:
                self.report("structure", key.place, f"`{key}` is not a key of {what}.", suggest(key.text, known))
                for meant in nearest(key.text, known)[:1]:
                    keys.setdefault(meant, value)
        return keys

    def entries(self, node: Node | None, what: str, *, unique: bool = True) -> Iterator[tuple[Word, Node]]:
        if node is None:
            return
        if not isinstance(node, Mapping):
            self.report("structure", self.place(node), f"{_capital(what)} must be a mapping.", "Write `name: value` lines.")
            return
        seen: set[str] = set()
        for key, value in node.entries:
            text = self.text(key, f"a key of {what}")
            if text is None:
                continue
            self._keys[id(value)] = self.place(key)
            if unique and text in seen:
                self.report("structure", self.place(key), f"`{text}` occurs twice in {what}.", "Keep one of them.")
            else:
                seen.add(text)
                yield Word(text, self.place(key)), value

    def items(self, node: Node | None, what: str) -> Iterator[Node]:
        if node is None:
            return
        if not isinstance(node, Sequence):
            self.report("structure", self.place(node), f"{_capital(what)} must be a list.", "Begin each line with `- `.")
            return
        yield from node.items

    def words(self, node: Node, what: str) -> Iterator[Word]:
        for item in node.items if isinstance(node, Sequence) else [node]:
            text = self.text(item, what)
            if text is not None:
                yield Word(text, self.place(item))

    def text(self, node: Node, what: str) -> str | None:
        if isinstance(node, Scalar) and node.value:
            return node.value
        self.report("structure", self.place(node), f"{_capital(what)} must be text.", "Write a single word or text here.")
        return None

    def required_word(self, keys: dict[str, Node], parent: Node, key: str, what: str) -> Word:
        if key not in keys:
            self.report("structure", self.place(parent), f"The file does not define {what}.", f"Add `{key}:` at the top.")
            return Word("", self.place(parent))
        word = Word(self.text(keys[key], what) or "", self.place(keys[key]))
        if word.text and not _LIFECYCLE_NAME.fullmatch(word.text):
            advice = "Use the letters A to Z, digits, `_` and `-`, 100 at most."
            self.report("structure", word.place, f"'{word}' cannot be {what}.", advice)
        return word

    def check_name(self, name: Word, what: str) -> None:
        if not _NAME.fullmatch(name.text):
            advice = "Use the letters A to Z, digits and `_`, 100 at most, and begin with a letter."
            self.report("structure", name.place, f"'{name}' cannot be the name of {what}.", advice)

    def count(self, node: Node, what: str) -> int:
        text = self.text(node, what) or "1"
        if text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) > 0:
            return int(text)
        message = f"{_capital(what)} is '{text}'."
        self.report("structure", self.place(node), message, "Write a whole number, 1 or higher.")
        return 1

    def choice(self, node: Node | None, words: type[Choice], what: str, at: Place) -> Choice | None:
        known = [str(word) for word in words]
        if node is None:
            self.report("structure", at, f"The file does not define {what}.", f"It is one of {', '.join(known)}.")
            return None
        text = self.text(node, what)
        if text is None:
            return None
        if text not in known:
            advice = f"Write one of {', '.join(known)}."
            self.report("structure", self.place(node), f"'{text}' cannot be {what}.", advice)
            return None
        return words(text)

    def flag(self, keys: dict[str, Node], key: str, *, default: bool) -> bool:
        node = keys.get(key)
        if node is None:
            return default
        if isinstance(node, Scalar) and node.value in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return node.value.lower() == "true"
        self.report("structure", self.place(node), f"`{key}` must be true or false.", "Write `true` or `false`.")
        return default

    def duration(self, node: Node, what: str) -> float | None:
        text = self.text(node, what)
        if text is None:
            return None
        seconds = parse_duration(text)
        if seconds is None:
            self.report("structure", self.place(node), f"'{text}' is not a duration.", "Write 90s, 15m, 1h30m or 2d.")
        return seconds


def _capital(what: str) -> str:
    return what[:1].upper() + what[1:]
