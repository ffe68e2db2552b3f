"""How things look in a terminal: colours by phase, bold for the current state, dim for what is out of reach."""

from __future__ import annotations

from pointsman.kernel.draw.tone import Tone, tone_of
from pointsman.kernel.machine import Machine, State

CODES = {
    Tone.HELD: "33",
    Tone.QUEUED: "34",
    Tone.ACTIVE: "35",
    Tone.SUCCESS: "32",
    Tone.FAILURE: "31",
    Tone.CANCELED: "90",
}
MARKS = {
    Tone.HELD: "○",
    Tone.QUEUED: "◔",
    Tone.ACTIVE: "●",
    Tone.SUCCESS: "✔",
    Tone.FAILURE: "✘",
    Tone.CANCELED: "⊘",
}
BOLD = "1"
FAINT = "2"


class Paint:
    """The styles of one drawing, as the parameters of ANSI sequences."""

    def __init__(self, machine: Machine, state: str | None) -> None:
        self.machine = machine
        self.current = machine.state(state).name if state is not None else None
        self._reachable = machine.reachable(state) if state is not None else None

    def lost(self, state: str) -> bool:
        """Whether the state can no longer be reached."""
        return self._reachable is not None and state not in self._reachable

    def state(self, state: State) -> str:
        if self.lost(state.name):
            return FAINT
        return f"1;7;{CODES[tone_of(state)]}" if state.name == self.current else f"1;{CODES[tone_of(state)]}"

    def border(self, state: State) -> str:
        return FAINT if self.lost(state.name) else CODES[tone_of(state)]

    def move(self, from_state: str, to_state: str) -> str:
        """The style of an arrow: the colour of where it leads."""
        return FAINT if self.lost(from_state) else CODES[tone_of(self.machine.state(to_state))]

    def trigger(self, from_state: str) -> str:
        if self.lost(from_state):
            return FAINT
        return BOLD if from_state == self.current else ""

    def mark(self, state: State) -> str:
        return "▶" if state.name == self.current else MARKS[tone_of(state)]

    def summary(self) -> str:
        states, moves = len(self.machine.states), len(self.machine.transitions)
        return f"{states} state{'s' * (states != 1)}, {moves} transition{'s' * (moves != 1)}"
