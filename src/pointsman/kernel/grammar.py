"""The small language of transition lines: `A, B -> C : automatic trigger [guard, not guard] / effect !severity`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from pointsman.errors import Finding, LifecycleInvalid, Place, suggest
from pointsman.kernel.draft import Binding, Condition, MoveDraft, Word
from pointsman.kernel.machine import Severity

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(rf"\s*(?:(?P<word>{_WORD.pattern})|(?P<sign>->|\S))")
_AMOUNT = r"\d{1,9}(?:\.\d{1,9})?"
_DURATION = re.compile(rf"(?=.)(?:({_AMOUNT})d)?(?:({_AMOUNT})h)?(?:({_AMOUNT})m)?(?:({_AMOUNT})s)?", re.ASCII)
_MOVE_FORM = "The form is `FROM, FROM -> TO : automatic trigger [else guard, not guard] / effect, effect !severity`."
_BINDING_FORM = "Write `signal: trigger` or `signal: trigger from STATE`."
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Line(Struct, frozen=True):
    """A text and where it starts; a text that was folded over several lines has no positions inside."""

    text: str
    place: Place
    folded: bool = False


class _Cursor:
    """Reads one line, word by word; what does not follow the grammar is raised as a finding."""

    def __init__(self, line: Line, what: str, form: str) -> None:
        self._what, self._form = what, form
        self._tokens = [
            (match["word"] or match["sign"], match.start(match.lastgroup or 0)) for match in _TOKEN.finditer(line.text)
        ]
        self._line = line
        self._at = 0

    @property
    def place(self) -> Place:
        offset = self._tokens[self._at][1] if self._at < len(self._tokens) else len(self._line.text)
        place = self._line.place
        return place if self._line.folded else replace(place, column=place.column + offset)

    @property
    def done(self) -> bool:
        return self._at == len(self._tokens)

    def expected(self, expected: str, place: Place | None = None) -> LifecycleInvalid:
        message = f"{self._what} cannot be read: expected {expected}."
        return LifecycleInvalid([Finding("syntax", place or self.place, message, self._form)])

    def take(self, token: str) -> bool:
        """Consume `token` if it comes next."""
        if self.done or self._tokens[self._at][0] != token:
            return False
        self._at += 1
        return True

    def expect(self, token: str, expected: str) -> None:
        if not self.take(token):
            raise self.expected(expected)

    def word(self, expected: str) -> Word:
        if self.done or not _WORD.fullmatch(self._tokens[self._at][0]):
            raise self.expected(expected)
        word = Word(self._tokens[self._at][0], self.place)
        self._at += 1
        return word

    def words(self, expected: str) -> tuple[Word, ...]:
        """One or more words, separated by commas."""
        words = [self.word(expected)]
        while self.take(","):
            words.append(self.word(expected))
        return tuple(words)

    def end(self, expected: str) -> None:
        if not self.done:
            raise self.expected(expected)


def parse_moves(states: Line, rule: Line) -> Sequence[MoveDraft]:
    """Parse both halves of a transition line into one move for each source state."""
    cursor = _Cursor(states, "The transition", _MOVE_FORM)
    sources = cursor.words("a state name")
    cursor.expect("->", "'->' and the state that the transition leads to")
    target = cursor.word("the state that the transition leads to")
    cursor.end("one state after '->' and then ' : '")

    cursor = _Cursor(rule, "The transition", _MOVE_FORM)
    automatic = cursor.take("automatic")
    trigger = cursor.word("the name of a trigger")
    otherwise, conditions = _parse_conditions(cursor)
    effects = cursor.words("the name of an effect") if cursor.take("/") else ()
    severity = _parse_severity(cursor) if cursor.take("!") else Severity.INFO
    cursor.end("nothing more; the order is: trigger [guards] / effects !severity")
    return [MoveDraft(source, target, trigger, conditions, otherwise, automatic, severity, effects) for source in sources]


def _parse_conditions(cursor: _Cursor) -> tuple[bool, tuple[Condition, ...]]:
    conditions: list[Condition] = []
    if not cursor.take("["):
        return False, ()
    otherwise = cursor.take("else")
    if otherwise and cursor.take("]"):
        return True, ()
    while True:
        negated = cursor.take("not")
        conditions.append(Condition(cursor.word("the name of a guard"), negated))
        if not cursor.take(","):
            break
    cursor.expect("]", "',' and another guard, or ']'")
    return otherwise, tuple(conditions)


def _parse_severity(cursor: _Cursor) -> Severity:
    word = cursor.word("a severity")
    try:
        return Severity(word.text)
    except ValueError:
        expected = f"a severity after '!', not '{word}' ({suggest(word.text, Severity).rstrip('.')})"
        raise cursor.expected(expected, word.place) from None


def parse_binding(signal: Word, line: Line) -> Binding:
    """Parse `trigger`, or `trigger from STATE, STATE` where one trigger stands for several signals."""
    cursor = _Cursor(line, f"The binding of signal {signal}", _BINDING_FORM)
    trigger = cursor.word("the name of a trigger")
    states = cursor.words("a state name") if cursor.take("from") else ()
    cursor.end("'from' and the states in which the trigger stands for this signal, or nothing more")
    return Binding(signal, trigger, states)


def parse_duration(text: str) -> float | None:
    """Seconds in `90s`, `15m`, `1.5h`, `1h30m`, `2d`; None for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    return sum(float(amount or 0) * length for amount, length in zip(match.groups(), reversed(_SECONDS.values()), strict=True))


def format_duration(seconds: float) -> str:
    """Seconds as a lifecycle file writes them, in the largest unit that leaves no rest."""
    for unit, length in reversed(_SECONDS.items()):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"
