"""Collects what is wrong with a flow: checks name the path of a value, and the file adds its line and column."""

from __future__ import annotations

from pointsman.errors import Finding, Place
from pointsman.flows.document import Path, Spot


class Reporter:
    """Called with each finding. Without the spots of a file, a finding has the path instead of a line."""

    def __init__(self, spots: Spot | None = None) -> None:
        self._spots = spots
        self._found: dict[Finding, None] = {}

    def __call__(self, rule: str, path: Path, message: str, advice: str, *, of_key: bool = False, snippet: str = "") -> None:
        """`of_key`: the finding is about the key, not its value. `snippet`: the part of the text that it is about."""
        place = Place(write_path(path), 0, 0)
        if self._spots is not None:
            spot = self._spots.find(path)
            place = spot.key if of_key else spot.place_of(snippet)
        self._found[Finding(rule, place, message, advice)] = None

    @property
    def findings(self) -> list[Finding]:
        return list(self._found)


def write_path(path: Path) -> str:
    """A path as text: `tasks.build.needs[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "flow"
