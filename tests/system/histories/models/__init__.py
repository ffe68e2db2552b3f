"""The models, one file each, and which of them a history gives something to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.system.histories.model import Model
from tests.system.histories.models.breaker import breaker_models
from tests.system.histories.models.gang import gang_models
from tests.system.histories.models.hands import hands_models
from tests.system.histories.models.key import key_models
from tests.system.histories.models.run import run_models
from tests.system.histories.models.task import task_models
from tests.system.histories.record import Record


def all_models(records: Sequence[Record]) -> Iterator[Model[Any]]:
    yield from task_models(records)
    yield from run_models(records)
    yield from key_models(records)
    yield from breaker_models(records)
    yield from gang_models(records)
    yield from hands_models(records)
