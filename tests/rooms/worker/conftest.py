"""Workers are the parents of all orphans below them, and so is whoever tests one."""

from __future__ import annotations

import pytest

from pointsman.worker import processes


@pytest.fixture(autouse=True)
def adopt_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test at a time: other tests have children of their own."""
    monkeypatch.setattr(processes._children, "adopts_orphans", False)
    processes.become_subreaper()
