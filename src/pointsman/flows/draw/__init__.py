"""Pictures of a flow: its tasks and what they wait for, in the colours of their states where these are known."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pointsman.errors import UnknownName
from pointsman.flows.model import Flow
from pointsman.kernel.machine import State

__all__ = ["FORMATS", "draw_flow"]

FORMATS = ("text", "svg", "mermaid")
NO_STATES: Mapping[str, State] = MappingProxyType({})


def draw_flow(
    flow: Flow,
    format: str,  # noqa: A002
    *,
    states: Mapping[str, State] = NO_STATES,
    color: bool = False,
    columns: int = 100,
) -> str:
    """Draw a flow in one of `FORMATS`; `states` has the state of each task that has one, `color` adds ANSI colours to text."""
    match format:
        case "text":
            from pointsman.flows.draw.text import draw_text

            return draw_text(flow, states, color=color, columns=columns)
        case "svg":
            from pointsman.flows.draw.svg import draw_svg

            return draw_svg(flow, states)
        case "mermaid":
            from pointsman.flows.draw.mermaid import draw_mermaid

            return draw_mermaid(flow, states)
        case _:
            raise UnknownName("format", format, FORMATS)
