"""The layered layout that every picture is drawn from.

States stand on odd ranks and labels on the even ranks between them; an arrow that passes a rank has a lane of its own there.
So nothing but an arrow's own line ever touches a box or a label, and arrows bend only in the gaps between ranks:

    rank 0       ●               marks: the initial dot, the stubs of hubs
    rank 1    ┌──┴──┐            states
              └┬───┬┘            gap: arrows bend here
    rank 2  label  │             labels, and lanes of arrows that pass
    rank 3  ┌──┴─┐ │             states, and lanes of arrows that pass

The same layout serves pixels and character cells: `Metrics` says how large things are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor

from pointsman.kernel.draw.graph import Arrow, Chip, Hub, Line
from pointsman.kernel.draw.order import Layers, order_layers
from pointsman.kernel.draw.place import Pull, place_nodes
from pointsman.kernel.draw.plan import Bend, Metrics, Plan, Role, Thread, make_plan
from pointsman.kernel.draw.ports import Ports, Positions, align_ports, snap_ports, spread_ports, straighten
from pointsman.kernel.machine import Machine, State

Point = tuple[float, float]
Span = tuple[float, float]

TOUCHES = 3
"""How often ports and runs are aligned with each other."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A place in the picture, by its middle and its top."""

    middle: float
    top: float
    width: float
    height: float

    @property
    def left(self) -> float:
        return self.middle - self.width / 2

    @property
    def right(self) -> float:
        return self.middle + self.width / 2

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def overlaps(self, other: Rect) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True, slots=True)
class Box:
    """A state in its place."""

    state: State
    rect: Rect
    chips: tuple[Chip, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """An arrow in its place; `points` lead from its first state to its second and bend only in gaps."""

    arrow: Arrow
    lines: tuple[Line, ...]
    label: Rect
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Stub:
    """Replaces the arrows of a hub: a label, and a short line from it to the target."""

    hub: Hub
    lines: tuple[Line, ...]
    label: Rect
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A machine in the plane; the top left corner is (0, 0)."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    stubs: tuple[Stub, ...]
    dot: Rect
    start: tuple[Point, ...]
    """The line from the initial dot to the initial state."""
    gaps: tuple[Span, ...]
    """Top and bottom of every gap between ranks."""


def lay_out(machine: Machine, metrics: Metrics) -> Layout:
    """Give everything in the machine a place: of the orders with few crossings, the one that comes out best."""
    plan = make_plan(machine, metrics)
    edges = [step for thread in plan.threads for step in thread.steps]
    orders = order_layers(plan.layers(), edges)
    arrangements = [(_arrange(plan, order), crossings) for order, crossings in orders]
    best, _ = min(arrangements, key=lambda pair: pair[0].cost(pair[1]))
    return (best.mirrored() if best.starts_right else best).layout()


def _arrange(plan: Plan, layers: Layers) -> _Arrangement:
    ports = spread_ports(plan, layers)
    distances = [[plan.distance(left, right) for left, right in pairwise(layer)] for layer in layers]
    pulls = [
        Pull(upper, lower, ports.get((thread, upper), 0), ports.get((thread, lower), 0), _weight(plan, upper, lower))
        for thread in plan.threads
        for upper, lower in thread.steps
    ]
    at = place_nodes(layers, distances, pulls)
    left = min(at[node] - plan.nodes[node].size[0] / 2 for node in at)
    if plan.metrics.whole:
        at = {node: float(floor(position - floor(left) + 0.5)) for node, position in at.items()}
    for _ in range(TOUCHES):
        ports = align_ports(plan, layers, at)
        straighten(plan, layers, at, ports)
    snap_ports(plan, layers, at, ports)
    left = min(at[node] - plan.nodes[node].size[0] / 2 for node in at)
    if plan.metrics.whole:
        left = floor(left)
    return _Arrangement(plan, layers, {node: position - left for node, position in at.items()}, ports)


def _weight(plan: Plan, upper: int, lower: int) -> float:
    """Straight long arrows have priority."""
    roles = {plan.nodes[upper].role, plan.nodes[lower].role}
    if Role.STATE not in roles:
        return 8
    return 2 if Role.LANE in roles else 1


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Everything placed from left to right; from top to bottom it follows from the ranks."""

    plan: Plan
    layers: Layers
    at: Positions
    ports: Ports

    def cost(self, crossings: int) -> float:
        """The cost: crossings, bends and width, in units of the space between two arrows."""
        bends = [abs(top - bottom) for bent in self._bends() for top, bottom in bent]
        crooked = sum(1 for bend in bends if bend >= 1)
        unit = self.plan.metrics.port_space
        return 6 * crossings + 2 * crooked + (0.3 * sum(bends) + self._width()) / unit

    @property
    def starts_right(self) -> bool:
        """Whether the initial state is to the right of the middle, where readers do not start."""
        return 2 * self.at[self.plan.start.label] > 1.1 * self._width()

    def mirrored(self) -> _Arrangement:
        """The mirror image."""
        ends = min(self.at[node] - self.plan.nodes[node].size[0] / 2 for node in self.at) + self._width()
        at = {node: ends - position for node, position in self.at.items()}
        layers = [layer[::-1] for layer in self.layers]
        return _Arrangement(self.plan, layers, at, {end: -port for end, port in self.ports.items()})

    def layout(self) -> Layout:
        plan = self.plan
        ranks, gaps = self._rows()
        rects = [self._rect(node, ranks) for node in range(len(plan.nodes))]
        return Layout(
            width=self._width(),
            height=ranks[-1][1] - plan.metrics.lead,
            boxes=tuple(
                Box(state, rects[plan.boxes[state.name]], plan.graph.chips[state.name]) for state in plan.machine.states
            ),
            routes=tuple(
                Route(arrow, thread.lines, rects[thread.label], self._points(thread, rects, ranks, upwards=arrow.back))
                for arrow, thread in zip(plan.graph.arrows, plan.arrows, strict=True)
            ),
            stubs=tuple(
                Stub(hub, thread.lines, rects[thread.label], self._points(thread, rects, ranks, upwards=False))
                for hub, thread in zip(plan.graph.hubs, plan.stubs, strict=True)
            ),
            dot=rects[plan.start.label],
            start=self._points(plan.start, rects, ranks, upwards=False),
            gaps=tuple(gaps),
        )

    def _width(self) -> float:
        return max(self.at[node] + self.plan.nodes[node].size[0] / 2 for node in self.at)

    def _x(self, thread: Thread, node: int) -> float:
        return self.at[node] + self.ports.get((thread, node), 0)

    def _bends(self) -> list[list[Bend]]:
        """For each rank, the lines in the gap below it."""
        bends: list[list[Bend]] = [[] for _ in self.layers]
        for thread in self.plan.threads:
            for upper, lower in thread.steps:
                bends[self.plan.nodes[upper].rank].append((self._x(thread, upper), self._x(thread, lower)))
        return bends

    def _rows(self) -> tuple[list[Span], list[Span]]:
        """Top and bottom of every rank and of every gap."""
        ranks: list[Span] = []
        gaps: list[Span] = []
        y = 0.0
        for rank, (layer, bends) in enumerate(zip(self.layers, self._bends(), strict=True)):
            height = max((self.plan.nodes[node].size[1] for node in layer), default=0)
            height += 2 * self.plan.metrics.lead if rank % 2 else 0
            ranks.append((y, y + height))
            y += height
            if bends:
                gaps.append((y, y + self.plan.metrics.gap(bends)))
                y = gaps[-1][1]
        return ranks, gaps

    def _rect(self, node: int, ranks: Sequence[Span]) -> Rect:
        width, height = self.plan.nodes[node].size
        top, bottom = ranks[self.plan.nodes[node].rank]
        role = self.plan.nodes[node].role
        room = 0 if role is Role.LANE else bottom - top - height
        lead = room if role is Role.MARK else room / 2
        return Rect(self.at[node], floor(top + lead) if self.plan.metrics.whole else top + lead, width, height)

    def _points(self, thread: Thread, rects: Sequence[Rect], ranks: Sequence[Span], *, upwards: bool) -> tuple[Point, ...]:
        points: list[Point] = []
        for index, node in enumerate(thread.nodes):
            x = self._x(thread, node)
            top, bottom = ranks[self.plan.nodes[node].rank]
            first = rects[node].bottom if index == 0 else top
            last = rects[node].top if index == len(thread.nodes) - 1 else bottom
            points += [(x, first), (x, last)]
        return tuple(reversed(points)) if upwards else tuple(points)
