"""What is wrong with a flow, by where it is in the flow; a file gives it a line and a column."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.errors import Finding, Place

Path = tuple[str | int, ...]
"""Where something is in a flow, as `("tasks", "build", "needs", 0)`."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is wrong, and what to do about it."""

    rule: str
    path: Path
    message: str
    advice: str
    of_key: bool = False
    """About the key, not about what it holds."""
    snippet: str = ""
    """The part of the text that it is about."""

    def finding(self, place: Place | None = None) -> Finding:
        """As a finding; without a place it names the path."""
        return Finding(self.rule, place or Place(write_path(self.path), 0, 0), self.message, self.advice)


def write_path(path: Path) -> str:
    """As people write it: `tasks.build.needs[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "flow"
