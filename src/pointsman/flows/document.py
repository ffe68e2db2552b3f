"""A YAML text as plain values, with a parallel tree of their positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pointsman.errors import Finding, Place
from pointsman.flows import kinds
from pointsman.flows.values import Content, content_of
from pointsman.kernel.compose import compose

Path = tuple[str | int, ...]
"""Where a value is in a flow, as `("tasks", "build", "needs", 0)`."""
MAX_NODES = 200_000
MAX_DEPTH = 100
_TAG = "tag:yaml.org,2002:"
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


@dataclass(slots=True)
class Spot:
    """The position of a value: its key, the value, its source text, and the spots of the values in it."""

    key: Place
    value: Place
    source: str = ""
    inside: dict[str, Spot] | list[Spot] | None = None

    def find(self, path: Path) -> Spot:
        """The spot of a path, or of its nearest ancestor."""
        spot = self
        for step in path:
            inside = spot.inside
            spots: dict[Any, Spot] = dict(enumerate(inside)) if isinstance(inside, list) else inside or {}
            if step not in spots:
                return spot
            spot = spots[step]
        return spot

    def place_of(self, snippet: str) -> Place:
        """Where a part of the source text begins; where the value begins if it is not found."""
        at = self.source.find(snippet) if snippet else -1
        if at < 0:
            return self.value
        lines = self.source[:at].split("\n")
        start = self.value
        if len(lines) == 1:
            return Place(start.file, start.line, start.column + at - self._quote)
        return Place(start.file, start.line + len(lines) - 1, len(lines[-1]) + 1)

    @property
    def _quote(self) -> int:
        """The position of a quoted value is after the quote, but its source text starts with it."""
        return 1 if self.source[:1] in ("'", '"') else 0


@dataclass(slots=True)
class Document:
    """The values of a text, and what is wrong with its YAML."""

    value: Any
    spot: Spot
    findings: list[Finding] = field(default_factory=list)


def read_document(text: str, file: str) -> Document:
    """Read a YAML text; values that cannot be read are left out and reported."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    top = Place(file, 1, 1)
    root, broken = compose(text, file)
    if broken and "more than one document" in broken.message:
        broken = replace(broken, advice="Keep one flow per file: move what follows the `---` to another file, or remove it.")
    if broken or root is None:
        empty = Finding("yaml", top, "The file is empty.", "Start with `name:` and `tasks:`.")
        return Document(None, Spot(top, top), [broken or empty])
    builder = _Builder(text, file)
    value, spot = builder.build(root, (), Mode.KEYS, top)
    return Document(None if builder.is_too_large else value, spot, builder.findings)


class _Builder:
    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._nodes = self._entries_seen = 0
        self._found: dict[Finding, None] = {}
        """Each once: the target of an alias is built wherever the alias is used."""
        self.is_too_large = False

    @property
    def findings(self) -> list[Finding]:
        return list(self._found)

    def build(self, node: Node, path: Path, mode: Mode, key: Place) -> tuple[Any, Spot]:
        self._nodes += 1
        spot = Spot(key, self._place(node, key), self._source(node))
        if self.is_too_large or self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            self._report_size(spot.value)
            return None, spot
        if isinstance(node, MappingNode):
            return self._build_mapping(node, path, mode, spot), spot
        if isinstance(node, SequenceNode):
            pairs = [self.build(item, (*path, at), mode, self._place(item, key)) for at, item in enumerate(node.value)]
            spot.inside = [inner for _, inner in pairs]
            return [value for value, _ in pairs], spot
        return self._build_scalar(node, mode, spot), spot

    def _build_mapping(self, node: MappingNode, path: Path, mode: Mode, spot: Spot) -> dict[str, Any]:
        values: dict[str, Any] = {}
        spots: dict[str, Spot] = {}
        spot.inside = spots
        modes = _modes_of_task([str(key.value) for key, _ in node.value]) if path[:-1] == ("tasks",) else {}
        for name, inner, place, merged in self._entries(node):
            if name in values:
                if not merged:
                    self._report(place, f"`{name}` occurs twice.", "Keep one of them.")
                continue
            below = modes.get(name) or _mode_below(path, name, mode)
            values[name], spots[name] = self.build(inner, (*path, name), below, place)
        return values

    def _entries(self, node: MappingNode) -> Iterator[tuple[str, Node, Place, bool]]:
        """The entries of a mapping; those merged from others (`<<: *name`) come last."""
        merged: list[Node] = []
        for key, value in node.value:
            place = self._place(key, None)
            if self._has_seen_enough(place):
                return
            if not isinstance(key, ScalarNode):
                self._report(place, "A key must be text.", "Write `name: value`.")
            elif key.value == _MERGE and key.style is None:
                merged += value.value if isinstance(value, SequenceNode) else [value]
                self._entries_seen += len(merged)
            else:
                yield self._whole(str(key.value), place), value, place, False
        for other in merged:
            if not isinstance(other, MappingNode) or other is node:
                self._report(self._place(other, None), "Only a mapping can be merged.", "Write `<<: *name`.")
                continue
            for key, value in other.value:
                place = self._place(key, None)
                if self._has_seen_enough(place):
                    return
                if isinstance(key, ScalarNode) and key.value != _MERGE:
                    yield self._whole(str(key.value), place), value, place, True

    def _has_seen_enough(self, place: Place) -> bool:
        """Entries that exist already are not built, but reading them takes time, too."""
        self._entries_seen += 1
        if self._entries_seen > MAX_NODES:
            self._report_size(place)
        return self._entries_seen > MAX_NODES

    def _build_scalar(self, node: Node, mode: Mode, spot: Spot) -> Any:
        tag = str(node.tag).removeprefix(_TAG)
        text = self._whole(str(node.value), spot.value)
        if tag == "null":
            return None
        if tag not in _READERS:
            self._report(spot.value, f"The tag {node.tag} is not supported.", "Remove the tag.")
            return None
        if mode is Mode.TEXT:
            return text
        try:
            return _READERS[tag](text)
        except (ValueError, OverflowError):
            return text

    def _whole(self, text: str, place: Place) -> str:
        """The text with surrogate pairs, as JSON writes them, joined into characters."""
        if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._report(place, "This contains half of a surrogate pair.", "Fix its encoding: it is not valid Unicode.")
            return text.encode("ascii", "replace").decode()

    def _report_size(self, place: Place) -> None:
        if not self.is_too_large:
            self.is_too_large = True
            advice = "Split it, and look for an alias (`*name`) that contains itself or is merged very often."
            self._found[Finding("too-large", place, "The file is too large or nested too deeply.", advice)] = None

    def _report(self, place: Place, message: str, advice: str) -> None:
        self._found[Finding("structure", place, message, advice)] = None

    def _place(self, node: Node, key: Place | None) -> Place:
        """An empty value has the position of its key."""
        if key is not None and isinstance(node, ScalarNode) and not node.value and node.style is None:
            return key
        quote = 1 if isinstance(node, ScalarNode) and node.style in ("'", '"') else 0
        return Place(self._file, node.start_mark.line + 1, node.start_mark.column + 1 + quote)

    def _source(self, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            return ""
        return self._text[node.start_mark.index : node.end_mark.index]


def _modes_of_task(keys: list[str]) -> dict[str, Mode]:
    """How the keys of the runner of a task are read."""
    model = kinds.find_model(keys)
    contents = {key: content_of(model.model_fields[field]) for key, field in kinds.keys_of(model).items()} if model else {}
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
    "timestamp": str,
    "value": str,
    "merge": str,
    "int": _read_int,
    "float": _read_float,
    "bool": lambda text: text.lower() == "true",
}
