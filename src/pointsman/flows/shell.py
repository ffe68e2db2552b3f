"""Where the expressions of a script stand, so that their values can be quoted and never become part of the program.

Quoting a value is easy; knowing what it stands in is not: between double quotes `'$(rm …)'` is run. So the script is followed
from its beginning, and where that leaves any doubt (a here-document, backticks) the expression is refused instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from shlex import quote
from types import MappingProxyType

from pointsman.errors import ExpressionFailed
from pointsman.flows.expressions import split_text

_HERE = re.compile(r"<<-?[ \t]*(?:'(?P<single>[^'\n]+)'|\"(?P<double>[^\"\n]+)\"|\\?(?P<bare>[^\s;&|<>()'\"]+))")
_WORD_ENDS = " \t\n;&|()<>"


class Context(Enum):
    """What an expression stands in."""

    PLAIN = "plain"
    SINGLE = "between '…'"
    DOUBLE = 'between "…"'
    COMMENT = "in a comment"
    HERE = "in a here-document"
    BACKTICK = "between backticks"
    BRACES = "inside ${…}"
    UNSURE = "here"


_DOUBTFUL = (Context.HERE, Context.BACKTICK, Context.BRACES, Context.UNSURE)


def quote_for(context: Context, value: str) -> str:
    """A value as one piece of text where it stands; quotes around it are closed before it and opened again behind."""
    if "\0" in value:
        raise ExpressionFailed("A value contains a NUL character, which no program can be given.")
    match context:
        case Context.PLAIN:
            return quote(value)
        case Context.SINGLE:
            return f"'{quote(value)}'"
        case Context.DOUBLE:
            return f'"{quote(value)}"'
        case Context.COMMENT:
            return quote(value.replace("\n", " ").replace("\r", " "))
        case _:
            raise ExpressionFailed(explain_doubt(context))


def explain_doubt(context: Context) -> str:
    return f"A value {context.value} cannot be quoted safely for the shell. Put it into `env`, and use the variable here."


def doubtful(text: str) -> list[tuple[int, Context]]:
    """The expressions of a script that cannot be quoted where they stand."""
    return [(start, context) for start, context in track_contexts(text).items() if context in _DOUBTFUL]


@lru_cache(maxsize=1024)
def track_contexts(text: str) -> Mapping[int, Context]:
    """The context of every expression of a script, by where it begins."""
    tracker = _Tracker()
    contexts: dict[int, Context] = {}
    for part in split_text(text):
        if part.is_expression:
            contexts[part.start] = tracker.context
            tracker.put_value()
        else:
            tracker.follow(part.text)
    return MappingProxyType(contexts)


class _Tracker:
    """Follows a script letter by letter; `_stack` has what is open, the innermost last."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._comment = False
        self._word_begins = True
        self._awaited: list[str] = []
        """The ends of here-documents that begin with the next line."""
        self._here: list[str] = []
        self._line = ""
        self._unsure = False

    @property
    def context(self) -> Context:
        if self._unsure:
            return Context.UNSURE
        if self._here:
            return Context.HERE
        if self._comment:
            return Context.COMMENT
        if "`" in self._stack:
            return Context.BACKTICK
        if "{" in self._stack:
            return Context.BRACES
        return {"'": Context.SINGLE, '"': Context.DOUBLE}.get(self._stack[-1] if self._stack else "", Context.PLAIN)

    def put_value(self) -> None:
        self._word_begins = False
        self._line += "\0"

    def follow(self, text: str) -> None:
        at = 0
        while at < len(text):
            at += self._step(text, at)
        # A backslash would take the quote away from the value, and a value cannot say where a document ends.
        self._unsure |= at > len(text) or text.rstrip(" \t-").endswith("<<")

    def _step(self, text: str, at: int) -> int:
        """Take in what stands at `at`; returns how many letters that was."""
        letter, inside = text[at], self._stack[-1] if self._stack else ""
        if self._here:
            self._follow_here(letter)
            return 1
        if letter == "\n" and inside != "'":
            self._comment, self._word_begins = False, True
            if self._awaited and inside != '"':
                self._here, self._awaited, self._line = self._awaited, [], ""
            return 1
        if self._comment:
            return 1
        begins, self._word_begins = self._word_begins, letter in _WORD_ENDS
        if inside == "'":
            if letter == "'":
                self._stack.pop()
            return 1
        if letter == "\\":
            return 2
        if text.startswith(("$(", "${"), at):
            self._stack.append(text[at + 1])
            self._word_begins = text[at + 1] == "("
            return 2
        if inside == '"':
            self._toggle(letter, '"', "`")
            return 1
        return self._step_plain(text, at, begins=begins)

    def _step_plain(self, text: str, at: int, *, begins: bool) -> int:
        letter, inside = text[at], self._stack[-1] if self._stack else ""
        if self._is_doubtful(text, at, begins=begins):
            self._unsure = True
        elif letter == "#" and begins and inside != "{":
            self._comment = True
        elif letter == "<" and (match := _HERE.match(text, at)) and not text.startswith("<<<", at):
            self._awaited.append(match["single"] or match["double"] or match["bare"])
            return match.end() - at
        elif letter == "<" and text.startswith("<<<", at):
            return 3
        elif letter == "(":
            self._stack.append("(")
        elif (letter, inside) in ((")", "("), ("}", "{")):
            self._stack.pop()
        else:
            self._toggle(letter, "'", '"', "`")
        return 1

    def _is_doubtful(self, text: str, at: int, *, begins: bool) -> bool:
        """What shells disagree about, or what takes a whole shell to follow; nothing behind it is certain."""
        if text.startswith("$'", at):
            return True
        if begins and self._stack and text.startswith("case", at):
            return True  # its lone `)` looks like an end
        return (text[at] in "'\"" and "{" in self._stack) or (text[at] in "'\"#" and "`" in self._stack)

    def _toggle(self, letter: str, *quotes: str) -> None:
        if letter in quotes:
            if letter in self._stack and (self._stack[-1] == letter or letter == "`"):
                while self._stack.pop() != letter:
                    pass
            else:
                self._stack.append(letter)

    def _follow_here(self, letter: str) -> None:
        if letter != "\n":
            self._line += letter
            return
        if self._line.lstrip("\t") == self._here[0]:
            self._here.pop(0)
        self._line = ""
