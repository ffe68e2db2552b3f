"""docs/requirements.md is complete and true: everything that it names exists, and nothing that it calls missing."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import click
import pytest
from tests.rows import each_row

from pointsman.cli.group import root
from pointsman.engine.engine import Engine
from pointsman.flows.schema import build_schema

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "requirements.md"
REQUIREMENTS = {"000": 9, "001": 7, "002": 10, "003": 7, "004": 11, "B": 4}
"""How many requirements each document has. A letter behind a number is a part of that requirement."""


@dataclass(frozen=True)
class Requirement:
    """One entry of the page, with the names behind each of its labels."""

    document: str
    number: int
    part: str
    named: dict[str, list[str]]

    def __str__(self) -> str:
        return f"{self.document}.{self.number}{self.part}"


def read_page() -> list[Requirement]:
    entries = re.split(r"^- \*\*(\w+)\.(\d+)([a-z]?)\*\* ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return [
        Requirement(document, int(number), part, read_labels(text))
        for document, number, part, text in zip(*(entries[first::4] for first in range(4)), strict=True)
    ]


def read_labels(entry: str) -> dict[str, list[str]]:
    body = entry.split("\n\n", maxsplit=1)[0]
    parts = re.split(r"^  - ([a-z ]+): ", body, flags=re.MULTILINE)[1:]
    return {label: re.findall(r"`([^`]+)`", names) for label, names in zip(parts[::2], parts[1::2], strict=True)}


PAGE_ENTRIES = read_page()
NAMES = [(entry, name) for entry in PAGE_ENTRIES for name in entry.named.get("by", ())]
TESTS = sorted({name for entry in PAGE_ENTRIES for name in entry.named.get("proof", ())})
MISSING = [(entry, name) for entry in PAGE_ENTRIES for name in entry.named.get("not yet", ())]


def test_every_requirement_is_there_once_and_in_order() -> None:
    parts: dict[str, dict[int, str]] = {document: defaultdict(str) for document in REQUIREMENTS}
    for entry in PAGE_ENTRIES:
        parts[entry.document][entry.number] += entry.part or "-"
    assert {document: list(numbers) for document, numbers in parts.items()} == {
        document: list(range(1, last + 1)) for document, last in REQUIREMENTS.items()
    }
    for document, numbers in parts.items():
        for number, letters in numbers.items():
            assert letters == "-" or letters == "abcdefghijklmnopqrstuvwxyz"[: len(letters)], f"{document}.{number}: {letters}"


@each_row("entry", PAGE_ENTRIES)
def test_a_requirement_is_proved_or_called_missing(entry: Requirement) -> None:
    assert set(entry.named) in ({"by", "proof"}, {"not yet"}), entry
    assert all(entry.named.values()), entry


@each_row("name", TESTS)
def test_every_test_that_is_named_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert test in list_tests(path), name


@each_row(("entry", "name"), NAMES)
def test_what_is_named_exists(entry: Requirement, name: str) -> None:
    assert exists(name), f"{entry}: {name}"


@each_row(("entry", "name"), MISSING)
def test_what_is_called_missing_does_not_exist(entry: Requirement, name: str) -> None:
    assert not exists(name), f"{entry}: {name} exists. Say what proves it."


@pytest.mark.parametrize(
    "name",
    [
        "pointsman fly",
        "pointsman cancel --softly",
        "pointsman flow fly",
        "engine.fly",
        "flow: fly",
        "pointsman.fly",
        "pointsman.engine.engine.Engine.fly",
    ],
)
def test_names_of_any_kind_are_really_looked_up(name: str) -> None:
    assert not exists(name)


@cache
def list_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def exists(name: str) -> bool:
    """Whether the program has this command, this method of an engine, this key of a flow, or this name in Python."""
    if name.startswith("pointsman "):
        return has_command(name.split()[1:])
    if name.startswith("engine."):
        return hasattr(Engine, name.removeprefix("engine."))
    if name.startswith("flow: "):
        return name.removeprefix("flow: ") in list_flow_keys()
    assert name.startswith("pointsman."), f"{name} is no command, method, key or name in Python"
    return has_python(name)


def has_command(words: list[str]) -> bool:
    """Words in capitals are arguments."""
    command: click.Command = root
    for word in words:
        if isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None:
                return False
            command = inner
        elif word.startswith("-"):
            if not any(word in parameter.opts for parameter in command.params):
                return False
        elif not any(isinstance(parameter, click.Argument) for parameter in command.params) or not word.isupper():
            return False
    return True


def has_python(name: str) -> bool:
    words = name.split(".")
    for length in count(len(words), -1):
        try:
            found: Any = importlib.import_module(".".join(words[:length]))
        except ImportError:
            continue
        break
    for word in words[length:]:
        if not hasattr(found, word) and word not in getattr(found, "__struct_fields__", ()):
            return False
        found = getattr(found, word, None)
    return True


@cache
def list_flow_keys() -> frozenset[str]:
    return frozenset(_walk_keys(build_schema()))


def _walk_keys(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        yield from properties if isinstance(properties, dict) else ()
        for each in schema.values():
            yield from _walk_keys(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _walk_keys(each)
