"""How tasks look in a terminal: marks and colours by state, signs for fan-outs and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pointsman.flows.model import Flow
from pointsman.kernel.draw.ansi import BOLD, CODES, MARKS
from pointsman.kernel.draw.tone import tone_of
from pointsman.kernel.machine import State

_PLAIN = "╭─╮│╰╯"
_EACH = "╭─╮║╰╯"
_MAYBE = "╭╌╮╎╰╯"


@dataclass(frozen=True, slots=True)
class Look:
    """The looks of one drawing."""

    flow: Flow
    states: Mapping[str, State]

    def title(self, name: str) -> str:
        task = self.flow.tasks[name]
        mark = f"{self.mark(name)} " if self.states else ""
        return f"{mark}{name}{' ×' * (task.foreach is not None)}{' ?' * (task.when is not None)}"

    def mark(self, name: str) -> str:
        return MARKS[tone_of(self.states[name])] if name in self.states else "·"

    def style(self, name: str | None, *, bold: bool = False) -> str:
        """The parameters of an ANSI sequence."""
        code = CODES[tone_of(self.states[name])] if name is not None and name in self.states else ""
        return ";".join(part for part in (BOLD * bold, code) if part)

    def frame(self, name: str) -> str:
        """Corners and sides of its box."""
        task = self.flow.tasks[name]
        if task.foreach is not None:
            return _EACH
        return _MAYBE if task.when is not None else _PLAIN
