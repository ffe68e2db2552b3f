"""Diagrams of a machine from one layout of our own: nothing to install, the same picture every time."""

from __future__ import annotations

from pointsman.errors import UnknownName
from pointsman.kernel.machine import Machine

__all__ = ["FORMATS", "draw"]

FORMATS = ("text", "svg", "mermaid", "markdown")


def draw(machine: Machine, format: str, *, state: str | None = None, color: bool = False) -> str:  # noqa: A002
    """Draw a machine in one of `FORMATS`, lighting up `state`; `color` adds ANSI colours to text."""
    if state is not None:
        machine.state(state)
    match format:
        case "text":
            from pointsman.kernel.draw.text import draw_text

            return draw_text(machine, state, color=color)
        case "svg":
            from pointsman.kernel.draw.svg import draw_svg

            return draw_svg(machine, state)
        case "mermaid":
            from pointsman.kernel.draw.mermaid import draw_mermaid

            return draw_mermaid(machine, state)
        case "markdown":
            from pointsman.kernel.draw.markdown import draw_markdown

            return draw_markdown(machine, state)
        case _:
            raise UnknownName("format", format, FORMATS)
