"""Runs each scenario with each command line, or with those that `--cli` names."""

from __future__ import annotations

import pytest
from tests.agents.clis import CLIS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cli", action="append", choices=list(CLIS), help="only these command lines")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cli" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--cli") or list(CLIS)
        metafunc.parametrize("cli", [pytest.param(CLIS[name], id=name) for name in chosen])
