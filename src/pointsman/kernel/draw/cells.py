"""Boxes and arrows in character cells, from the same layout as the SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pointsman.kernel.draw.ansi import BOLD, FAINT, Paint
from pointsman.kernel.draw.canvas import Canvas, Cell
from pointsman.kernel.draw.channels import assign_tracks
from pointsman.kernel.draw.graph import Chip, Line
from pointsman.kernel.draw.layout import Box, Layout, Point, Rect, lay_out
from pointsman.kernel.draw.plan import Bend, Role, Size, make_plan
from pointsman.kernel.draw.tone import tone_of
from pointsman.kernel.machine import Machine, State

TOP = 2
"""Rows above the picture: the heading and a blank one."""

_PLAIN = "╭─╮│╰╯"
_DOUBLE = "╔═╗║╚╝"
_HEAVY = "┏━┓┃┗┛"
_LOST = "╭┄╮┊╰╯"


@dataclass(frozen=True, slots=True)
class Cells:
    """How large things are in character cells; widths are odd, so that everything has a middle column."""

    label_width: int = 18
    port_space: float = 2
    port_margin: float = 2
    lane_width: float = 1
    lead: float = 1
    dot: Size = (1, 1)
    whole: bool = True
    terse: bool = False
    """Whether chips leave out where they lead, which their stub says too."""

    def box(self, state: State, chips: Sequence[Chip], ports: int) -> Size:
        chip = max((len(self.chip_text(chip)) for chip in chips), default=0)
        inside = max(len(state.name), len(tone_of(state)) + 2, chip, 2 * ports - 1)
        return _odd(inside + 4), 3 + len(chips)

    def label(self, lines: Sequence[Line]) -> Size:
        return _odd(max(len(line.text) for line in lines)), len(lines)

    def space(self, left: Role, right: Role) -> float:
        if left is Role.LANE or right is Role.LANE:
            return 1
        return 3 if left is right is Role.STATE else 2

    def gap(self, bends: Sequence[Bend]) -> float:
        tracks = assign_tracks(bends)
        return max(tracks.values(), default=-1) + 1 if tracks is not None else 0

    def chip_text(self, chip: Chip) -> str:
        if chip.loops:
            return f"↻ {chip.text}"
        return f"⇢ {chip.text}" if self.terse else f"{chip.text} ⇢ {chip.to_state}"


def _odd(width: int) -> int:
    return width if width % 2 else width + 1


def draw_cells(machine: Machine, paint: Paint, columns: int) -> Canvas | None:
    """The picture, or None where it does not fit into the columns or lines would have to overlap."""
    for cells in (Cells(), Cells(terse=True)):
        if make_plan(machine, cells).least_width <= columns:
            layout = lay_out(machine, cells)
            if layout.width <= columns:
                return _draw(layout, cells, paint)
    return None


def _draw(layout: Layout, cells: Cells, paint: Paint) -> Canvas | None:
    machine = paint.machine
    tracks = _tracks(layout)
    if tracks is None:
        return None
    canvas = Canvas()
    column = canvas.write(0, 0, machine.name, BOLD)
    canvas.write(0, column, f"  {paint.summary()}", FAINT)
    for route in layout.routes:
        arrow = route.arrow
        style = paint.move(arrow.from_state, arrow.to_state)
        _draw_line(canvas, route.points, tracks, style, dashed=arrow.automatic)
        _draw_label(canvas, route.lines, route.label, paint.trigger(arrow.from_state))
    for stub in layout.stubs:
        lost = all(paint.lost(source) for source in stub.hub.sources)
        _draw_line(canvas, stub.points, tracks, FAINT if lost else paint.border(machine.state(stub.hub.target)))
        _draw_label(canvas, stub.lines, stub.label, FAINT if lost else "")
    start = FAINT if paint.lost(machine.initial.name) else ""
    _draw_line(canvas, layout.start, tracks, start)
    canvas.write(TOP + int(layout.dot.top), int(layout.dot.middle), "●", start)
    for box in layout.boxes:
        _draw_box(canvas, box, cells, paint)
    return canvas


def _all_points(layout: Layout) -> list[tuple[Point, ...]]:
    """Every line from top to bottom."""
    lines = [layout.start, *(route.points for route in layout.routes), *(stub.points for stub in layout.stubs)]
    return [points if points[0][1] <= points[-1][1] else points[::-1] for points in lines]


def _tracks(layout: Layout) -> dict[tuple[float, Bend], int] | None:
    """The row of each bend, by the top of its gap and its columns."""
    gaps: dict[float, list[Bend]] = {}
    for points in _all_points(layout):
        for (x, y), (next_x, _) in pairwise(points):
            if x != next_x:
                gaps.setdefault(y, []).append((x, next_x))
    found: dict[tuple[float, Bend], int] = {}
    for top, bends in gaps.items():
        tracks = assign_tracks(bends)
        if tracks is None:
            return None
        found.update({(top, bend): track for bend, track in tracks.items()})
    return found


def _draw_line(
    canvas: Canvas, points: Sequence[Point], tracks: dict[tuple[float, Bend], int], style: str, *, dashed: bool = False
) -> None:
    upwards = points[0][1] > points[-1][1]
    path = _path(points[::-1] if upwards else points, tracks)
    if not path:
        return
    canvas.trace(path, style, dashed=dashed)
    row, column = path[0] if upwards else path[-1]
    canvas.write(row, column, "▲" if upwards else "▼", style)


def _path(points: Sequence[Point], tracks: dict[tuple[float, Bend], int]) -> list[Cell]:
    """The cells of a line, from top to bottom."""
    path: list[Cell] = []
    for (x, y), (next_x, next_y) in pairwise(points):
        column, next_column = int(x), int(next_x)
        if column == next_column:
            path += ((TOP + row, column) for row in range(int(y), int(next_y)))
            continue
        bend = int(y) + tracks[y, (x, next_x)]
        step = 1 if next_column > column else -1
        path += ((TOP + row, column) for row in range(int(y), bend))
        path += ((TOP + bend, at) for at in range(column, next_column, step))
        path += ((TOP + row, next_column) for row in range(bend, int(next_y)))
    return path


def _draw_label(canvas: Canvas, lines: Sequence[Line], rect: Rect, style: str) -> None:
    left, width = int(rect.middle) - int(rect.width) // 2, int(rect.width)
    for offset, line in enumerate(lines):
        row = TOP + int(rect.top) + offset
        canvas.write(row, left, " " * width)
        canvas.write(row, left + (width - len(line.text)) // 2, line.text, FAINT if line.condition else style)


def _draw_box(canvas: Canvas, box: Box, cells: Cells, paint: Paint) -> None:
    state, rect = box.state, box.rect
    current, lost = state.name == paint.current, paint.lost(state.name)
    if lost:
        shape = _LOST
    elif state.terminal:
        shape = _DOUBLE
    else:
        shape = _HEAVY if current else _PLAIN
    corner, across, end, side, low_corner, low_end = tuple(shape)
    border = paint.border(state)
    left, top, inside = int(rect.middle) - int(rect.width) // 2, TOP + int(rect.top), int(rect.width) - 2
    phase = f" {tone_of(state)} "
    canvas.write(top, left, corner + phase.center(inside, across) + end, border)
    name = state.name
    if current:
        name = f"▶ {name} ◀" if len(name) + 4 <= inside else f"▶{name}◀"
    for row, text in enumerate([name, *(cells.chip_text(chip) for chip in box.chips)], top + 1):
        canvas.write(row, left, side + " " * inside + side, border)
        style = FAINT if row > top + 1 or lost else paint.state(state)
        canvas.write(row, left + 1 + (inside - len(text)) // 2, text, style)
    canvas.write(top + int(rect.height) - 1, left, low_corner + across * inside + low_end, border)
