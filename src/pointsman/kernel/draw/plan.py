"""From a graph to layers: every state, label and mark a node on a rank, every arrow a thread through the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Protocol

from pointsman.kernel.draw.graph import Arrow, Chip, Graph, Hub, Line, build_graph, label_lines
from pointsman.kernel.machine import Machine, State

Size = tuple[float, float]
Bend = tuple[float, float]
"""Where a line enters a gap at the top and leaves it at the bottom."""


class Role(Enum):
    """What occupies a place on a rank."""

    STATE = "state"
    LABEL = "label"
    MARK = "mark"
    LANE = "lane"


class Metrics(Protocol):
    """How large things are, in pixels or in cells."""

    @property
    def label_width(self) -> int:
        """How many characters a label's line should have at most."""

    @property
    def port_space(self) -> float:
        """The least distance of two arrows at a box."""

    @property
    def port_margin(self) -> float:
        """How far arrows keep from the corners of a box."""

    @property
    def lane_width(self) -> float:
        """How wide a line is that passes a rank."""

    @property
    def lead(self) -> float:
        """How far every line runs straight on before a box: the room for an arrow's head."""

    @property
    def dot(self) -> Size:
        """The size of the initial dot."""

    @property
    def whole(self) -> bool:
        """Whether positions must be whole numbers."""

    def box(self, state: State, chips: Sequence[Chip], ports: int) -> Size: ...

    def label(self, lines: Sequence[Line]) -> Size: ...

    def space(self, left: Role, right: Role) -> float:
        """The least free space between two neighbours on a rank."""

    def gap(self, bends: Sequence[Bend]) -> float:
        """The height of the gap in which these lines bend."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place on a rank."""

    role: Role
    rank: int
    size: Size


@dataclass(frozen=True, slots=True)
class Thread:
    """A line through the ranks from top to bottom; its ends are boxes or a mark, what is between are lanes and a label."""

    nodes: tuple[int, ...]
    lines: tuple[Line, ...]
    label: int

    @property
    def steps(self) -> Iterator[tuple[int, int]]:
        return pairwise(self.nodes)


@dataclass(slots=True)
class Plan:
    """What has to be placed."""

    machine: Machine
    metrics: Metrics
    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    boxes: dict[str, int] = field(default_factory=dict)
    arrows: list[Thread] = field(default_factory=list)
    stubs: list[Thread] = field(default_factory=list)
    start: Thread = field(default_factory=lambda: Thread((), (), -1))

    @property
    def threads(self) -> list[Thread]:
        return [self.start, *self.stubs, *self.arrows]

    def distance(self, left: int, right: int) -> float:
        """How far the middles of two neighbours must be apart."""
        one, other = self.nodes[left], self.nodes[right]
        return (one.size[0] + other.size[0]) / 2 + self.metrics.space(one.role, other.role)

    @property
    def least_width(self) -> float:
        """No order makes the picture narrower than this."""
        widths: dict[int, float] = {}
        for node in self.nodes:
            widths[node.rank] = widths.get(node.rank, -1) + node.size[0] + 1
        return max(widths.values())

    def layers(self) -> list[list[int]]:
        """The nodes by rank; the first guess at their order follows the arrows from the initial state."""
        below: dict[int, list[int]] = {}
        for thread in self.threads:
            for upper, lower in thread.steps:
                below.setdefault(upper, []).append(lower)
        seen: dict[int, None] = {}
        waiting = [*reversed(self.boxes.values()), self.start.label]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen[node] = None
                waiting += reversed(below.get(node, ()))
        seen.update(dict.fromkeys(range(len(self.nodes))))
        layers: list[list[int]] = [[] for _ in range(max(node.rank for node in self.nodes) + 1)]
        for number in seen:
            layers[self.nodes[number].rank].append(number)
        return layers


def make_plan(machine: Machine, metrics: Metrics) -> Plan:
    """Put everything that has to be drawn on its rank."""
    plan = Plan(machine, metrics, build_graph(machine))
    _add_boxes(plan)
    plan.start = _add_mark(plan, machine.initial.name, metrics.dot, ())
    plan.stubs = [_add_stub(plan, hub) for hub in plan.graph.hubs]
    plan.arrows = _add_arrows(plan)
    return plan


def _add(plan: Plan, node: Node) -> int:
    plan.nodes.append(node)
    return len(plan.nodes) - 1


def _add_boxes(plan: Plan) -> None:
    levels = plan.graph.levels
    above, below = dict.fromkeys(levels, 0), dict.fromkeys(levels, 0)
    for arrow in plan.graph.arrows:
        (above if arrow.back else below)[arrow.from_state] += 1
        (below if arrow.back else above)[arrow.to_state] += 1
    for target in (plan.machine.initial.name, *(hub.target for hub in plan.graph.hubs)):
        above[target] += 1
    for state in plan.machine.states:
        ports = max(above[state.name], below[state.name])
        size = plan.metrics.box(state, plan.graph.chips[state.name], ports)
        plan.boxes[state.name] = _add(plan, Node(Role.STATE, 2 * levels[state.name] + 1, size))


def _add_mark(plan: Plan, target: str, size: Size, lines: tuple[Line, ...]) -> Thread:
    box = plan.boxes[target]
    mark = _add(plan, Node(Role.MARK, plan.nodes[box].rank - 1, size))
    return Thread((mark, box), lines, mark)


def _add_stub(plan: Plan, hub: Hub) -> Thread:
    return _add_mark(plan, hub.target, plan.metrics.label(hub.lines), hub.lines)


def _add_arrows(plan: Plan) -> list[Thread]:
    """Short arrows first: where the labels of long ones go depends on the room that is left."""
    load: dict[int, float] = {}
    for node in plan.nodes:
        load[node.rank] = load.get(node.rank, 0) + node.size[0]
    threads: dict[Arrow, Thread] = {}
    for arrow in sorted(plan.graph.arrows, key=lambda arrow: len(_ranks_between(plan, arrow))):
        threads[arrow] = _add_arrow(plan, arrow, load)
    return [threads[arrow] for arrow in plan.graph.arrows]


def _ranks_between(plan: Plan, arrow: Arrow) -> range:
    first, last = sorted(plan.nodes[plan.boxes[name]].rank for name in (arrow.from_state, arrow.to_state))
    return range(first + 1, last)


def _add_arrow(plan: Plan, arrow: Arrow, load: dict[int, float]) -> Thread:
    lines = label_lines(arrow.moves, plan.metrics.label_width)
    size = plan.metrics.label(lines)
    ranks = _ranks_between(plan, arrow)
    from_rank = plan.nodes[plan.boxes[arrow.from_state]].rank
    label_rank = min(ranks[::2], key=lambda rank: (load.get(rank, 0), abs(rank - from_rank)))
    load[label_rank] = load.get(label_rank, 0) + size[0]
    between = [
        _add(plan, Node(Role.LABEL, rank, size) if rank == label_rank else Node(Role.LANE, rank, (plan.metrics.lane_width, 0)))
        for rank in ranks
    ]
    ends = (arrow.to_state, arrow.from_state) if arrow.back else (arrow.from_state, arrow.to_state)
    upper, lower = (plan.boxes[end] for end in ends)
    return Thread((upper, *between, lower), lines, between[ranks.index(label_rank)])
