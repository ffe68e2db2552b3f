"""Boxes and lines in character cells, stage under stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pointsman.flows.draw.graph import Graph, build_graph
from pointsman.flows.draw.look import Look
from pointsman.flows.draw.wires import Step, Wire, assign_rows, find_bundles
from pointsman.kernel.draw.canvas import Canvas, Cell
from pointsman.kernel.draw.place import Pull, place_nodes

HEIGHT = 3
"""Rows of a box."""
_BETWEEN = 3


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The horizontal positions."""

    graph: Graph
    at: dict[int, int]
    """The middle column of each node."""
    widths: dict[int, int]
    bundles: dict[int, int]
    ports: dict[Step, int]
    """The column where each step arrives."""
    leaves: dict[int, int]
    """The column where the steps of each node start."""

    @property
    def width(self) -> int:
        return max(self.at[node] + self.widths[node] // 2 + 1 for node in self.at)


def draw_boxes(canvas: Canvas, top: int, look: Look, columns: int) -> bool:
    """Draw the flow from row `top` on; False, and nothing drawn, if it does not fit or lines would overlap."""
    sheet = _arrange(look)
    turns = [_turns(sheet, layer) for layer in sheet.graph.layers]
    if sheet.width > columns or None in turns:
        return False
    row = top
    for layer, rows in zip(sheet.graph.layers, turns, strict=True):
        assert rows is not None
        if steps := _steps_into(sheet, layer):
            height = max(rows.values()) + 1
            for step in steps:
                turn = rows[sheet.bundles[step[0]]]
                _draw_step(canvas, sheet, step, (row, turn, height), look.style(sheet.graph.tasks[step[1]]))
            row += height + 1
        for node in layer:
            _draw_node(canvas, sheet, node, row, look)
        row += HEIGHT
    return True


def _arrange(look: Look) -> _Sheet:
    graph = build_graph(look.flow)
    steps = graph.steps
    bundles = find_bundles(steps)
    place = {node: index for layer in graph.layers for index, node in enumerate(layer)}
    arriving: dict[int, list[int]] = {node: [] for node in place}
    for source, target in sorted(steps, key=lambda step: place[step[0]]):
        if bundles[source] not in arriving[target]:
            arriving[target].append(bundles[source])
    widths = {node: _width(look, task, len(arriving[node])) for node, task in enumerate(graph.tasks)}
    distances = [[(widths[left] + widths[right]) / 2 + _BETWEEN for left, right in pairwise(layer)] for layer in graph.layers]
    pulls = [Pull(*step, 0, 0, 8 if graph.is_lane(step[0]) and graph.is_lane(step[1]) else 1) for step in steps]
    placed = place_nodes(graph.layers, distances, pulls)
    left = min(placed[node] - widths[node] / 2 for node in placed)
    at = {node: round(position - left) for node, position in placed.items()}
    ports = {
        (source, target): at[target] + 2 * arriving[target].index(bundles[source]) - (len(arriving[target]) - 1)
        for source, target in steps
    }
    ends: dict[int, list[int]] = {node: [] for node in at}
    for (source, _), port in ports.items():
        ends[source].append(port)
    return _Sheet(graph, at, widths, bundles, ports, {node: _leave(at[node], widths[node], ends[node]) for node in at})


def _width(look: Look, task: str | None, ports: int) -> int:
    """An odd number, so that everything has a middle column."""
    if task is None:
        return 1
    inside = max(len(look.title(task)) + 2, 2 * ports + 1)
    return inside + 2 + (inside + 1) % 2


def _leave(middle: int, width: int, ends: Sequence[int]) -> int:
    """Above the only target, or above one that is nearly below; otherwise the middle."""
    nearest = min(ends, key=lambda end: abs(end - middle), default=middle)
    reach = width // 2 - 1
    return nearest if abs(nearest - middle) <= (reach if len(ends) == 1 else min(reach, 2)) else middle


def _steps_into(sheet: _Sheet, layer: Sequence[int]) -> list[Step]:
    inside = set(layer)
    return [step for step in sheet.graph.steps if step[1] in inside]


def _turns(sheet: _Sheet, layer: Sequence[int]) -> dict[int, int] | None:
    """The row in which each bundle turns on its way to a layer."""
    wires: dict[int, Wire] = {}
    for step in _steps_into(sheet, layer):
        wire = wires.setdefault(sheet.bundles[step[0]], Wire())
        wire.starts.add(sheet.leaves[step[0]])
        wire.ends.add(sheet.ports[step])
    return assign_rows(wires)


def _draw_step(canvas: Canvas, sheet: _Sheet, step: Step, rows: tuple[int, int, int], style: str) -> None:
    top, turn, height = rows
    column, end = sheet.leaves[step[0]], sheet.ports[step]
    path: list[Cell] = [(top + row, column) for row in range(turn)]
    path += ((top + turn, at) for at in range(column, end, 1 if end >= column else -1))
    path += ((top + row, end) for row in range(turn, height + 1))
    canvas.trace(path, style)
    if not sheet.graph.is_lane(step[1]):
        canvas.write(top + height, end, "▼", style)


def _draw_node(canvas: Canvas, sheet: _Sheet, node: int, row: int, look: Look) -> None:
    task, middle = sheet.graph.tasks[node], sheet.at[node]
    if task is None:
        canvas.trace([(row + line, middle) for line in range(HEIGHT)])
        return
    corner, across, end, side, low_corner, low_end = tuple(look.frame(task))
    inside, style, title = sheet.widths[node] - 2, look.style(task), look.title(task)
    left = middle - sheet.widths[node] // 2
    canvas.write(row, left, corner + across * inside + end, style)
    canvas.write(row + 1, left, side + " " * inside + side, style)
    canvas.write(row + 1, left + 1 + (inside - len(title)) // 2, title, look.style(task, bold=True))
    canvas.write(row + 2, left, low_corner + across * inside + low_end, style)
