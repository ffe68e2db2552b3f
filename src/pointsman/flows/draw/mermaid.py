"""A flow as a Mermaid flowchart, for places that draw Mermaid themselves."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.flows.model import Flow
from pointsman.flows.plan import shorten_links
from pointsman.kernel.draw.stylesheet import LIGHT
from pointsman.kernel.draw.tone import Tone, tone_of
from pointsman.kernel.machine import State

_ESCAPES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;", "\n": " "})


def draw_mermaid(flow: Flow, states: Mapping[str, State]) -> str:
    """The chart; fan-outs are stacks, and tasks that may be skipped are hexagons."""
    ids = {name: f"t{number}" for number, name in enumerate(flow.tasks)}
    lines = [f"{ids[name]}{_shape(flow, name)}" for name in flow.tasks]
    lines += (f"{ids[need]} --> {ids[name]}" for name, needs in shorten_links(flow.links).items() for need in needs)
    for tone in Tone:
        if members := [ids[name] for name, state in states.items() if name in ids and tone_of(state) is tone]:
            lines.append(f"classDef {tone} fill:{LIGHT[f'{tone}-tint']},stroke:{LIGHT[tone]},color:{LIGHT['ink']}")
            lines.append(f"class {','.join(members)} {tone}")
    title = flow.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'---\ntitle: "{title}"\n---\nflowchart LR\n' + "".join(f"    {line}\n" for line in lines)


def _shape(flow: Flow, name: str) -> str:
    task, label = flow.tasks[name], name.translate(_ESCAPES)
    if task.foreach is not None:
        return f'[["{label}"]]'
    return f'{{{{"{label}"}}}}' if task.when is not None else f'["{label}"]'
