"""Which former attempts of a task may have left work running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class EndedAttempt(Protocol):
    @property
    def epoch(self) -> int: ...
    @property
    def exit_code(self) -> int | None: ...


def find_former(attempts: Iterable[EndedAttempt], epoch: int) -> list[int]:
    """The epochs before this one whose work nobody has seen end: it may still run, on any machine."""
    return [each.epoch for each in attempts if each.epoch < epoch and each.exit_code is None]
