"""Horizontal positions for a given order.

Every layer in turn is put where its neighbours pull it, exactly (pool adjacent violators), with the distances kept. Pulls
grow weaker with distance (reweighted least squares), which makes most lines exactly straight and bends only a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

SOFTENING = (400.0, 200.0, 100.0, 40.0, 15.0, 5.0, 1.0)
ROUNDS = 4
IDLE_PULL = 1e-4
"""What keeps things without neighbours near the middle."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A line between two nodes, from an offset within one to an offset within the other."""

    upper: int
    lower: int
    upper_offset: float
    lower_offset: float
    weight: float


def settle(wanted: Sequence[float], weights: Sequence[float], distances: Sequence[float]) -> list[float]:
    """The positions nearest to `wanted` in which neighbours keep their `distances` (one fewer than positions)."""
    offsets = [0.0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, total, members = want - offset, weight, 1
        while blocks and blocks[-1][0] >= mean:
            other_mean, other_total, other_members = blocks.pop()
            mean = (mean * total + other_mean * other_total) / (total + other_total)
            total, members = total + other_total, members + other_members
        blocks.append((mean, total, members))
    means = [mean for mean, _, members in blocks for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def place_nodes(
    layers: Sequence[Sequence[int]], distances: Sequence[Sequence[float]], pulls: Sequence[Pull]
) -> dict[int, float]:
    """The middle of every node."""
    at = _packed(layers, distances)
    pulled: dict[int, list[tuple[int, float, float]]] = {node: [] for node in at}
    for pull in pulls:
        shift = pull.lower_offset - pull.upper_offset
        pulled[pull.upper].append((pull.lower, shift, pull.weight))
        pulled[pull.lower].append((pull.upper, -shift, pull.weight))
    down = [rank for rank, layer in enumerate(layers) if layer]
    ranks = down + down[-2:0:-1]
    for softness in SOFTENING:
        for _ in range(ROUNDS):
            for rank in ranks:
                _settle_layer(layers[rank], distances[rank], at, pulled, softness)
    return at


def _packed(layers: Sequence[Sequence[int]], distances: Sequence[Sequence[float]]) -> dict[int, float]:
    at: dict[int, float] = {}
    for layer, gaps in zip(layers, distances, strict=True):
        offsets = accumulate(gaps, initial=-sum(gaps) / 2)
        at.update(zip(layer, offsets, strict=False))
    return at


def _settle_layer(
    layer: Sequence[int],
    distances: Sequence[float],
    at: dict[int, float],
    pulled: Mapping[int, Sequence[tuple[int, float, float]]],
    softness: float,
) -> None:
    wanted, weights = [], []
    for node in layer:
        here = at[node]
        total, strength = 0.0, IDLE_PULL
        for other, shift, weight in pulled[node]:
            target = at[other] + shift
            force = weight / max(abs(target - here), softness)
            total += force * target
            strength += force
        wanted.append(total / strength)
        weights.append(strength)
    at.update(zip(layer, settle(wanted, weights, distances), strict=True))
