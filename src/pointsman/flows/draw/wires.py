"""The lines between two stages in character cells: which may share one, and in which row each turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

Step = tuple[int, int]


@dataclass(slots=True)
class Wire:
    """A line from one or several columns above to one or several below."""

    starts: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)

    @property
    def span(self) -> tuple[int, int]:
        both = self.starts | self.ends
        return min(both), max(both)

    @property
    def is_straight(self) -> bool:
        low, high = self.span
        return low == high

    def touches(self, other: Wire) -> bool:
        """Whether the two would overlap in one row."""
        (low, high), (other_low, other_high) = self.span, other.span
        return not self.is_straight and not other.is_straight and low <= other_high and other_low <= high

    @property
    def eagerness(self) -> int:
        """Lines to the right turn before those on their left, and vice versa, so that they do not cross."""
        to_right = sum(self.ends) * len(self.starts) > sum(self.starts) * len(self.ends)
        return -min(self.starts) if to_right else max(self.starts)


def find_bundles(steps: Iterable[Step]) -> dict[int, int]:
    """The bundle of each source: sources share a line if they lead to the same targets and no other source does."""
    targets: dict[int, set[int]] = {}
    sources: dict[int, set[int]] = {}
    for source, target in steps:
        targets.setdefault(source, set()).add(target)
        sources.setdefault(target, set()).add(source)
    bundles = {}
    for source, ends in targets.items():
        together = sources[min(ends)]
        shared = all(sources[end] == together for end in ends) and all(targets[each] == ends for each in together)
        bundles[source] = min(together) if shared else source
    return bundles


def assign_rows(wires: Mapping[int, Wire]) -> dict[int, int] | None:
    """The row in which each wire turns, counted from the top; None if two would overlap."""
    order = sorted(wires, key=lambda name: wires[name].eagerness)
    # A line that ends where another one starts must turn first.
    above = {name: [other for other in order if other != name and wires[other].starts & wires[name].ends] for name in order}
    try:
        ordered = list(TopologicalSorter(above).static_order())
    except CycleError:
        return None
    rows: dict[int, int] = {}
    for name in ordered:
        row = max((rows[other] + 1 for other in above[name]), default=0)
        while any(rows[other] == row and wires[name].touches(wires[other]) for other in rows):
            row += 1
        rows[name] = row
    return rows
