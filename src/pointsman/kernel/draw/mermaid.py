"""A machine as a Mermaid state diagram, for places that draw Mermaid themselves."""

from __future__ import annotations

from pointsman.kernel.draw.stylesheet import LIGHT
from pointsman.kernel.draw.tone import Tone, tone_of
from pointsman.kernel.machine import Machine, Transition

_KEYWORDS = {"as", "class", "classdef", "click", "direction", "end", "hide", "note", "scale", "state", "style"}
_ESCAPES = str.maketrans(
    {"#": "#35;", ":": "#58;", ";": "#59;", "\n": " ", '"': "#quot;", "<": "#lt;", ">": "#gt;", "%": "#37;"}
)


def draw_mermaid(machine: Machine, state: str | None = None) -> str:
    """The diagram; with a `state`, that one has the class `current` and what it can no longer reach `dimmed`."""
    ids = _ids(machine)
    renamed = [f'state "{_escape(name)}" as {id_}' for name, id_ in ids.items() if name != id_]
    lines = [
        *renamed,
        f"[*] --> {ids[machine.initial.name]}",
        *(f"{ids[move.from_state]} --> {ids[move.to_state]} : {_label(move)}" for move in machine.transitions),
        *(f"{ids[end.name]} --> [*]" for end in machine.states if end.terminal),
        *_classes(machine, ids, state),
    ]
    title = f"---\ntitle: {_quoted(machine.name)}\n---\n"
    return title + "stateDiagram-v2\n" + "".join(f"    {line}\n" for line in lines)


def _ids(machine: Machine) -> dict[str, str]:
    """An id for every state: its own name, except where Mermaid would read that as a keyword."""
    ids: dict[str, str] = {}
    taken = {state.name for state in machine.states}
    for state in machine.states:
        id_ = state.name
        if id_.lower() in _KEYWORDS or id_.lower().startswith("default"):
            id_ = f"state_{id_}"
            while id_ in taken:
                id_ += "_"
            taken.add(id_)
        ids[state.name] = id_
    return ids


def _label(move: Transition) -> str:
    conditions = f" [{', '.join(move.conditions)}]" if move.conditions else ""
    return _escape(f"{move.trigger}{conditions}{' (automatic)' if move.automatic else ''}")


def _classes(machine: Machine, ids: dict[str, str], state: str | None) -> list[str]:
    members: dict[str, list[str]] = {}
    for tone in Tone:
        members[tone] = [ids[one.name] for one in machine.states if tone_of(one) is tone]
    styles = {str(tone): f"fill:{LIGHT[f'{tone}-tint']},stroke:{LIGHT[tone]},color:{LIGHT['ink']}" for tone in Tone}
    if state is not None:
        reachable = machine.reachable(state)
        members["dimmed"] = [ids[one.name] for one in machine.states if one.name not in reachable]
        members["current"] = [ids[state]]
        styles["dimmed"] = "opacity:0.35"
        tone = tone_of(machine.state(state))
        styles["current"] = f"fill:{LIGHT[tone]},stroke:{LIGHT[tone]},color:{LIGHT['lit-ink']},stroke-width:3px"
    used = [name for name, among in members.items() if among]
    return [f"classDef {name} {styles[name]}" for name in used] + [f"class {','.join(members[name])} {name}" for name in used]


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
