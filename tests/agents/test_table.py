"""The table of the documentation has every scenario, every agent, and the versions that are installed."""

from __future__ import annotations

from tests.agents import test_agents
from tests.agents.clis import CLIS
from tests.agents.table import DOCUMENT, read_table

SCENARIOS = {name.removeprefix("test_") for name in vars(test_agents) if name.startswith("test_")}


def test_the_table_has_every_scenario_and_every_agent() -> None:
    table = read_table(DOCUMENT.read_text("utf-8"))
    assert set(table) == {(row, name) for row in SCENARIOS | {"version"} for name in CLIS}
    assert all(table.values())


def test_the_table_has_the_versions_that_were_tried() -> None:
    table = read_table(DOCUMENT.read_text("utf-8"))
    assert {name: table["version", name] for name in CLIS} == {name: cli.version for name, cli in CLIS.items()}
