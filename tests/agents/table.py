"""The table in docs/reference/agents.md: what it says is what the tests must find."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "agents.md"
YES = "✓"
BEGIN, END = "<!-- checked by tests/agents -->", "<!-- end -->"


def read_table(text: str) -> dict[tuple[str, str], str]:
    """The cells by the name of their test and their agent; the row `version` has versions."""
    inside = text.partition(BEGIN)[2].partition(END)[0]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in inside.splitlines() if line.startswith("|")
    ]
    header, _, *body = rows
    return {(_find_test(row[0]), name): cell for row in body for name, cell in zip(header[1:], row[1:], strict=True)}


def _find_test(title: str) -> str:
    """`asks through MCP <!-- question_through_mcp -->` names a test."""
    found = re.search(r"<!-- (\w+) -->", title)
    return found[1] if found else title
