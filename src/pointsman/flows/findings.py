"""Collects what is wrong with a flow: checks name the path of a value, and the file adds its line and column."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.errors import Finding, Place, nearest, suggest
from pointsman.flows.document import Path, Spot

MOST_SUGGESTIONS = 50


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

    def __len__(self) -> int:
        return len(self._found)

    def suggest(self, name: str, known: Iterable[str]) -> str:
        """A suggestion for an unknown name. Searching takes long where many are known, so only the first findings have one."""
        return suggest(name, known) if len(self) < MOST_SUGGESTIONS else "Fix the other findings first."

    def nearest(self, name: str, known: Iterable[str]) -> tuple[str, ...]:
        """The known names that are similar; none after many findings."""
        return nearest(name, known) if len(self) < MOST_SUGGESTIONS else ()

    @property
    def findings(self) -> list[Finding]:
        return list(self._found)


def write_path(path: Path) -> str:
    """A path as text: `tasks.build.needs[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "flow"
