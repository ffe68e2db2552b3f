"""Where arrows leave and enter boxes, and how straight they can be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor

from pointsman.kernel.draw.place import settle
from pointsman.kernel.draw.plan import Plan, Thread

Ports = dict[tuple[Thread, int], float]
"""Where a thread meets a box, seen from the middle of the box."""
Positions = dict[int, float]

COMFORT = 1.5
"""How much more than the least distance arrows keep from one another where a box has the room."""

SLACK = 0.4
"""The part of the space between neighbours that may be given up to keep a line straight."""


def sides(plan: Plan, layers: Sequence[Sequence[int]]) -> list[tuple[int, list[tuple[Thread, int]]]]:
    """For each side of each box: the threads that end there, with their next node, from left to right."""
    place = {node: index for layer in layers for index, node in enumerate(layer)}
    found: list[tuple[int, list[tuple[Thread, int]]]] = []
    for box in plan.boxes.values():
        top = [(thread, thread.nodes[-2]) for thread in plan.threads if thread.nodes[-1] == box]
        bottom = [(thread, thread.nodes[1]) for thread in plan.threads if thread.nodes[0] == box]
        found += ((box, sorted(ends, key=lambda end: place[end[1]])) for ends in (top, bottom) if ends)
    return found


def spread_ports(plan: Plan, layers: Sequence[Sequence[int]]) -> Ports:
    """Ports at even distances: good enough to begin with."""
    ports: Ports = {}
    for box, ends in sides(plan, layers):
        step = _step(plan, box, len(ends), 3.0)
        for index, (thread, _) in enumerate(ends):
            ports[thread, box] = (index - (len(ends) - 1) / 2) * step
    return ports


def align_ports(plan: Plan, layers: Sequence[Sequence[int]], at: Mapping[int, float]) -> Ports:
    """Ports straight over or under what follows, as far as the width of the box allows."""
    ports: Ports = {}
    for box, ends in sides(plan, layers):
        reach = _reach(plan, box)
        step = _step(plan, box, len(ends), COMFORT)
        settled = settle([at[node] - at[box] for _, node in ends], [1.0] * len(ends), [step] * (len(ends) - 1))
        highest = reach - step * (len(ends) - 1)
        for index, ((thread, _), port) in enumerate(zip(ends, settled, strict=True)):
            offset = min(max(port - step * index, -reach), highest) + step * index
            ports[thread, box] = floor(offset + 0.5) if plan.metrics.whole else offset
    return ports


def snap_ports(plan: Plan, layers: Sequence[Sequence[int]], at: Mapping[int, float], ports: Ports) -> None:
    """Take the last small kinks out of lines that are nearly straight."""
    near = plan.metrics.port_space
    for box, ends in sides(plan, layers):
        reach = _reach(plan, box)
        for index, (thread, node) in enumerate(ends):
            wish = at[node] - at[box]
            low = ports[ends[index - 1][0], box] + near if index else -reach
            high = ports[ends[index + 1][0], box] - near if index + 1 < len(ends) else reach
            if abs(wish - ports[thread, box]) < near and low <= wish <= high:
                ports[thread, box] = wish


def _reach(plan: Plan, box: int) -> float:
    reach = max(plan.nodes[box].size[0] / 2 - plan.metrics.port_margin, 0)
    return floor(reach) if plan.metrics.whole else reach


def _step(plan: Plan, box: int, ends: int, comfort: float) -> float:
    step = min(2 * _reach(plan, box) / max(ends - 1, 1), comfort * plan.metrics.port_space)
    return floor(step) if plan.metrics.whole else step


def straighten(plan: Plan, layers: Sequence[Sequence[int]], at: Positions, ports: Ports) -> None:
    """Give each thread as long a straight run as its neighbours leave room for, in line with a port where possible."""
    limits = _Limits(plan, layers, at)
    for thread in sorted(plan.threads, key=lambda thread: -len(thread.nodes)):
        inner = [node for node in thread.nodes if (thread, node) not in ports]
        while inner:
            low, high = limits.of(inner[0])
            count = 1
            while count < len(inner):
                next_low, next_high = limits.of(inner[count])
                if max(low, next_low) > min(high, next_high):
                    break
                low, high, count = max(low, next_low), min(high, next_high), count + 1
            run, inner = inner[:count], inner[count:]
            wishes = [at[end] + ports[thread, end] for end in _ends(thread, run) if (thread, end) in ports]
            middle = sorted(at[node] for node in run)[len(run) // 2]
            fitting = sorted((wish for wish in wishes if low <= wish <= high), key=lambda wish: abs(wish - middle))
            target = fitting[0] if fitting else min(max(middle, low), high)
            at.update(dict.fromkeys(run, target))


def _ends(thread: Thread, run: Sequence[int]) -> tuple[int, ...]:
    """The boxes that a run of a thread reaches."""
    first, last = thread.nodes.index(run[0]), thread.nodes.index(run[-1])
    above = (thread.nodes[0],) if first == 1 else ()
    below = (thread.nodes[-1],) if last == len(thread.nodes) - 2 else ()
    return above + below


class _Limits:
    """How far a node can move before it comes too near to a neighbour."""

    def __init__(self, plan: Plan, layers: Sequence[Sequence[int]], at: Positions) -> None:
        self._plan, self._at = plan, at
        self._left = {right: left for layer in layers for left, right in pairwise(layer)}
        self._right = {left: right for right, left in self._left.items()}

    def of(self, node: int) -> tuple[float, float]:
        low, high = float("-inf"), float("inf")
        if (left := self._left.get(node)) is not None:
            low = self._at[left] + self._least(left, node)
        if (right := self._right.get(node)) is not None:
            high = self._at[right] - self._least(node, right)
        return low, max(low, high)

    def _least(self, left: int, right: int) -> float:
        """A line may come a little nearer to its neighbour where that spares it a kink."""
        distance = self._plan.distance(left, right)
        if self._plan.metrics.whole:
            return distance
        return distance - SLACK * self._plan.metrics.space(self._plan.nodes[left].role, self._plan.nodes[right].role)
