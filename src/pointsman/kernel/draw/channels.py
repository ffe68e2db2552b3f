"""Rows for the horizontal parts of lines that bend in one gap, so that no two overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pointsman.kernel.draw.plan import Bend

Before = Callable[[Bend, Bend], bool]


def assign_tracks(bends: Sequence[Bend]) -> dict[Bend, int] | None:
    """The row of each line that is not straight, counted from the top; None where lines would have to overlap."""
    crooked = sorted({bend for bend in bends if bend[0] != bend[1]})
    for before in (_avoids_crossing, _avoids_overlap):
        ordered = _sorted(crooked, before)
        if ordered is not None:
            return _packed(ordered, before)
    return None


def _avoids_overlap(upper: Bend, lower: Bend) -> bool:
    """Whether `upper` must bend first: it ends where the other starts."""
    return upper[0] == lower[1]


def _avoids_crossing(upper: Bend, lower: Bend) -> bool:
    """The same, or the two run side by side and would cross if `lower` bent first."""
    if _avoids_overlap(upper, lower):
        return True
    if not _touch(upper, lower) or _avoids_overlap(lower, upper):
        return False
    if upper[1] > upper[0] and lower[1] > lower[0]:
        return upper[0] > lower[0]
    return upper[1] < upper[0] and lower[1] < lower[0] and upper[0] < lower[0]


def _touch(one: Bend, other: Bend) -> bool:
    return min(one) <= max(other) and min(other) <= max(one)


def _sorted(bends: Sequence[Bend], before: Before) -> list[Bend] | None:
    """The bends in an order that respects `before`, or None if there is a cycle."""
    left, ordered = list(bends), []
    while left:
        free = next((bend for bend in left if not any(before(other, bend) for other in left if other != bend)), None)
        if free is None:
            return None
        ordered.append(free)
        left.remove(free)
    return ordered


def _packed(ordered: Sequence[Bend], before: Before) -> dict[Bend, int]:
    tracks: dict[Bend, int] = {}
    for bend in ordered:
        track = max((tracks[other] + 1 for other in tracks if before(other, bend)), default=0)
        while any(tracks[other] == track and _touch(other, bend) for other in tracks):
            track += 1
        tracks[bend] = track
    return tracks
