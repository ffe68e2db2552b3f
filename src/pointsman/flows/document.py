"""A YAML text as plain values, with a parallel tree of their positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from pointsman.errors import Finding, Place
from pointsman.flows import kinds
from pointsman.flows.values import Content, content_of
from pointsman.kernel.compose import Mapping, Node, Scalar, Sequence, compose

Path = tuple[str | int, ...]
"""Where a value is in a flow, as `("tasks", "build", "needs", 0)`."""
MAX_NODES = 200_000
MAX_DEPTH = 100
_MERGE = "<<"

TEXT_KEYS = frozenset(
    (
        *("name", "description", "lifecycle", "type", "env", "cwd", "tool", "needs", "needs_capabilities", "when", "mode"),
        *("shell", "run", "command", "call", "outputs", "file", "glob", "output"),
    )
)
"""Keys whose values are text, whatever YAML takes them for: `run: true`, `[pip, install, 1.10]`. A runner adds its own."""
DATA_KEYS = frozenset(("default", "choices", "foreach", "schema"))
"""Keys whose values are user data."""
NAMES = (("tasks",), ("inputs",))
"""Where the keys are names that users choose."""


class Mode(Enum):
    """How the values below a key are read."""

    KEYS = "keys"
    TEXT = "text"
    DATA = "data"


_MODES = {Content.TEXT: Mode.TEXT, Content.SHELL: Mode.TEXT, Content.DATA: Mode.DATA}


class _Source(Struct, frozen=True):
    """A text, and the name of its file."""

    file: str
    text: str

    def place(self, node: Node) -> Place:
        quote = 1 if isinstance(node, Scalar) and node.style in ("'", '"') else 0
        return Place(self.file, node.line + 1, node.column + 1 + quote)


class Spot(Struct, eq=False):
    """The position of a value, and the spots of the values in it. Places are made when a finding asks for them."""

    source: _Source
    node: Node | None
    key_node: Node | None = None
    above: Spot | None = None
    """The spot of the mapping or list that it is in."""
    inside: dict[str, Spot] | list[Spot] | None = None

    @property
    def key(self) -> Place:
        """Where its key begins; an entry of a list is its own key."""
        if self.key_node is not None:
            return self.source.place(self.key_node)
        if self.above is None or self.node is None:
            return Place(self.source.file, 1, 1)
        return self.above.key if _is_left_out(self.node) else self.source.place(self.node)

    @property
    def value(self) -> Place:
        """Where the value begins; one that is left out has the position of its key."""
        return self.key if self.node is None or _is_left_out(self.node) else self.source.place(self.node)

    def find(self, path: Path) -> Spot:
        """The spot of a path, or of its nearest ancestor."""
        spot = self
        for step in path:
            inside = spot.inside
            if isinstance(inside, list) and isinstance(step, int) and 0 <= step < len(inside):
                spot = inside[step]
            elif isinstance(inside, dict) and step in inside:
                spot = inside[str(step)]
            else:
                return spot
        return spot

    def place_of(self, snippet: str) -> Place:
        """Where a part of the source text begins; where the value begins if it is not found."""
        start = self.value
        source = self.source.text[self.node.start : self.node.end] if isinstance(self.node, Scalar) else ""
        at = source.find(snippet) if snippet else -1
        if at < 0:
            return start
        lines = source[:at].split("\n")
        if len(lines) == 1:
            # The position of a quoted value is after the quote, but its source text starts with it.
            return Place(start.file, start.line, start.column + at - (1 if source[:1] in ("'", '"') else 0))
        return Place(start.file, start.line + len(lines) - 1, len(lines[-1]) + 1)


def _is_left_out(node: Node) -> bool:
    return isinstance(node, Scalar) and not node.value and node.style is None


@dataclass(slots=True)
class Document:
    """The values of a text, and what is wrong with its YAML."""

    value: Any
    spot: Spot
    findings: list[Finding] = field(default_factory=list)


def read_document(text: str, file: str) -> Document:
    """Read a YAML text; values that cannot be read are left out and reported."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    source = _Source(file, text)
    root, broken = compose(text, file)
    if broken and "more than one document" in broken.message:
        broken = replace(broken, advice="Keep one flow per file: move what follows the `---` to another file, or remove it.")
    if broken or root is None:
        empty = Finding("yaml", Place(file, 1, 1), "The file is empty.", "Start with `name:` and `tasks:`.")
        return Document(None, Spot(source, None), [broken or empty])
    builder = _Builder(source)
    spot = Spot(source, root)
    value = builder.build(root, (), Mode.KEYS, spot)
    return Document(None if builder.is_too_large else value, spot, builder.findings)


class _Builder:
    def __init__(self, source: _Source) -> None:
        self._source = source
        self._nodes = self._entries_seen = 0
        self._found: dict[Finding, None] = {}
        """Each once: the target of an alias is built wherever the alias is used."""
        self.is_too_large = False

    @property
    def findings(self) -> list[Finding]:
        return list(self._found)

    def build(self, node: Node, path: Path, mode: Mode, spot: Spot) -> Any:
        self._nodes += 1
        if self.is_too_large or self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            self._report_size(spot.value)
            return None
        if isinstance(node, Scalar):
            return self._build_scalar(node, mode, spot)
        if isinstance(node, Mapping):
            return self._build_mapping(node, path, mode, spot)
        assert isinstance(node, Sequence)
        spots = spot.inside = [Spot(self._source, item, above=spot) for item in node.items]
        return [self.build(item, (*path, at), mode, spots[at]) for at, item in enumerate(node.items)]

    def _build_mapping(self, node: Mapping, path: Path, mode: Mode, spot: Spot) -> dict[str, Any]:
        values: dict[str, Any] = {}
        spots: dict[str, Spot] = {}
        spot.inside = spots
        is_task = len(path) == 2 and path[0] == "tasks"
        modes = _modes_of_task([key.value if isinstance(key, Scalar) else "" for key, _ in node.entries]) if is_task else {}
        for name, inner, key, merged in self._entries(node):
            if name in values:
                if not merged:
                    self._report(key, f"`{name}` occurs twice.", "Keep one of them.")
                continue
            below = modes.get(name) or _mode_below(path, name, mode)
            spots[name] = Spot(self._source, inner, key, spot)
            values[name] = self.build(inner, (*path, name), below, spots[name])
        return values

    def _entries(self, node: Mapping) -> Iterator[tuple[str, Node, Node, bool]]:
        """The entries of a mapping, with the node of the key; those merged from others (`<<: *name`) come last."""
        merged: list[Node] = []
        for key, value in node.entries:
            if self._has_seen_enough(key):
                return
            if not isinstance(key, Scalar):
                self._report(key, "A key must be text.", "Write `name: value`.")
            elif key.value == _MERGE and key.style is None:
                merged += value.items if isinstance(value, Sequence) else [value]
                self._entries_seen += len(merged)
            else:
                yield self._whole(key), value, key, False
        for other in merged:
            if not isinstance(other, Mapping) or other is node:
                self._report(other, "Only a mapping can be merged.", "Write `<<: *name`.")
                continue
            for key, value in other.entries:
                if self._has_seen_enough(key):
                    return
                if isinstance(key, Scalar) and key.value != _MERGE:
                    yield self._whole(key), value, key, True

    def _has_seen_enough(self, key: Node) -> bool:
        """Entries that exist already are not built, but reading them takes time, too."""
        self._entries_seen += 1
        if self._entries_seen > MAX_NODES:
            self._report_size(self._source.place(key))
        return self._entries_seen > MAX_NODES

    def _build_scalar(self, node: Scalar, mode: Mode, spot: Spot) -> Any:
        if node.tag == "null":
            return None
        if node.tag not in _READERS:
            self._found[Finding("structure", spot.value, f"The tag {node.tag} is not supported.", "Remove the tag.")] = None
            return None
        text = self._whole(node, spot)
        if mode is Mode.TEXT or node.tag == "str":
            return text
        try:
            return _READERS[node.tag](text)
        except (ValueError, OverflowError):
            return text

    def _whole(self, node: Scalar, spot: Spot | None = None) -> str:
        """The text with surrogate pairs, as JSON writes them, joined into characters."""
        text = node.value
        if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            advice = "Fix its encoding: it is not valid Unicode."
            place = spot.value if spot else self._source.place(node)
            self._found[Finding("structure", place, "This contains half of a surrogate pair.", advice)] = None
            return text.encode("ascii", "replace").decode()

    def _report_size(self, place: Place) -> None:
        if not self.is_too_large:
            self.is_too_large = True
            advice = "Split it, and look for an alias (`*name`) that contains itself or is merged very often."
            self._found[Finding("too-large", place, "The file is too large or nested too deeply.", advice)] = None

    def _report(self, node: Node, message: str, advice: str) -> None:
        self._found[Finding("structure", self._source.place(node), message, advice)] = None


def _modes_of_task(keys: list[str]) -> dict[str, Mode]:
    """How the keys of the runner of a task are read."""
    model = kinds.find_model(keys)
    return _modes_of(model) if model else {}


@cache
def _modes_of(model: type[BaseModel]) -> dict[str, Mode]:
    contents = {key: content_of(model.model_fields[field]) for key, field in kinds.keys_of(model).items()}
    return {key: _MODES[content] for key, content in contents.items() if content in _MODES}


def _mode_below(path: Path, name: str, mode: Mode) -> Mode:
    if mode is not Mode.KEYS or path in NAMES:
        return mode
    if name in TEXT_KEYS:
        return Mode.TEXT
    return Mode.DATA if name in DATA_KEYS else Mode.KEYS


def _read_int(text: str) -> int:
    digits = text.replace("_", "")
    try:
        return int(digits, 0)
    except ValueError:
        return int(digits)


def _read_float(text: str) -> float:
    named = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
    lower = text.lower()
    return named[lower] if lower in named else float(text.replace("_", ""))


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _read_int,
    "float": _read_float,
    "bool": lambda text: text.lower() == "true",
}
