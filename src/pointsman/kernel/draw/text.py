"""A machine for a terminal: boxes and arrows where they fit, otherwise an outline of states and transitions."""

from __future__ import annotations

from pointsman.kernel.draw.ansi import Paint
from pointsman.kernel.draw.cells import draw_cells
from pointsman.kernel.draw.outline import draw_outline
from pointsman.kernel.machine import Machine

COLUMNS = 100
"""A picture that would be wider than this becomes an outline."""


def draw_text(machine: Machine, state: str | None = None, *, color: bool = False) -> str:
    """The picture where it fits, otherwise the outline; with a `state`, that one is marked."""
    paint = Paint(machine, state)
    canvas = draw_cells(machine, paint, COLUMNS) or draw_outline(machine, paint)
    return "\n".join(canvas.lines(color=color)) + "\n"
