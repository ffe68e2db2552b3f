"""The context of each expression in a shell script, so that its value can be quoted and never becomes part of the program.

Quoting a value is easy; knowing its context is not: between double quotes, `'$(rm …)'` is executed. So the script is followed
from its start. Where shells disagree, or where only a complete shell could tell, every later expression is refused. So is an
expression in a word that is executed once more, like the script of `sh -c` (`commands.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from msgspec import Struct, field

from pointsman.errors import ExpressionFailed
from pointsman.flows.commands import VALUE, declares_types, is_executed
from pointsman.flows.expressions import split_text

_BLANK = " \t\n"
_WORD_ENDS = " \t\n;&|()<>"
_HERE = re.compile(
    r"<<(?P<tabs>-?)[ \t]*(?P<quote>['\"\\]?)(?P<end>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<close>['\"]?)(?=[ \t\n;&|<>])"
)
_HERE_SIMPLE = re.compile(r"\$\{[A-Za-z0-9_]+\}|\$\([A-Za-z0-9_ ./+%:-]*\)")
_HERE_DOUBTFUL = re.compile(r"`|\$[\[({]|\\$")
_PARAMETER = re.compile(r"\$\{(?:[#!]?(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])|[#?$!-](?=\}))")
_SPECIAL = re.compile(r"\$[A-Za-z0-9_@*#?$!-]")
_BRACKET = re.compile(r"\[[A-Za-z0-9_.,:^!*@$+-]+\]|\[(?=[ \t])")
_CHANGES_GRAMMAR = re.compile(r"(?:alias|shopt|history|let)\b|set[ \t]+[-+][A-Za-z]*(?:H|o[ \t]+hist)")
_ESCAPED = re.compile(r'\\[$`"\\\n]')
"""What a backslash escapes between double quotes. Before anything else, it is an ordinary character."""
_DESCRIPTOR = re.compile(r"[0-9]+|\{\w+\}")
_TO_DESCRIPTOR = re.compile(r"[<>]&(?:[0-9]+-?|-)(?=[ \t\n;&|<>)])")
_NOT_IN_COMMENT = re.compile(r"[^A-Za-z0-9_ .,:/@+-]")

_SHIFTS, _COMMANDS, _NESTED = "$((", "((", "((…("
"""`$((…))` is arithmetic in every shell, `((…))` may be two subshells; and parentheses inside either."""
_ARITHMETIC = (_SHIFTS, _COMMANDS, _NESTED)
_FORBIDDEN = {
    "{": "'\"`\\(){<>",
    "`": "'\"\\#(){}<",
    "[[": "`\\#)",
    **dict.fromkeys(_ARITHMETIC, "'\"`\\#"),
}
"""Characters that make the end of a construct uncertain, by construct."""


class Context(Enum):
    """The context of an expression."""

    PLAIN = "plain"
    SINGLE = "between '…'"
    DOUBLE = 'between "…"'
    COMMENT = "in a comment"
    HERE = "in a here-document"
    BACKTICK = "between backticks"
    BRACES = "inside ${…}"
    ARITHMETIC = "inside ((…))"
    CONDITION = "inside [[…]]"
    EXECUTED = "in text that is executed once more"
    UNSURE = "here"


_QUOTABLE = (Context.PLAIN, Context.SINGLE, Context.DOUBLE, Context.COMMENT)
_CONTEXTS = {
    "`": Context.BACKTICK,
    "{": Context.BRACES,
    **dict.fromkeys(_ARITHMETIC, Context.ARITHMETIC),
    "[[": Context.CONDITION,
}


def quote_for(context: Context, value: str) -> str:
    """Quote a value for its context; surrounding quotes are closed before it and reopened after it."""
    if "\0" in value:
        raise ExpressionFailed("A value contains a NUL character, which cannot be passed to a program.")
    match context:
        case Context.PLAIN:
            return _quote(value)
        case Context.SINGLE:
            return f"'{_quote(value)}'"
        case Context.DOUBLE:
            return f'"{_quote(value)}"'
        case Context.COMMENT:
            return _NOT_IN_COMMENT.sub("_", value)
        case _:
            raise ExpressionFailed(explain_doubt(context))


def _quote(value: str) -> str:
    """Always quoted: unquoted, `if` is a keyword, `2` before `>` a file descriptor, and `PATH=x` an assignment."""
    return "'" + value.replace("'", "'\"'\"'") + "'"


def explain_doubt(context: Context) -> str:
    advice = "Put it into `env`, and use the variable here."
    if context is Context.ARITHMETIC:
        advice = 'Put it into `env`, make sure that it is a number, and use "$NAME" here; or compute it in the expression.'
    if context is Context.EXECUTED:
        advice = 'Put it into `env`, and use "$NAME" in the inner script; and take no value as the name of a variable.'
    return f"A value {context.value} cannot be quoted safely for the shell. {advice}"


def doubtful(text: str) -> list[tuple[int, Context]]:
    """The expressions of a script that cannot be quoted safely."""
    return [(start, context) for start, context in track_contexts(text).items() if context not in _QUOTABLE]


@lru_cache(maxsize=1024)
def track_contexts(text: str) -> Mapping[int, Context]:
    """The context of every expression of a script, by its offset."""
    tracker = _Tracker()
    contexts: dict[int, Context] = {}
    for part in split_text(text):
        if part.is_expression:
            contexts[part.start] = tracker.context
            tracker.put_value(part.start)
        else:
            tracker.follow(part.text)
    executed = {start: Context.EXECUTED for start in tracker.find_executed() if contexts[start] in _QUOTABLE}
    return MappingProxyType(contexts | executed)


class _Here(Struct, frozen=True):
    """A here-document that is open, or starts with the next line."""

    end: str
    strips_tabs: bool
    is_raw: bool
    depth: int
    """How many constructs were open at the `<<`."""


class _Command(Struct):
    """The words of a command so far, without their quotes."""

    words: list[str] = field(default_factory=list)
    word: str | None = None
    values: list[int] = field(default_factory=list)
    """The offsets of the expressions in the present word."""
    is_target: bool = False
    """The present or next word belongs to a redirection, which may come before the name of the command."""

    def add(self, text: str) -> None:
        self.word = (self.word or "") + text


class _Tracker:
    """Follows a script character by character; `_open` has the open constructs, the innermost last."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._comment = False
        self._previous = "\n"
        """The previous character; `x` if it was escaped."""
        self._awaited: list[_Here] = []
        self._here: list[_Here] = []
        self._line = ""
        self._unsure = False
        self._commands = [_Command()]
        """The innermost last: one for the script, and one for each open parenthesis."""
        self._has_types = False
        self._executed: list[int] = []

    @property
    def context(self) -> Context:
        if self._unsure:
            return Context.UNSURE
        if self._here:
            return Context.HERE
        for opened in self._open:
            if opened in _CONTEXTS:
                return _CONTEXTS[opened]
        if self._comment:
            return Context.COMMENT
        return {"'": Context.SINGLE, '"': Context.DOUBLE}.get(self._inside, Context.PLAIN)

    @property
    def _inside(self) -> str:
        return self._open[-1] if self._open else ""

    def put_value(self, start: int) -> None:
        self._previous = "'"
        self._line += VALUE
        if not self._here and not self._comment:
            self._commands[-1].add(VALUE)
            self._commands[-1].values.append(start)

    def find_executed(self) -> list[int]:
        """The expressions in words that are executed once more; call it at the end."""
        for command in self._commands:
            self._end_word(command)
        return self._executed

    def follow(self, text: str) -> None:
        at = 0
        while at < len(text) and not self._unsure:
            inside, depth, is_text = self._inside, len(self._open), self._comment or bool(self._here)
            taken = self._step(text, at)
            piece = text[at : at + taken]
            if not is_text:
                self._gather(piece, inside, len(self._open) - depth)
            if piece != "\\\n":
                self._previous = "x" if len(piece) == 2 and piece[0] == "\\" else piece[-1]
            at += taken
        self._unsure |= at > len(text)  # a final backslash would escape the quote of the value

    def _gather(self, piece: str, inside: str, deeper: int) -> None:
        """Add a piece to the words of its command; `inside` is the construct before it, `deeper` how many it has opened."""
        command = self._commands[-1]
        if deeper > 0 and self._inside == "(":
            command.add(piece) if piece[0] == "$" else self._end_command(command)
            self._commands.append(_Command())
        elif deeper > 0:
            command.add("" if piece in ("'", '"') else piece)
        elif deeper < 0 and inside == "(":
            self._end_command(command)
            self._commands.pop()
        elif inside in ("'", '"'):
            command.add("" if deeper else piece[1:] if inside == '"' and _ESCAPED.fullmatch(piece) else piece)
        elif inside in _FORBIDDEN:
            command.add(piece)
        elif piece[0] in "<>" or (piece == "|" and self._previous == ">"):
            self._redirect(command, piece)
        elif piece[0] in ";&|\n)":
            self._end_command(command)
        elif piece[0] in " \t" or self._comment:
            self._end_word(command)
        elif piece != "\\\n":
            command.add(piece.removeprefix("\\"))

    def _redirect(self, command: _Command, piece: str) -> None:
        if command.word and _DESCRIPTOR.fullmatch(command.word):
            command.word = None
        self._end_word(command)
        command.is_target = piece in ("<", ">", "<<<", "|")

    def _end_word(self, command: _Command) -> None:
        if command.word is None:
            return
        if not command.is_target:
            command.words.append(command.word)
            if command.values and is_executed(command.words, has_types=self._has_types):
                self._executed += command.values
            if command.word == "{":
                command.words.clear()
        command.is_target = False
        command.word = None
        command.values.clear()

    def _end_command(self, command: _Command) -> None:
        self._end_word(command)
        command.is_target = False
        self._has_types |= declares_types(command.words)
        command.words.clear()

    def _doubt(self) -> int:
        self._unsure = True
        return 1

    def _push(self, opened: str, taken: int = 1) -> int:
        self._open.append(opened)
        return taken

    def _pop(self, taken: int = 1) -> int:
        self._open.pop()
        if self._awaited and len(self._open) < self._awaited[0].depth:
            return self._doubt()
        return taken

    def _step(self, text: str, at: int) -> int:
        """Process the text at `at`; returns the number of characters."""
        letter, inside = text[at], self._inside
        if self._here:
            return self._follow_here(letter)
        if letter == "\n":
            return self._end_line()
        if self._comment:
            return 1
        if inside == "'":
            return self._pop() if letter == "'" else 1
        if letter in _FORBIDDEN.get(inside, ""):
            return self._doubt()
        if letter == "\\":
            return self._escape(text, at)
        if letter == "$":
            return self._expand(text, at)
        if inside == '"':
            return self._pop() if letter == '"' else self._push("`") if letter == "`" else 1
        if inside in _FORBIDDEN:
            return self._step_narrow(text, at)
        return self._step_plain(text, at)

    def _end_line(self) -> int:
        self._comment = False
        if self._inside in ("{", "`"):
            return self._doubt()
        if self._awaited:
            if len(self._open) != self._awaited[0].depth:
                return self._doubt()
            self._here, self._awaited, self._line = self._awaited, [], ""
        return 1

    def _escape(self, text: str, at: int) -> int:
        """A backslash; before a line break both vanish, and the characters around them may form one token, like `$(`."""
        if text.startswith("\\\n", at):
            vanishes = self._previous != "$" if self._inside == '"' else self._previous in _BLANK
            if self._awaited or not vanishes:
                return self._doubt()
        return 2

    def _expand(self, text: str, at: int) -> int:
        rest = text[at + 1 : at + 2]
        if rest == "[" or (self._inside == "`" and rest in tuple("({'\"")):
            return self._doubt()
        if rest == "(":
            return self._push(_SHIFTS, 3) if text.startswith("$((", at) else self._push("(", 2)
        if rest == "{":
            match = _PARAMETER.match(text, at)
            return self._push("{", match.end() - at) if match else self._doubt()
        if rest in ("'", '"'):
            return 1 if self._inside == '"' else self._doubt()
        return 2 if _SPECIAL.match(text, at) else 1

    def _step_narrow(self, text: str, at: int) -> int:
        """Inside a construct in which expressions are refused, so that only its end matters."""
        letter, inside = text[at], self._inside
        if (inside, letter) in (("{", "}"), ("`", "`"), (_NESTED, ")")):
            return self._pop()
        if inside == "[[":
            if letter in "'\"":
                return self._push(letter)
            if text.startswith("<<", at):
                return self._doubt()
            return self._pop(2) if text.startswith("]]", at) and self._previous in _BLANK else self._nest(letter)
        if inside in _ARITHMETIC:
            if letter == ")":
                return self._pop(2) if text.startswith("))", at) else self._doubt()
            if text.startswith("<<", at) and _COMMANDS in self._open:
                return self._doubt()
            return self._nest(letter)
        return 1

    def _nest(self, letter: str) -> int:
        return self._push(_NESTED) if letter == "(" else 1

    def _step_plain(self, text: str, at: int) -> int:
        letter = text[at]
        if self._previous in _WORD_ENDS and self._changes_grammar(text, at):
            return self._doubt()
        match letter:
            case "'" | '"' | "{" | "}" if "{" in self._open:
                return self._doubt()
            case "'" | '"' | "`":
                return self._push(letter)
            case "#":
                return self._begin_comment()
            case "<" if text.startswith("<<", at):
                return 3 if text.startswith("<<<", at) else self._announce_here(text, at)
            case "&" if text.startswith(">", at + 1):
                return self._doubt()  # a redirection of bash, and two commands elsewhere
            case "<" | ">" if text.startswith("&", at + 1):
                match = _TO_DESCRIPTOR.match(text, at)
                return match.end() - at if match else self._doubt()  # bash expands this twice
            case "(":
                return self._open_parenthesis(text, at)
            case ")" if self._open:
                return self._pop()
            case "[":
                return self._step_bracket(text, at)
        return 1

    def _open_parenthesis(self, text: str, at: int) -> int:
        """A subshell or a function definition; after any other word it is an array or a pattern of bash."""
        if self._previous not in _WORD_ENDS and not text.startswith("()", at):
            return self._doubt()
        return self._push(_COMMANDS, 2) if text.startswith("((", at) else self._push("(")

    def _changes_grammar(self, text: str, at: int) -> bool:
        """The `)` of a case looks like an end; an alias may contain an unbalanced quote; `let` is arithmetic."""
        return bool(self._open and text.startswith("case", at)) or _CHANGES_GRAMMAR.match(text, at) is not None

    def _begin_comment(self) -> int:
        """After `$(…)` a `#` is part of the word, after `(…)` it is not; after `>` shells differ."""
        if self._previous in "&)<>":
            return self._doubt()
        self._comment = self._previous in _WORD_ENDS
        return 1

    def _announce_here(self, text: str, at: int) -> int:
        match = _HERE.match(text, at)
        depth = len(self._open)
        if match is None or match["close"] != match["quote"].strip("\\") or any(each.depth != depth for each in self._awaited):
            return self._doubt()
        self._awaited.append(_Here(match["end"], bool(match["tabs"]), bool(match["quote"]), depth))
        return match.end() - at

    def _step_bracket(self, text: str, at: int) -> int:
        """`a[…]=` is arithmetic in some shells, where quotes do not help; `[ … ]` is an ordinary command."""
        begins = self._previous in _WORD_ENDS
        if begins and re.match(r"\[\[[ \t]", text[at : at + 3]):
            return self._push("[[", 2)
        match = _BRACKET.match(text, at)
        if match is None or (match.end() - at == 1 and not begins):
            return self._doubt()
        return match.end() - at

    def _follow_here(self, letter: str) -> int:
        if letter != "\n":
            self._line += letter
            return 1
        here, line = self._here[0], self._line
        self._line = ""
        if here.strips_tabs:
            line = line.lstrip("\t")
        if line == here.end:
            self._here.pop(0)
        elif (
            line.startswith(here.end)  # inside $(…), bash accepts `EOF)` as the end
            or (not here.is_raw and _HERE_DOUBTFUL.search(_HERE_SIMPLE.sub("", line)))
            or (here.depth and any(sign in line for sign in "'\"`()\\#"))
        ):
            return self._doubt()
        return 1
