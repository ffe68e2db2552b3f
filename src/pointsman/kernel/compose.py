"""Parses YAML 1.2 text into nodes with lines and columns, or returns a finding.

There are two parsers. libyaml is more than ten times as fast. ruamel reads, or explains, everything else: what libyaml
refuses, and the few things that mean something else to it. Where PyYAML comes without libyaml, ruamel reads everything.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import yaml
from msgspec import Struct
from yaml import events

from pointsman.errors import Finding, Place

Composed = TypeVar("Composed", bound="Node")

MAX_CHARACTERS = 1 << 20
MAX_VALUES = 100_000
"""The slow parser needs some microseconds for a character, and some hundred for a value."""


class Node(Struct, eq=False):
    """A value, and where it begins; lines and columns start at 0."""

    line: int
    column: int


class Scalar(Node, eq=False):
    value: str
    tag: str
    """`str`, `int`, `float`, `bool` or `null`; any other tag in full."""
    style: str | None
    """The quote, `|` or `>`; None for a plain scalar."""
    start: int
    """With `end`, where its source is in the text."""
    end: int
    end_line: int


class Sequence(Node, eq=False):
    items: list[Node]


class Mapping(Node, eq=False):
    entries: list[tuple[Node, Node]]


def compose(text: str, file: str) -> tuple[Node | None, Finding | None]:
    """The root node (None if the text is empty), or what is wrong with the text."""
    if len(text) > MAX_CHARACTERS:
        return None, _too_large(file, f"more than {MAX_CHARACTERS:,} characters")
    try:
        return compose_fast(text) or compose_slowly(text), None
    except OverflowError:
        return None, _too_large(file, f"more than {MAX_VALUES:,} values")
    except Exception as error:  # noqa: BLE001 - ruamel raises undocumented errors for broken text
        advice = "Fix the syntax here: indent with spaces, and quote text that contains `: `, ` #` or `{`."
        return None, Finding("yaml", _yaml_place(error, text, file), _yaml_message(error), advice)


def _too_large(file: str, what: str) -> Finding:
    return Finding("yaml", Place(file, 1, 1), f"The file is too large: it has {what}.", "Split it into several files.")


# ── with libyaml ──

_DEEPEST = 100
_UNUSUAL = re.compile(r"[^\n -~\xa0-\u2027\u202a-\ufefe\uff00-\U0010ffff]|^%|[|>][-+1-9]{0,2}#", re.MULTILINE)
"""Line breaks of YAML 1.1, tabs, control characters, surrogates, directives, and comments right after the `|` of a block."""
_AFTER_ANCHOR = ("", " ", "\n", ",", "]", "}")
_PLAIN = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<bool>true|True|TRUE|false|False|FALSE)"
    r"|(?P<float>[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<int>(?=[-+0-9])(?:[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?[0-9_]+|[-+]?0x[0-9a-fA-F_]+))"
)
"""Plain scalars of YAML 1.2 that are more than text. The names of the groups are tags."""
_FIRST = frozenset("~nNtTfF-+.0123456789")
"""What these begin with."""


class _Unusual(Exception):
    """The other parser has to read a text."""


def compose_fast(text: str) -> Mapping | None:
    """The root node; None if the other parser has to read the text."""
    if not yaml.__with_libyaml__ or _UNUSUAL.search(text):
        return None
    try:
        return _FastComposer(text).root()
    except OverflowError:
        raise
    except Exception:  # noqa: BLE001 - the other parser says what is wrong, if anything is
        return None


class _FastComposer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._next: Any = yaml.CSafeLoader(text).get_event
        self._anchors: dict[str, Node] = {}
        self._values = 0

    def root(self) -> Mapping:
        self._next()  # the stream begins
        if type(self._next()) is events.StreamEndEvent:
            raise _Unusual
        root = self._compose(self._next(), 0)
        self._next()  # the document ends
        if not isinstance(root, Mapping) or type(self._next()) is not events.StreamEndEvent:
            raise _Unusual
        return root

    def _compose(self, event: Any, depth: int) -> Node:
        self._values += 1
        if self._values > MAX_VALUES:
            raise OverflowError
        kind, mark = type(event), event.start_mark
        if event.anchor is not None and not self._knows_anchor(event.anchor, mark.index + 1):
            raise _Unusual
        if kind is events.AliasEvent:
            return self._anchors[str(event.anchor)]
        if event.tag is not None or depth > _DEEPEST:
            raise _Unusual
        if kind is events.ScalarEvent:
            value, style, end = event.value, event.style or None, event.end_mark
            tag = "str" if style or (value and value[0] not in _FIRST) else _resolve(value)
            return self._keep(event, Scalar(mark.line, mark.column, value, tag, style, mark.index, end.index, end.line))
        if kind is events.SequenceStartEvent:
            sequence = self._keep(event, Sequence(mark.line, mark.column, []))
            while type(event := self._next()) is not events.SequenceEndEvent:
                sequence.items.append(self._compose(event, depth + 1))
            return sequence
        mapping = self._keep(event, Mapping(mark.line, mark.column, []))
        while type(event := self._next()) is not events.MappingEndEvent:
            key = self._compose(event, depth + 1)
            mapping.entries.append((key, self._compose(self._next(), depth + 1)))
        return mapping

    def _knows_anchor(self, name: str, start: int) -> bool:
        """Whether all of its name is in ASCII, as libyaml wants it."""
        end = start + len(name)
        return self._text[end : end + 1] in _AFTER_ANCHOR

    def _keep(self, event: Any, node: Composed) -> Composed:
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node


def _resolve(value: str) -> str:
    match = _PLAIN.fullmatch(value)
    return match.lastgroup or "null" if match else "str"


# ── with ruamel ──


def compose_slowly(text: str) -> Node | None:
    """The root node; whatever ruamel raises, or OverflowError, where there is none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer

    class BoundedComposer(Composer):
        """Gives up instead of reading for minutes."""

        values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.values += 1
            if self.values > MAX_VALUES:
                raise OverflowError
            return super().compose_node(parent, index)

    parser = YAML(typ="safe", pure=True)
    parser.Composer = BoundedComposer
    parser.composer.warn_double_anchors = False
    root = parser.compose(text)
    return _adopt(root, {}) if root is not None else None


_TAGS = {f"tag:yaml.org,2002:{tag}": tag for tag in ("str", "int", "float", "bool", "null")} | {
    f"tag:yaml.org,2002:{tag}": "str" for tag in ("timestamp", "value", "merge")
}


def _adopt(node: Any, adopted: dict[int, Node]) -> Node:
    """A node of ruamel as our own; an alias is the same node again."""
    if id(node) in adopted:
        return adopted[id(node)]
    line, column = node.start_mark.line, node.start_mark.column
    if node.id == "sequence":
        sequence = adopted[id(node)] = Sequence(line, column, [])
        sequence.items += [_adopt(each, adopted) for each in node.value]
        return sequence
    if node.id == "mapping":
        mapping = adopted[id(node)] = Mapping(line, column, [])
        mapping.entries += [(_adopt(key, adopted), _adopt(value, adopted)) for key, value in node.value]
        return mapping
    start, end = node.start_mark.index, node.end_mark
    tag = _TAGS.get(str(node.tag), str(node.tag))
    adopted[id(node)] = Scalar(line, column, str(node.value), tag, node.style or None, start, end.index, end.line)
    return adopted[id(node)]


def _yaml_place(error: Exception, text: str, file: str) -> Place:
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return Place(file, mark.line + 1, mark.column + 1)
    if isinstance(error, ReaderError):
        lines = re.split(r"\r\n?|\n", text[: error.position].removeprefix("\ufeff"))
        return Place(file, len(lines), len(lines[-1]) + 1)
    return Place(file, 1, 1)


def _yaml_message(error: Exception) -> str:
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    if isinstance(error, MarkedYAMLError):
        problem = error.problem or error.context or "it cannot be read"
        if "another document" in problem:
            return "The file contains more than one document."
    elif isinstance(error, ReaderError):
        problem = (
            f"it contains the character U+{ord(error.character):04X}" if isinstance(error.character, str) else error.reason
        )
    elif isinstance(error, RecursionError):
        problem = "it is nested too deeply"
    else:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
    return f"This is not YAML: {problem.rstrip('.')}."
