"""Two parsers read YAML. What the fast one accepts means the same to both, and has the same positions."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import each_row

from pointsman.kernel.compose import Mapping, Node, Scalar, Sequence, compose, compose_fast, compose_slowly

ROOT = Path(__file__).parents[3]
FILES = [*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/**/*.yaml"), *ROOT.glob("tests/**/*.yaml")]
PAGES = [page.read_text("utf-8") for page in sorted(ROOT.glob("docs/**/*.md"))]
BLOCKS = [block for page in PAGES for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
TEXTS = [file.read_text("utf-8") for file in sorted(FILES)] + BLOCKS

SIGNS = "a : ? { } [ ] ' \" # ! % \\ @ ` = ~ é 😀 &x: *x {a:b} http://a:b a:b"
VALUES = "0 0o17 010 1_0 -1 yes on null true 1.5 1e3 .inf 12:30 2001-01-01 ''"
BREAKS = ("\n", "\n  ", "\n- ", "\n\n", "\r\n", "\x85", "\u2028", "\t", "---\n", "\n---\n", "\n...\n")
BLOCKS_OF_TEXT = ("|\n  ", "|-\n    ", ">\n  ", "|2\n  ", "|+\n\n", "|#")
OTHERS = (
    "key: ",
    "- ",
    ", ",
    " # c",
    "&x ",
    "*x ",
    "<<: *x",
    "!!str ",
    "!t ",
    "\\n",
    "\\/",
    "\\ud83d",
    "\ufeff",
    "\x07",
    "{a: b}",
    "[a, b]",
)
PIECES = (*SIGNS.split(), *VALUES.split(), *BREAKS, *BLOCKS_OF_TEXT, *OTHERS)
WORDS = ("yes", "no", "on", "off", "y", "N", "12:30", "1:2:3.4", "2001-01-01", "=", "nul", "_1", "0x", "1.2.3", "--")


def describe(node: Node | None, seen: dict[int, int]) -> Any:
    """Everything about a node but the position of a value that is left out: it has none of its own."""
    if node is None:
        return None
    if id(node) in seen:
        return "the same as", seen[id(node)]
    seen[id(node)] = len(seen)
    if isinstance(node, Scalar):
        where = (node.line, node.column, node.start, node.end, node.end_line) if node.value or node.style else ()
        return node.value, node.tag, node.style, where
    if isinstance(node, Sequence):
        return node.line, node.column, [describe(each, seen) for each in node.items]
    assert isinstance(node, Mapping)
    return node.line, node.column, [(describe(key, seen), describe(value, seen)) for key, value in node.entries]


def check_alike(text: str) -> None:
    try:
        fast = compose_fast(text)
        slow = compose_slowly(text)
    except Exception:  # noqa: BLE001 - both refuse it, or libyaml accepts a little more
        return
    if fast is not None:
        assert describe(fast, {}) == describe(slow, {}), text


def test_both_parsers_read_every_file_of_this_repository_alike() -> None:
    assert len(TEXTS) > 60
    for text in TEXTS:
        check_alike(text)


def test_usual_files_are_read_by_the_fast_parser() -> None:
    for file in ROOT.glob("examples/**/*.yaml"):
        assert compose_fast(file.read_text("utf-8")), file


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_both_parsers_read_made_up_texts_alike(text: str) -> None:
    check_alike(text)
    check_alike(f"name: x\ntasks:\n  a: {text}\n  b: c\n")


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 1 << 32))
def test_both_parsers_read_damaged_files_alike(seed: int) -> None:
    chance = random.Random(seed)
    lines = chance.choice(TEXTS).splitlines(keepends=True)
    begin = chance.randrange(len(lines))
    text = "".join(lines[begin : begin + 20])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(PIECES) + text[at + chance.choice((0, 0, 1, 3)) :]
    check_alike(text)


@each_row(
    ("plain", "tag"),
    [
        *((word, "str") for word in WORDS),
        *((word, "bool") for word in ("true", "True", "FALSE")),
        *((word, "null") for word in ("~", "null", "NULL")),
        *((word, "int") for word in ("0", "-1", "+12", "0o17", "010", "0x1F", "0b11", "1_000")),
        *((word, "float") for word in ("1.", "-1.5", "1e3", "1.5E-3", ".5", "-.inf", ".NaN", "1_0.5")),
    ],
)
def test_plain_scalars_are_what_yaml_1_2_makes_of_them(plain: str, tag: str) -> None:
    for parse in (compose_fast, compose_slowly):
        root = parse(f"a: {plain}\n")
        assert isinstance(root, Mapping)
        (_, value) = root.entries[0]
        assert isinstance(value, Scalar)
        assert (value.value, value.tag) == (plain, tag), parse.__name__


@each_row(
    ("text", "value"),
    [
        ('a: "\\ud83d\\ude00"', "\ud83d\ude00"),  # as JSON writes characters
        ("a: x\u2028y", "x\u2028y"),  # a line break of YAML 1.1
        ("%YAML 1.2\n---\na: yes", "yes"),
        ("a: !!str 1", "1"),
        ("a: &größe b\n", "b"),
        ("a: [\tb]", None),
    ],
)
def test_what_means_something_else_to_the_fast_parser_is_left_to_the_slow_one(text: str, value: str | None) -> None:
    assert compose_fast(text) is None
    root, broken = compose(text, "file.yaml")
    assert broken is None
    assert isinstance(root, Mapping)
    if value is not None:
        (_, scalar) = root.entries[0]
        assert isinstance(scalar, Scalar)
        assert scalar.value == value


def test_deep_nesting_ends_early_in_both() -> None:
    _, broken = compose("a: " + "[" * 100_000, "file.yaml")
    assert broken is not None
    assert broken.message == "This is not YAML: it is nested too deeply."
