"""The order within each layer: sweeps by medians and swaps of neighbours, keeping the order with the fewest crossings."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

Edge = tuple[int, int]
"""An edge between adjacent layers: the node above, the node below."""
Layers = list[list[int]]

SWEEPS = 16
PATIENCE = 4
"""Sweeps without an improvement before giving up."""
CANDIDATES = 4
"""How many orders are worth a closer look."""


def order_layers(layers: Layers, edges: Sequence[Edge]) -> list[tuple[Layers, int]]:
    """Good orders of the layers with their numbers of crossings, the fewest first."""
    tangle = _Tangle(layers, edges)
    found: dict[str, tuple[Layers, int]] = {}
    for start in _starts(layers):
        for downwards in (True, False):
            tangle.layers = [list(layer) for layer in start]
            best, fewest, idle = tangle.copy(), tangle.crossings(), 0
            for sweep in range(SWEEPS):
                tangle.sweep(downwards=downwards == (sweep % 2 == 0))
                tangle.swap_neighbours()
                count = tangle.crossings()
                idle = 0 if count < fewest else idle + 1
                if count < fewest:
                    best, fewest = tangle.copy(), count
                if idle > PATIENCE:
                    break
            found.setdefault(str(best), (best, fewest))
    return sorted(found.values(), key=lambda pair: pair[1])[:CANDIDATES]


def _starts(layers: Layers) -> list[Layers]:
    """A few different orders to begin with: as given, mirrored, and with every other node moved to the left."""
    mirrored = [layer[::-1] for layer in layers]
    folded = [layer[::2] + layer[1::2][::-1] for layer in layers]
    return [layers, mirrored, folded, [layer[::-1] for layer in folded]]


class _Tangle:
    """Layers that are being sorted out."""

    def __init__(self, layers: Layers, edges: Sequence[Edge]) -> None:
        self.layers = [list(layer) for layer in layers]
        nodes = [node for layer in layers for node in layer]
        self._above: dict[int, list[int]] = {node: [] for node in nodes}
        self._below: dict[int, list[int]] = {node: [] for node in nodes}
        for upper, lower in edges:
            self._below[upper].append(lower)
            self._above[lower].append(upper)

    def copy(self) -> Layers:
        return [list(layer) for layer in self.layers]

    def crossings(self) -> int:
        total = 0
        for upper, lower in pairwise(self.layers):
            place = {node: at for at, node in enumerate(lower)}
            seen: list[int] = []
            for node in upper:
                ends = sorted(place[end] for end in self._below[node])
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    def sweep(self, *, downwards: bool) -> None:
        """Move each node to the median of its neighbours in the layer that was sorted before."""
        ranks = range(1, len(self.layers)) if downwards else range(len(self.layers) - 2, -1, -1)
        neighbours = self._above if downwards else self._below
        for rank in ranks:
            fixed = self.layers[rank - 1 if downwards else rank + 1]
            place = {node: at for at, node in enumerate(fixed)}
            wanted = {node: _median(sorted(place[end] for end in neighbours[node])) for node in self.layers[rank]}
            movable = sorted((node for node in self.layers[rank] if wanted[node] >= 0), key=wanted.__getitem__)
            line = iter(movable)
            self.layers[rank] = [next(line) if wanted[node] >= 0 else node for node in self.layers[rank]]

    def swap_neighbours(self) -> None:
        """Swap adjacent nodes for as long as that removes crossings."""
        improved, rounds = True, 0
        while improved and rounds < 10:
            improved, rounds = False, rounds + 1
            for rank, layer in enumerate(self.layers):
                above = self._ends(rank - 1, layer, self._above)
                below = self._ends(rank + 1, layer, self._below)
                for at in range(len(layer) - 1):
                    left, right = layer[at], layer[at + 1]
                    now = _crossed(above[left], above[right]) + _crossed(below[left], below[right])
                    then = _crossed(above[right], above[left]) + _crossed(below[right], below[left])
                    if then < now:
                        layer[at], layer[at + 1] = right, left
                        improved = True

    def _ends(self, rank: int, layer: list[int], neighbours: dict[int, list[int]]) -> dict[int, list[int]]:
        if not 0 <= rank < len(self.layers):
            return {node: [] for node in layer}
        place = {node: at for at, node in enumerate(self.layers[rank])}
        return {node: sorted(place[end] for end in neighbours[node]) for node in layer}


def _median(places: Sequence[int]) -> float:
    """The median as dot weighs it: between the two middle ones, nearer to where the rest is dense; -1 if there is none."""
    if not places:
        return -1
    middle = len(places) // 2
    if len(places) % 2:
        return places[middle]
    if len(places) == 2:
        return sum(places) / 2
    left, right = places[middle - 1] - places[0], places[-1] - places[middle]
    if left + right == 0:
        return (places[middle - 1] + places[middle]) / 2
    return (places[middle - 1] * right + places[middle] * left) / (left + right)


def _crossed(left: Sequence[int], right: Sequence[int]) -> int:
    """How many edges of two neighbours cross, given the sorted places of their far ends."""
    if not left or not right or left[-1] <= right[0]:
        return 0
    return sum(len(left) - bisect_right(left, end) for end in right)
