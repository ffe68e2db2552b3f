"""A machine as a self-contained SVG that reads on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pointsman.kernel.draw.graph import Chip, Line
from pointsman.kernel.draw.layout import Box, Layout, Point, Rect, Route, Stub, lay_out
from pointsman.kernel.draw.plan import Bend, Role, Size
from pointsman.kernel.draw.stylesheet import stylesheet
from pointsman.kernel.draw.text_width import text_width
from pointsman.kernel.draw.tone import Tone, tone_of
from pointsman.kernel.machine import Machine, State

MARGIN = 24.0
HEADER = 58.0
LEGEND = 46.0
NAME = 13.0
TRIGGER = 11.5
CONDITION = 10.5
BOX_HEIGHT = 36.0
CHIP_HEIGHT = 17.0
CHIP_STEP = 21.0
LINE_HEIGHT = 14.0
HEAD = 8.0
MOST_PIXELS = 16_000.0
"""Cairo, which librsvg draws with, refuses pictures of more than 32,767 pixels, and some wikis earlier."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """How large things are in pixels."""

    label_width: int = 20
    port_space: float = 13.0
    port_margin: float = 14.0
    lane_width: float = 0.0
    lead: float = 9.0
    dot: Size = (14.0, 14.0)
    whole: bool = False

    def box(self, state: State, chips: Sequence[Chip], ports: int) -> Size:
        name = text_width(state.name, NAME, bold=True) + 32 + (24 if state.sealed else 0)
        chip = max((_chip_width(chip) + 16 for chip in chips), default=0)
        width = max(name, chip, (ports - 1) * self.port_space + 2 * self.port_margin, 84)
        return width, BOX_HEIGHT + CHIP_STEP * len(chips) + (3 if chips else 0)

    def label(self, lines: Sequence[Line]) -> Size:
        width = max(text_width(line.text, CONDITION if line.condition else TRIGGER) for line in lines)
        return width + 12, LINE_HEIGHT * len(lines) + 6

    def space(self, left: Role, right: Role) -> float:
        if left is Role.LANE and right is Role.LANE:
            return 16
        return 28 if left is right is Role.STATE else 14

    def gap(self, bends: Sequence[Bend]) -> float:
        widest = max((abs(top - bottom) for top, bottom in bends), default=0)
        return min(12 + widest * 0.11, 56)


def draw_svg(machine: Machine, state: str | None = None) -> str:
    """The picture; with a `state`, that one is lit and what it can no longer reach is dimmed."""
    return _Picture(machine, state).svg()


def draw_heading(name: str, summary: str, left: float) -> str:
    """A name and what follows it in small: one text, since only the viewer knows how wide its letters are."""
    note = f'<tspan class="note" dx="12">{escape(summary)}</tspan>'
    return f'<text class="heading" x="{_number(left)}" y="34">{escape(name)}{note}</text>'


def draw_size(width: float, height: float) -> str:
    """The size of a picture; a page that is narrower, and a viewer that cannot draw as much, scale it."""
    scale = min(1.0, MOST_PIXELS / max(width, height))
    size = f'width="{_number(width * scale)}" height="{_number(height * scale)}"'
    return f'{size} style="max-width: 100%; height: auto"'


def _chip_text(chip: Chip) -> str:
    return f"↻ {chip.text}" if chip.loops else f"{chip.text} → {chip.to_state}"


def _chip_width(chip: Chip) -> float:
    return text_width(_chip_text(chip), CONDITION) + 14


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class _Picture:
    """One drawing."""

    def __init__(self, machine: Machine, state: str | None) -> None:
        self.machine = machine
        self.current = machine.state(state).name if state is not None else None
        self.reachable = machine.reachable(state) if state is not None else frozenset(s.name for s in machine.states)
        self.layout: Layout = lay_out(machine, Pixels())
        self.legend = _Legend(machine)
        self.width = max(self.layout.width, self.legend.width, self._heading_width()) + 2 * MARGIN
        self.height = self.layout.height + HEADER + LEGEND + MARGIN

    def svg(self) -> str:
        left = _number((self.width - self.layout.width) / 2)
        parts = [
            self._opening(),
            f"<style>\n{stylesheet()}</style>",
            self._card(),
            f'<g class="plane" transform="translate({left} {_number(HEADER)})">',
            self._start(),
            *(self._edge(route) for route in self.layout.routes),
            *(self._hub(stub) for stub in self.layout.stubs),
            *(self._state(box) for box in self.layout.boxes),
            "</g>",
            self.legend.svg(MARGIN, self.height - MARGIN - 4),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _opening(self) -> str:
        name, width, height = escape(self.machine.name), _number(self.width), _number(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="pointsman-machine" id="{name}" role="img"'
            f' viewBox="0 0 {width} {height}" {draw_size(self.width, self.height)}'
            f' aria-labelledby="{self._id("title")} {self._id("desc")}"'
            f' data-machine="{name}" data-version="{self.machine.version}">\n'
            f'<title id="{self._id("title")}">{name}</title>\n'
            f'<desc id="{self._id("desc")}">{escape(self._description())}</desc>'
        )

    def _card(self) -> str:
        """The background and the heading."""
        name = self.machine.name
        return (
            f"{_rect(Rect(self.width / 2, 0.5, self.width - 1, self.height - 1), 'card', 12)}\n"
            f"{draw_heading(name, self._summary(), MARGIN)}"
        )

    def _id(self, *parts: str) -> str:
        return escape(f"{self.machine.name}--{'-'.join(parts)}")

    def _summary(self) -> str:
        return f"{len(self.machine.states)} states · {len(self.machine.transitions)} transitions"

    def _heading_width(self) -> float:
        return text_width(self.machine.name, 16, bold=True) + 12 + text_width(self._summary(), 11.5)

    def _description(self) -> str:
        now = f" It is in {self.current}; what can no longer be reached is dimmed." if self.current else ""
        ends = ", ".join(state.name for state in self.machine.states if state.terminal) or "none"
        return f"State machine with {self._summary()}. It begins in {self.machine.initial.name}; its ends: {ends}.{now}"

    def _tone(self, state: str) -> Tone:
        return tone_of(self.machine.state(state))

    def _start(self) -> str:
        dot = self.layout.dot
        gone = " dimmed" * (self.machine.initial.name not in self.reachable)
        return (
            f'<g class="start{gone}" id="{self._id("start")}">{_path(self.layout.start)}{_head(self.layout.start)}'
            f'<circle class="disc" cx="{_number(dot.middle)}" cy="{_number(dot.top + dot.height / 2)}" r="6"/></g>'
        )

    def _edge(self, route: Route) -> str:
        arrow = route.arrow
        classes = ["edge", f"tone-{self._tone(arrow.to_state)}"]
        classes += ["automatic"] * arrow.automatic + ["back"] * arrow.back
        classes += ["next"] * (arrow.from_state == self.current) + ["dimmed"] * (arrow.from_state not in self.reachable)
        moves = "\n".join(str(move) for move in arrow.moves)
        return (
            f'<g class="{" ".join(classes)}" id="{self._id("edge", arrow.from_state, arrow.to_state)}"'
            f' data-from="{escape(arrow.from_state)}" data-to="{escape(arrow.to_state)}"><title>{escape(moves)}</title>'
            f"{_path(route.points)}{_head(route.points)}{_label(route.lines, route.label)}</g>"
        )

    def _hub(self, stub: Stub) -> str:
        hub = stub.hub
        gone = not self.reachable.intersection(hub.sources)
        classes = f"hub to-{self._tone(hub.target)}" + " dimmed" * gone
        about = f"{hub.trigger} from {', '.join(hub.sources)}"
        return (
            f'<g class="{classes}" id="{self._id("hub", hub.trigger, hub.target)}" data-to="{escape(hub.target)}">'
            f"<title>{escape(about)}</title>"
            f"{_path(stub.points)}{_head(stub.points)}{_label(stub.lines, stub.label, radius=8)}</g>"
        )

    def _state(self, box: Box) -> str:
        state, rect = box.state, box.rect
        lit = state.name == self.current
        parts = [_rect(_grown(rect, 4.5), "halo", 12)] * lit + [_rect(rect, "body", 8)]
        parts += [_rect(_grown(rect, -3.5), "rim", 5)] * state.terminal
        name_middle = rect.middle - (8 if state.sealed else 0)
        parts.append(
            f'<text class="name" x="{_number(name_middle)}" y="{_number(rect.top + 22.5)}">{escape(state.name)}</text>'
        )
        if state.sealed:
            parts.append(_lock(name_middle + text_width(state.name, NAME, bold=True) / 2 + 6, rect.top + 12))
        parts += (self._chip(box, row) for row in range(len(box.chips)))
        return (
            f'<g class="{self._state_classes(state)}" id="{self._id("state", state.name)}" data-state="{escape(state.name)}"'
            f' data-phase="{state.phase}"><title>{escape(_about(state))}</title>{"".join(parts)}</g>'
        )

    def _state_classes(self, state: State) -> str:
        classes = ["state", f"phase-{state.phase}", f"tone-{tone_of(state)}"]
        classes += [f"outcome-{state.outcome}"] if state.outcome else []
        flags = {
            "initial": state.initial,
            "terminal": state.terminal,
            "sealed": state.sealed,
            "current": state.name == self.current,
            "dimmed": state.name not in self.reachable,
        }
        return " ".join(classes + [name for name, applies in flags.items() if applies])

    def _chip(self, box: Box, row: int) -> str:
        chip, rect = box.chips[row], box.rect
        names = (chip.from_state, chip.trigger, chip.to_state)
        twins = sum((other.from_state, other.trigger, other.to_state) == names for other in box.chips[:row])
        id_ = self._id("chip", *names, *[str(twins + 1)] * bool(twins))
        width, top = _chip_width(chip), rect.top + BOX_HEIGHT - 3 + row * CHIP_STEP
        pill = _rect(Rect(rect.middle, top, width, CHIP_HEIGHT), "pill", CHIP_HEIGHT / 2)
        return (
            f'<g class="chip to-{self._tone(chip.to_state)}" id="{id_}"'
            f' data-from="{escape(chip.from_state)}" data-to="{escape(chip.to_state)}">{pill}'
            f'<text x="{_number(rect.middle)}" y="{_number(top + 12.2)}">{escape(_chip_text(chip))}</text></g>'
        )


class _Legend:
    """What the colours mean, for those that occur."""

    def __init__(self, machine: Machine) -> None:
        present = {tone_of(state) for state in machine.states}
        self._tones = [tone for tone in Tone if tone in present]
        self._automatic = any(move.automatic for move in machine.transitions)
        self._sealed = any(state.sealed for state in machine.states)
        self.width = sum(self._step(tone) for tone in self._tones) + 60 * self._sealed + 90 * self._automatic

    @staticmethod
    def _step(text: str) -> float:
        return text_width(text, 11.5) + 38

    def svg(self, left: float, baseline: float) -> str:
        parts, x = [], left
        for tone in self._tones:
            swatch = _rect(Rect(x + 8, baseline - 10, 16, 12), f"swatch tone-{tone}", 3.5)
            parts.append(f'{swatch}<text class="note" x="{_number(x + 22)}" y="{_number(baseline)}">{tone}</text>')
            x += self._step(tone)
        if self._sealed:
            text = f'<text class="note" x="{_number(x + 15)}" y="{_number(baseline)}">sealed</text>'
            parts.append(f'<g class="tone-canceled">{_lock(x, baseline - 10)}{text}</g>')
            x += 15 + self._step("sealed") - 22
        if self._automatic:
            line = f'<path class="line" d="M{_number(x)} {_number(baseline - 4)}h24"/>'
            text = f'<text class="note" x="{_number(x + 30)}" y="{_number(baseline)}">automatic</text>'
            parts.append(f'<g class="edge automatic">{line}{text}</g>')
        return f'<g class="legend">{"".join(parts)}</g>'


def _about(state: State) -> str:
    parts = [f"phase {state.phase}"] + ([f"outcome {state.outcome}"] if state.outcome else [])
    parts += ["sealed"] * state.sealed or ["terminal"] * state.terminal
    parts += [f"needs {', '.join(state.needs)}"] if state.needs else []
    return f"{state.name}: {', '.join(parts)}"


def _grown(rect: Rect, by: float) -> Rect:
    return Rect(rect.middle, rect.top - by, rect.width + 2 * by, rect.height + 2 * by)


def _rect(rect: Rect, css: str, radius: float) -> str:
    return (
        f'<rect class="{css}" x="{_number(rect.left)}" y="{_number(rect.top)}" width="{_number(rect.width)}"'
        f' height="{_number(rect.height)}" rx="{_number(radius)}"/>'
    )


def _lock(x: float, y: float) -> str:
    return (
        f'<g class="lock" transform="translate({_number(x)} {_number(y)})">'
        '<path d="M2.5 5V3.5a2.5 2.5 0 0 1 5 0V5"/><rect class="shut" x="1" y="5" width="8" height="6" rx="1.2"/></g>'
    )


def _label(lines: Sequence[Line], rect: Rect, radius: float = 4) -> str:
    rows = []
    for index, line in enumerate(lines):
        css = "condition" if line.condition else f"trigger severity-{line.severity}"
        y = rect.top + 14 + index * LINE_HEIGHT
        rows.append(f'<text class="{css}" x="{_number(rect.middle)}" y="{_number(y)}">{escape(line.text)}</text>')
    return _rect(rect, "backing", radius) + "".join(rows)


def _path(points: Sequence[Point]) -> str:
    """A line that leaves and enters nodes vertically and bends in the gaps."""
    towards = 1 if points[-1][1] >= points[0][1] else -1
    end = points[-1][1] - towards * (HEAD - 1)
    shortened = [(x, min(y, end) if towards > 0 else max(y, end)) for x, y in points]
    x, y = shortened[0]
    path = f"M{_number(x)} {_number(y)}"
    for next_x, next_y in shortened[1:]:
        if abs(next_x - x) < 0.05:
            path += f"V{_number(next_y)}" if abs(next_y - y) >= 0.05 else ""
        else:
            middle = _number((y + next_y) / 2)
            path += f"C{_number(x)} {middle} {_number(next_x)} {middle} {_number(next_x)} {_number(next_y)}"
        x, y = next_x, next_y
    return f'<path class="line" d="{path}"/>'


def _head(points: Sequence[Point]) -> str:
    (x, y), back = points[-1], HEAD if points[-1][1] >= points[0][1] else -HEAD
    return f'<path class="head" d="M{_number(x)} {_number(y)}L{_number(x - 4.5)} {_number(y - back)}H{_number(x + 4.5)}Z"/>'
