"""Every state with its transitions, for machines that are too wide for boxes and arrows."""

from __future__ import annotations

from pointsman.kernel.draw.ansi import BOLD, FAINT, Paint
from pointsman.kernel.draw.canvas import Canvas
from pointsman.kernel.draw.graph import build_graph
from pointsman.kernel.machine import Machine, State, Transition

LONGEST = 46
"""Conditions that reach beyond this column push their own arrow out, not all the others."""


def draw_outline(machine: Machine, paint: Paint) -> Canvas:
    """The states from the beginning to the ends, each with its moves; ↑ marks those that lead back."""
    levels = build_graph(machine).levels
    states = sorted(machine.states, key=lambda state: levels[state.name])
    column = min(max((len(_move_text(move)) for move in machine.transitions), default=0), LONGEST)
    canvas = Canvas()
    after = canvas.write(0, 0, machine.name, BOLD)
    canvas.write(0, after, f"  {paint.summary()}", FAINT)
    row = 2
    for state in states:
        _write_state(canvas, row, state, paint)
        exits = machine.exits(state.name)
        for move in exits:
            row += 1
            back = levels[move.to_state] < levels[move.from_state]
            _write_move(canvas, row, move, paint, column, last=move is exits[-1], back=back)
        row += 2
    return canvas


def _write_state(canvas: Canvas, row: int, state: State, paint: Paint) -> None:
    column = canvas.write(row, 0, f"{paint.mark(state)} ", paint.border(state))
    column = canvas.write(row, column, state.name, paint.state(state))
    notes = [str(state.phase)] + [str(state.outcome)] * (state.outcome is not None) + ["initial"] * state.initial
    notes += ["sealed"] * state.sealed or ["terminal"] * state.terminal
    notes += ["current"] * (state.name == paint.current) + ["out of reach"] * paint.lost(state.name)
    canvas.write(row, column, f"  {' · '.join(notes)}", FAINT)


def _write_move(canvas: Canvas, row: int, move: Transition, paint: Paint, width: int, *, last: bool, back: bool) -> None:
    style, dash = paint.move(move.from_state, move.to_state), "╌" if move.automatic else "─"
    column = canvas.write(row, 0, "└─ " if last else "├─ ", FAINT)
    column = canvas.write(row, column, move.trigger, paint.trigger(move.from_state))
    if move.conditions:
        column = canvas.write(row, column, f" [{', '.join(move.conditions)}]", FAINT)
    column = canvas.write(row, column, f" {dash * max(width + 5 - column, 2)}▶ ", style)
    way = "↻ " if move.from_state == move.to_state else "↑ " if back else "  "
    canvas.write(row, column, f"{way}{move.to_state}", style)


def _move_text(move: Transition) -> str:
    return f"{move.trigger} [{', '.join(move.conditions)}]" if move.conditions else move.trigger
