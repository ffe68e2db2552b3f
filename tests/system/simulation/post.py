"""Messages between the people and machines of a simulation and its processes: slow, lost, doubled, out of order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pointsman.engine.operation import Operation


class Sender(Protocol):
    def hear(self, message: Message, outcome: Any) -> None:
        """The answer to something that it asked."""
        ...


@dataclass(slots=True, eq=False)
class Message:
    command: Operation[Any]
    sender: Sender
    sent_at: float
    deliveries: int = 0
    """How often a process has been given it."""

    def __str__(self) -> str:
        command = self.command
        names = ("worker_id", "task_id", "run_id", "entity_id", "epoch", "signal", "limit", "attempts")
        words = [str(getattr(command, name)) for name in names if hasattr(command, name)]
        words += [f"{each.task_id} {each.epoch}" for each in getattr(command, "reports", ())]
        key = f" key {command.request_id}" if command.request_id else ""
        return f"{type(command).__name__}({' '.join(words)}){key}"
