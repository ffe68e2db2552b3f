"""A flow for a terminal: boxes and lines where they fit, otherwise stage by stage."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.flows.draw.boxes import draw_boxes
from pointsman.flows.draw.look import Look
from pointsman.flows.model import Flow
from pointsman.flows.plan import describe_action, find_stages
from pointsman.kernel.draw.ansi import BOLD, FAINT
from pointsman.kernel.draw.canvas import Canvas
from pointsman.kernel.machine import State

TOP = 2
"""Rows above the picture: the heading and a blank one."""
MOST_BOXES = 40


def draw_text(flow: Flow, states: Mapping[str, State], *, color: bool, columns: int) -> str:
    """The picture, or a list of stages if it would be wider than `columns` or too long."""
    look = Look(flow, states)
    canvas = Canvas()
    _write_heading(canvas, flow)
    if len(flow.tasks) > MOST_BOXES or not draw_boxes(canvas, TOP, look, columns):
        _write_stages(canvas, look)
    return "\n".join(canvas.lines(color=color)) + "\n"


def _write_heading(canvas: Canvas, flow: Flow) -> None:
    tasks, stages = len(flow.tasks), len(find_stages(flow))
    about = f"{tasks} task{'s' * (tasks != 1)}, {stages} stage{'s' * (stages != 1)}{', ordered' * flow.ordered}"
    canvas.write(0, canvas.write(0, 0, flow.name, BOLD), f"  {about}", FAINT)


def _write_stages(canvas: Canvas, look: Look) -> None:
    row, links = TOP, look.flow.links
    width = max((len(name) for name in look.flow.tasks), default=0)
    for number, stage in enumerate(find_stages(look.flow), start=1):
        canvas.write(row, 0, f"stage {number}", FAINT)
        for name in stage:
            row += 1
            column = canvas.write(row, 2, look.mark(name), look.style(name))
            canvas.write(row, column + 1, name, look.style(name, bold=True))
            column = canvas.write(row, column + width + 3, _describe(look.flow, name), FAINT)
            if needs := links[name]:
                canvas.write(row, column + 2, f"← {', '.join(needs)}")
        row += 2


def _describe(flow: Flow, name: str) -> str:
    task = flow.tasks[name]
    notes = ["× each"] * (task.foreach is not None) + ["?"] * (task.when is not None)
    return " ".join([*notes, describe_action(task)])
