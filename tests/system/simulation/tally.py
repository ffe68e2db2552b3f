"""How many histories were explained, and why others were passed over: who passes over everything finds nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

EXPLAINED = "explained"
KINDS = ("task", "key", "breaker")


@dataclass(frozen=True, slots=True)
class Tally:
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By what a history is of, and what became of it: it was explained, or the reason why it was passed over."""

    def count(self, kind: str, fate: str) -> None:
        self.counts[kind, fate] += 1

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)

    def share(self, kind: str) -> float:
        """How much of it was explained."""
        return self.counts[kind, EXPLAINED] / max(self._total(kind), 1)

    def __str__(self) -> str:
        return "\n".join(self._describe(kind) for kind in KINDS)

    def _total(self, kind: str) -> int:
        return sum(number for (of, _), number in self.counts.items() if of == kind)

    def _describe(self, kind: str) -> str:
        passed = {fate: number for (of, fate), number in self.counts.items() if of == kind and fate != EXPLAINED}
        reasons = ", ".join(f"{number} {fate}" for fate, number in sorted(passed.items(), key=lambda each: (-each[1], each[0])))
        explained = f"{self.counts[kind, EXPLAINED]} of {self._total(kind)} explained ({self.share(kind):.0%})"
        return f"histories of a {kind}: {explained}" + (f"; passed over: {reasons}" if reasons else "")
