"""A flow as a self-contained SVG for light and dark pages: stages from left to right, or down where they are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from pointsman.flows.draw.graph import Graph, build_graph
from pointsman.flows.model import Flow, FlowTask
from pointsman.flows.plan import describe_action
from pointsman.kernel.draw.place import Pull, place_nodes
from pointsman.kernel.draw.stylesheet import stylesheet
from pointsman.kernel.draw.svg import draw_heading, draw_size
from pointsman.kernel.draw.text_width import text_width
from pointsman.kernel.draw.tone import Tone, tone_of
from pointsman.kernel.machine import State

MARGIN = 24.0
HEADER = 60.0
LEGEND = 40.0
NAME, DETAIL, TAG = 13.0, 11.0, 10.0
BOX_HEIGHT = 50.0
LEAST_WIDTH = 96.0
MOST_DETAIL = 30
GAP = 56.0
"""Between two stages: the room in which lines bend."""
SPACE = 20.0
LANE_SPACE = 12.0
HEAD = 7.0
STACK = 4.0
LONG = 7
"""With more stages than this, and few tasks in each, they go down instead of to the right."""

_RULES = """
.pointsman-flow .task > .body { stroke-width: 1.4; }
.pointsman-flow .task > .behind { opacity: 0.55; }
.pointsman-flow .task > .name { text-anchor: start; }
.pointsman-flow .task > .detail { font-size: 11px;
  font-family: ui-monospace, 'SF Mono', Menlo, Consolas, 'Liberation Mono', monospace; }
.pointsman-flow .task > .tag { font-size: 10px; font-weight: 600; text-anchor: end; }
.pointsman-flow .task.maybe > .body { stroke-dasharray: 5 3; }
.pointsman-flow .edge > .line { opacity: 0.9; }
"""

Point = tuple[float, float]
States = Mapping[str, State]


def draw_svg(flow: Flow, states: States) -> str:
    """The picture; with `states`, tasks have the colours of theirs."""
    graph = build_graph(flow)
    down = len(graph.layers) > LONG and max(len(layer) for layer in graph.layers) <= 3
    return _Picture(flow, states, _arrange(flow, graph, states, down=down)).svg()


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """The middle of every node and the size of every box, in a plane whose top left corner is (0, 0)."""

    graph: Graph
    middles: Mapping[int, Point]
    sizes: Mapping[int, Point]
    down: bool
    width: float
    height: float

    def ends(self, node: int) -> tuple[Point, Point]:
        """Where lines enter a node, and where they leave it."""
        (x, y), (width, height) = self.middles[node], self.sizes[node]
        return ((x, y - height / 2), (x, y + height / 2)) if self.down else ((x - width / 2, y), (x + width / 2, y))


def _arrange(flow: Flow, graph: Graph, states: States, *, down: bool) -> _Arrangement:
    sizes = _measure(flow, graph, states)
    across = {node: width if down else height for node, (width, height) in sizes.items()}
    distances = [[_distance(graph, across, *pair) for pair in pairwise(layer)] for layer in graph.layers]
    at = place_nodes(graph.layers, distances, [Pull(*step, 0, 0, _weight(graph, step)) for step in graph.steps])
    first = min((at[node] - across[node] / 2 for node in at), default=0)
    along: dict[int, float] = {}
    reach = 0.0
    for layer in graph.layers:
        depth = max(sizes[node][1 if down else 0] for node in layer)
        along.update(dict.fromkeys(layer, reach + depth / 2))
        sizes.update({node: (0.0, depth) if down else (depth, 0.0) for node in layer if graph.is_lane(node)})
        reach += depth + GAP * (0.8 if down else 1)
    middles = {node: (at[node] - first, along[node]) if down else (along[node], at[node] - first) for node in at}
    width = max((x + sizes[node][0] / 2 for node, (x, _) in middles.items()), default=0)
    height = max((y + sizes[node][1] / 2 for node, (_, y) in middles.items()), default=0)
    return _Arrangement(graph, middles, sizes, down, width, height)


def _measure(flow: Flow, graph: Graph, states: States) -> dict[int, Point]:
    """The size of every node; the boxes of one stage are equally wide."""
    sizes: dict[int, Point] = {}
    for layer in graph.layers:
        width = max(_box_width(flow, name, states) for node in layer if (name := graph.tasks[node]) is not None)
        sizes.update({node: (0.0, 0.0) if graph.is_lane(node) else (width, BOX_HEIGHT) for node in layer})
    return sizes


def _distance(graph: Graph, across: Mapping[int, float], one: int, other: int) -> float:
    lanes = graph.is_lane(one) or graph.is_lane(other)
    return (across[one] + across[other]) / 2 + (LANE_SPACE if lanes else SPACE)


def _weight(graph: Graph, step: tuple[int, int]) -> float:
    """Straight long lines have priority."""
    lanes = sum(graph.is_lane(node) for node in step)
    return (1, 2, 8)[lanes]


def _box_width(flow: Flow, name: str, states: States) -> float:
    task = flow.tasks[name]
    title = text_width(name, NAME, bold=True) + (
        text_width(tag, TAG, bold=True) + 14 if (tag := _tag(task, name, states)) else 0
    )
    detail = len(_detail(task)) * DETAIL * 0.605
    return max(title, detail, LEAST_WIDTH - 30) + 30


def _detail(task: FlowTask) -> str:
    action = describe_action(task)
    return action if len(action) <= MOST_DETAIL else f"{action[: MOST_DETAIL - 1]}…"


def _tag(task: FlowTask, name: str, states: States) -> str:
    """The text in the corner: the state, or else special properties of the task."""
    if name in states:
        return states[name].name.lower().replace("_", " ")
    notes = ["each"] * (task.foreach is not None) + ["maybe"] * (task.when is not None)
    return " · ".join(notes + ["optional"] * (not task.critical))


class _Picture:
    """One drawing."""

    def __init__(self, flow: Flow, states: States, arrangement: _Arrangement) -> None:
        self.flow, self.states, self.arrangement = flow, states, arrangement
        self.tones = [tone for tone in Tone if any(tone_of(state) is tone for state in states.values())]
        legend = sum(_legend_step(tone) for tone in self.tones)
        heading = text_width(flow.name, 16, bold=True) + 12 + text_width(self._summary(), 11.5)
        self.width = max(arrangement.width + STACK, heading, legend) + 2 * MARGIN
        self.height = HEADER + arrangement.height + STACK + MARGIN + (LEGEND if self.tones else 0)

    def svg(self) -> str:
        graph = self.arrangement.graph
        left = (self.width - self.arrangement.width) / 2 if self.arrangement.down else MARGIN
        boxes = [self._task(node, name) for node, name in enumerate(graph.tasks) if name is not None]
        parts = [
            self._opening(),
            f"<style>{stylesheet()}{_RULES}</style>",
            self._card(),
            f'<g transform="translate({_number(left)} {_number(HEADER)})">',
            *(self._edge(thread) for thread in graph.threads),
            *boxes,
            "</g>",
            self._legend(),
            "</svg>",
        ]
        return "\n".join(part for part in parts if part) + "\n"

    def _card(self) -> str:
        """The background and the heading."""
        return (
            f"{_rect(0.5, 0.5, self.width - 1, self.height - 1, 'card', 12)}\n"
            f"{draw_heading(self.flow.name, self._summary(), MARGIN)}"
        )

    def _summary(self) -> str:
        tasks, stages = len(self.flow.tasks), len(self.arrangement.graph.layers)
        return f"{tasks} task{'s' * (tasks != 1)} · {stages} stage{'s' * (stages != 1)}" + " · ordered" * self.flow.ordered

    def _opening(self) -> str:
        name, width, height = escape(self.flow.name), _number(self.width), _number(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="pointsman-machine pointsman-flow" role="img"'
            f' viewBox="0 0 {width} {height}" {draw_size(self.width, self.height)} aria-label="{name}" data-flow="{name}">\n'
            f"<title>{name}</title>\n<desc>{escape(self._describe())}</desc>"
        )

    def _describe(self) -> str:
        waits = (f"{name} after {', '.join(needs)}" for name, needs in self.flow.links.items() if needs)
        return f"Flow with {self._summary()}. {'; '.join(waits)}."

    def _edge(self, thread: Sequence[int]) -> str:
        arrangement = self.arrangement
        first, last = (arrangement.graph.tasks[node] for node in (thread[0], thread[-1]))
        assert first is not None
        assert last is not None
        points = [arrangement.ends(thread[0])[1]]
        for node in thread[1:-1]:
            points += arrangement.ends(node)
        end = arrangement.ends(thread[-1])[0]
        points.append((end[0], end[1] - HEAD + 1) if arrangement.down else (end[0] - HEAD + 1, end[1]))
        tone = f" tone-{tone_of(self.states[last])}" if last in self.states else ""
        return (
            f'<g class="edge{tone}" data-from="{escape(first)}" data-to="{escape(last)}">'
            f'<path class="line" d="{_curve(points, down=arrangement.down)}"/>{_head(end, down=arrangement.down)}</g>'
        )

    def _task(self, node: int, name: str) -> str:
        task = self.flow.tasks[name]
        (x, y), (width, height) = self.arrangement.middles[node], self.arrangement.sizes[node]
        left, top = x - width / 2, y - height / 2
        classes = ["task", *(["maybe"] if task.when is not None else []), *(["each"] if task.foreach is not None else [])]
        classes += [f"tone-{tone_of(self.states[name])}"] if name in self.states else []
        tag = _tag(task, name, self.states)
        behind = _rect(left + STACK, top + STACK, width, height, "behind") if task.foreach is not None else ""
        return (
            f'<g class="{" ".join(classes)}" data-task="{escape(name)}"><title>{escape(_about(name, task))}</title>'
            f"{behind}{_rect(left, top, width, height, 'body')}"
            f"{_rect(left + 7, top + 10, 3, height - 20, 'bar', 1.5)}"
            f'<text class="name" x="{_number(left + 18)}" y="{_number(top + 21)}">{escape(name)}</text>'
            f'<text class="detail" x="{_number(left + 18)}" y="{_number(top + 38)}">{escape(_detail(task))}</text>'
            + (
                f'<text class="tag" x="{_number(left + width - 12)}" y="{_number(top + 20)}">{escape(tag)}</text>'
                if tag
                else ""
            )
            + "</g>"
        )

    def _legend(self) -> str:
        x, baseline = MARGIN, self.height - MARGIN + 2
        parts = []
        for tone in self.tones:
            parts.append(
                f"{_rect(x, baseline - 10, 16, 12, f'swatch tone-{tone}', 3.5)}"
                f'<text class="note" x="{_number(x + 22)}" y="{_number(baseline)}">{tone}</text>'
            )
            x += _legend_step(tone)
        return f'<g class="legend">{"".join(parts)}</g>' if parts else ""


def _legend_step(tone: Tone) -> float:
    return text_width(tone, 11.5) + 38


def _about(name: str, task: FlowTask) -> str:
    parts = [task.description or name, describe_action(task)]
    parts += [f"when {task.when}"] if task.when is not None else []
    return "\n".join([*parts, *([f"needs {', '.join(task.needs)}"] if task.needs else [])])


def _rect(x: float, y: float, width: float, height: float, css: str, radius: float = 9) -> str:
    return (
        f'<rect class="{css}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        f' rx="{_number(radius)}"/>'
    )


def _curve(points: Sequence[Point], *, down: bool) -> str:
    """A line that leaves and enters nodes in the direction of the flow, and bends between the stages."""
    (x, y), *rest = points
    path = f"M{_number(x)} {_number(y)}"
    for next_x, next_y in rest:
        if abs(next_y - y) < 0.05 or abs(next_x - x) < 0.05:
            path += f"L{_number(next_x)} {_number(next_y)}"
        elif down:
            middle = _number((y + next_y) / 2)
            path += f"C{_number(x)} {middle} {_number(next_x)} {middle} {_number(next_x)} {_number(next_y)}"
        else:
            middle = _number((x + next_x) / 2)
            path += f"C{middle} {_number(y)} {middle} {_number(next_y)} {_number(next_x)} {_number(next_y)}"
        x, y = next_x, next_y
    return path


def _head(end: Point, *, down: bool) -> str:
    x, y = (_number(each) for each in end)
    if down:
        return f'<path class="head" d="M{x} {y}l-4 -{_number(HEAD)}h8Z"/>'
    return f'<path class="head" d="M{x} {y}l-{_number(HEAD)} -4v8Z"/>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
