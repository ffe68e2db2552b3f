"""SQL files: migrations with a block for each kind of entity, and queries by their names.

A query begins at a line `-- name: claim_tasks`. A block that is meant for several kinds is written once:

    -- for each kind
    --   run:  run = new.id
    --   task: run = new.run_id
    --         needs = AND new.open_dependencies = 0
    -- do
    CREATE TRIGGER {kind}_begins … {run} … {needs}
    -- end
"""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

_BLOCK = re.compile(r"^-- for each kind\n(?P<kinds>(?:--   [^\n]*\n)+)-- do\n(?P<body>.*?)^-- end\n", re.MULTILINE | re.DOTALL)
_KIND = re.compile(r"(?P<kind>\w+): +(?P<name>\w+) = (?P<value>.*)")
_MORE = re.compile(r"(?P<name>\w+) = (?P<value>.*)")
_HOLE = re.compile(r"\{(\w+)\}")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def read_migrations(package: str) -> list[Migration]:
    """All migrations of a store, in the order of their numbers."""
    found = []
    for file in (files(package) / "migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, expand(file.read_text("utf-8"))))
    return sorted(found)


def read_schema(package: str) -> str:
    """The schema that all migrations together lead to."""
    return expand((files(package) / "schema.sql").read_text("utf-8"))


def read_queries(package: str) -> dict[str, str]:
    """Every named query of a store."""
    queries: dict[str, str] = {}
    for file in _sql_files(files(package) / "queries"):
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in queries, f"{file.name}: a second query called {name}"
            queries[name] = text.strip()
    return queries


def expand(text: str) -> str:
    """Write the blocks out that stand for several kinds."""
    return _BLOCK.sub(_expand_block, text)


def _expand_block(block: re.Match[str]) -> str:
    kinds: dict[str, dict[str, str]] = {}
    kind = ""
    for line in block["kinds"].splitlines():
        words = line.removeprefix("--").strip()
        if match := _KIND.fullmatch(words):
            kind = match["kind"]
            kinds[kind] = {"kind": kind}
        else:
            match = _MORE.fullmatch(words)
            assert match, f"not understood: {line}"
        kinds[kind][match["name"]] = match["value"]
    return "".join(_HOLE.sub(lambda hole, values=values: values.get(hole[1], ""), block["body"]) for values in kinds.values())


def _sql_files(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
