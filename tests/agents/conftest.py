"""Runs each scenario with each agent, or with those that `--cli` names.

A scenario must succeed where the table of the documentation has ✓, and fail where it has something else.
"""

from __future__ import annotations

import pytest
from tests.agents.clis import CLIS
from tests.agents.table import DOCUMENT, YES, read_table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cli", action="append", choices=list(CLIS), help="only these agents")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cli" not in metafunc.fixturenames:
        return
    test = metafunc.function.__name__.removeprefix("test_")
    table = read_table(DOCUMENT.read_text("utf-8"))
    chosen = metafunc.config.getoption("--cli") or list(CLIS)
    parameters = []
    for name in chosen:
        cell = table.get((test, name), YES)
        marks = () if cell.startswith(YES) else (pytest.mark.xfail(reason=f"{DOCUMENT.name}: {cell}", strict=True),)
        parameters.append(pytest.param(CLIS[name], id=name, marks=marks))
    metafunc.parametrize("cli", parameters)
