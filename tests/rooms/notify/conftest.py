from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.rooms.notify.receiver import Receiver, open_receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as opened:
        yield opened
