"""Parses YAML text into nodes with lines and columns, or returns a finding."""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import Node
from ruamel.yaml.reader import ReaderError

from pointsman.errors import Finding, Place

MAX_CHARACTERS = 1 << 20
MAX_VALUES = 100_000
"""The parser needs some microseconds for a character, and some hundred for a value."""


class _BoundedComposer(Composer):
    """Gives up instead of reading for minutes."""

    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise OverflowError("too many values")
        return super().compose_node(parent, index)


def compose(text: str, file: str) -> tuple[Node | None, Finding | None]:
    """The root node (None if the text is empty), or what is wrong with the text."""
    if len(text) > MAX_CHARACTERS:
        return None, _too_large(file, f"more than {MAX_CHARACTERS:,} characters")
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    yaml.composer.warn_double_anchors = False
    try:
        return yaml.compose(text), None
    except OverflowError:
        return None, _too_large(file, f"more than {MAX_VALUES:,} values")
    except Exception as error:  # noqa: BLE001 - ruamel raises undocumented errors for broken text
        advice = "Fix the syntax here: indent with spaces, and quote text that contains `: `, ` #` or `{`."
        return None, Finding("yaml", _yaml_place(error, text, file), _yaml_message(error), advice)


def _too_large(file: str, what: str) -> Finding:
    return Finding("yaml", Place(file, 1, 1), f"The file is too large: it has {what}.", "Split it into several files.")


def _yaml_place(error: Exception, text: str, file: str) -> Place:
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return Place(file, mark.line + 1, mark.column + 1)
    if isinstance(error, ReaderError):
        lines = re.split(r"\r\n?|\n", text[: error.position].removeprefix("\ufeff"))
        return Place(file, len(lines), len(lines[-1]) + 1)
    return Place(file, 1, 1)


def _yaml_message(error: Exception) -> str:
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
