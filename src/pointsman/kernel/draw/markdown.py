"""A machine as two tables: its states and its transitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Machine, State, Transition

_STATES = ("state", "phase", "outcome", "flags", "needs", "longest stay")
_MOVES = ("from", "to", "trigger", "signal", "guards", "automatic", "severity", "effects")


def draw_markdown(machine: Machine, state: str | None = None) -> str:
    """The tables; with a `state`, that one is bold and what it can no longer reach is struck out."""
    current = machine.state(state).name if state is not None else None
    reachable = machine.reachable(state) if state is not None else {one.name for one in machine.states}

    def name(one: str) -> str:
        return f"**`{_escape(one)}`**" if one == current else f"`{_escape(one)}`"

    def strike(text: str, one: str) -> str:
        return text if one in reachable else f"~~{text}~~"

    parts = [f"## {_escape(machine.name)}", ""]
    parts += _table(_STATES, ([strike(name(one.name), one.name), *_state_row(one, current)] for one in machine.states))
    parts.append("")
    parts += _table(_MOVES, ([name(move.from_state), name(move.to_state), *_move_row(move)] for move in machine.transitions))
    return "\n".join(parts) + "\n"


def _state_row(state: State, current: str | None) -> list[str]:
    flags = ["initial"] * state.initial + ["terminal"] * state.terminal + ["sealed"] * state.sealed
    flags += ["current"] * (state.name == current)
    stay = "" if state.longest_stay_seconds is None else format_duration(state.longest_stay_seconds)
    return [str(state.phase), str(state.outcome or ""), ", ".join(flags), _codes(state.needs), stay]


def _move_row(move: Transition) -> list[str]:
    return [
        _codes([move.trigger]),
        _codes([move.signal] if move.signal else []),
        _codes(move.conditions),
        "yes" if move.automatic else "",
        str(move.severity),
        _codes(move.effects),
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{_escape(word)}`" for word in words)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
