"""From plain values to a flow: everything whose shape is wrong is reported, left out, and the rest is taken as it is.

So one mistake does not hide the others: what is left can still be checked for sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pointsman.flows.document import Spot
from pointsman.flows.explain import INTERNAL, explain_error, explain_internal, explain_key, explain_missing, find_meant
from pointsman.flows.model import Flow
from pointsman.flows.remark import Path, Remark

ROUNDS = 20
UNNAMED = "unnamed"


@dataclass(slots=True)
class Shaped:
    """The flow as far as it can be made out, and what is wrong with the rest."""

    flow: Flow | None = None
    remarks: list[tuple[Remark, Spot]] = field(default_factory=list)
    damaged: set[Path] = field(default_factory=set)
    """The parts that were left out."""


def shape_flow(value: dict[str, Any], spot: Spot) -> Shaped:
    """Read a flow from plain values; `value` and `spot` are pruned together as parts have to be left out."""
    pruning = _Pruning(value, spot)
    pruning.drop_internal()
    for _ in range(ROUNDS):
        try:
            pruning.shaped.flow = Flow.model_validate(value)
            break
        except ValidationError as error:
            found = error.errors(include_url=False)
        for details in sorted(found, key=lambda each: _order(each["loc"]), reverse=True):
            pruning.take_out(details)
    return pruning.shaped


def _order(path: Sequence[str | int]) -> list[tuple[str, int]]:
    """Later entries of a list come out first, so that the numbers of the others still hold."""
    return [("", step) if isinstance(step, int) else (step, 0) for step in path]


class _Pruning:
    """Values on the way to a flow, and the spots beside them."""

    def __init__(self, value: dict[str, Any], spot: Spot) -> None:
        self._value, self._spot = value, spot
        self.shaped = Shaped()

    def drop_internal(self) -> None:
        """What the engine adds to a subtask cannot be said in a file."""
        tasks = self._value.get("tasks")
        for name, task in tasks.items() if isinstance(tasks, dict) else ():
            for key in sorted(INTERNAL & task.keys()) if isinstance(task, dict) else ():
                self._report(explain_internal(name, key))
                self._remove(("tasks", name, key))

    def take_out(self, details: ErrorDetails) -> None:
        """Report one error of the shape, and remove or rename what caused it."""
        wanted = tuple(details["loc"])
        path = self._existing(wanted)
        if details["type"] == "extra_forbidden":
            self._take_out_key(path)
            return
        missing = details["type"] == "missing"
        self._report(explain_missing(wanted) if missing else explain_error(details, path))
        self.shaped.damaged.add(wanted if missing else path)
        if wanted == ("name",):
            self._value["name"] = UNNAMED
        elif path:
            self._remove(path)

    def _take_out_key(self, path: Path) -> None:
        """A misspelt key is taken for what was meant, so that nothing is said to be missing."""
        key, above = str(path[-1]), path[:-1]
        if not above and key.startswith("x-"):
            self._remove(path)  # a place for anchors, as in other YAML files
            return
        self._report(explain_key(path))
        meant, holder = find_meant(path), self._at(above)
        if meant and meant not in holder:
            spots: Any = self._spot.find(above).inside
            holder[meant], spots[meant] = holder.pop(key), spots.pop(key)
        else:
            self._remove(path)

    def _report(self, remark: Remark) -> None:
        """With the spot of now: what is removed later may shift it."""
        if all(remark != other for other, _ in self.shaped.remarks):
            self.shaped.remarks.append((remark, self._spot.find(remark.path)))

    def _existing(self, path: Path) -> Path:
        """The part of a path that is there."""
        value: Any = self._value
        for depth, step in enumerate(path):
            if not isinstance(value, dict | list):
                return path[:depth]
            try:
                value = value[step]  # type: ignore[index] # of the wrong kind, it is simply not there
            except (KeyError, IndexError, TypeError):
                return path[:depth]
        return path

    def _at(self, path: Path) -> Any:
        value: Any = self._value
        for step in path:
            value = value[step]
        return value

    def _remove(self, path: Path) -> None:
        if self._existing(path) == path:
            spots: Any = self._spot.find(path[:-1]).inside
            del self._at(path[:-1])[path[-1]], spots[path[-1]]
