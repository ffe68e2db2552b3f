"""Engine tests have a clock of their own."""

from __future__ import annotations

import pytest
from tests.rooms.engine.harness import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
