"""From plain values to a flow: every invalid value is reported and left out, so that the rest can be checked, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pointsman.errors import Finding
from pointsman.flows import kinds
from pointsman.flows.document import Path, Spot
from pointsman.flows.explain import INTERNAL, explain_error, explain_internal, explain_key, find_meant
from pointsman.flows.findings import Reporter
from pointsman.flows.model import Flow

ROUNDS = 20
UNNAMED = "unnamed"


def shape_flow(value: dict[str, Any], spot: Spot, report: Reporter) -> tuple[Flow | None, set[Path]]:
    """The flow, as far as it can be read, and the paths that were left out; `value` and `spot` are pruned together."""
    pruning = _Pruning(value, spot, report)
    pruning.drop_internal()
    for _ in range(ROUNDS):
        try:
            return Flow.model_validate(value), pruning.damaged
        except ValidationError as error:
            pruning.take_out_all(sorted(error.errors(include_url=False), key=lambda each: _order(each["loc"]), reverse=True))
    return None, pruning.damaged


def explain_task(name: str, keys: dict[str, Any], error: ValidationError) -> Finding:
    """What is wrong with a task outside a flow file, in the words for flow files; an unknown key first."""
    report = Reporter()
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    wanted = ("tasks", name, *first["loc"])
    path = _find_existing({"tasks": {name: keys}}, wanted)
    if first["type"] == "extra_forbidden":
        explain_key(report, path, keys)
    else:
        first["loc"] = wanted
        explain_error(report, first, path)
    return report.findings[0]


def _order(path: Sequence[str | int]) -> list[tuple[str, int]]:
    """Later list entries are removed first, so that the indexes of the others stay valid."""
    return [("", step) if isinstance(step, int) else (step, 0) for step in path]


def _find_existing(value: Any, path: Path) -> Path:
    """The longest part of a path that exists."""
    for depth, step in enumerate(path):
        if not isinstance(value, dict | list):
            return path[:depth]
        try:
            value = value[step]  # type: ignore[index] # a step of the wrong type does not exist
        except (KeyError, IndexError, TypeError):
            return path[:depth]
    return path


class _Pruning:
    """The values of a flow and their spots."""

    def __init__(self, value: dict[str, Any], spot: Spot, report: Reporter) -> None:
        self._value, self._spot, self._report = value, spot, report
        self.damaged: set[Path] = set()

    def drop_internal(self) -> None:
        """Remove the keys that only subtasks have."""
        for name, task in self._tasks():
            for key in sorted(INTERNAL & task.keys()):
                explain_internal(self._report, name, key)
                self._remove(("tasks", name, key))

    def take_out_all(self, errors: Sequence[ErrorDetails]) -> None:
        """Report the errors of one round, and remove or rename what caused them."""
        unknown = [self._existing(tuple(each["loc"])) for each in errors if each["type"] == "extra_forbidden"]
        if self._rename_misspelt(unknown):
            return  # the right key may select another kind of task, which has other errors
        for details in errors:
            self._take_out(details)
        self._drop_orphans()

    def _take_out(self, details: ErrorDetails) -> None:
        wanted = tuple(details["loc"])
        path = self._existing(wanted)
        if details["type"] == "extra_forbidden":
            if not self._is_anchor(path):
                explain_key(self._report, path, self._at(path[:-1]))
            self._remove(path)
            return
        explain_error(self._report, details, path)
        self.damaged.add(wanted if details["type"] == "missing" else path)
        if wanted == ("name",):
            self._value["name"] = UNNAMED
        elif path:
            self._remove(path)

    def _rename_misspelt(self, paths: Sequence[Path]) -> bool:
        """Take a misspelt key for what was meant, so that it is not reported as missing; whether there was one."""
        renamed = False
        for path in paths:
            above, key = path[:-1], str(path[-1])
            holder, meant = self._at(above), None if self._is_anchor(path) else find_meant(path)
            if meant and meant != key and meant not in holder:
                explain_key(self._report, path, holder)
                spots: Any = self._spot.find(above).inside
                holder[meant], spots[meant] = holder.pop(key), spots.pop(key)
                renamed = True
        return renamed

    def _drop_orphans(self) -> None:
        """Remove the other keys of a kind whose selecting key was left out."""
        tasks = dict(self._tasks())
        for path in [path for path in self.damaged if path[0] == "tasks" and len(path) > 2]:
            name, lost = str(path[1]), str(path[2])
            task = tasks.get(name)
            if task is not None and lost not in task and (model := kinds.find_model([lost])):
                for key in (kinds.keys_of(model).keys() - kinds.common_keys()) & task.keys():
                    self._remove(("tasks", name, key))

    def _tasks(self) -> list[tuple[str, dict[str, Any]]]:
        tasks = self._value.get("tasks")
        return [(name, task) for name, task in tasks.items() if isinstance(task, dict)] if isinstance(tasks, dict) else []

    @staticmethod
    def _is_anchor(path: Path) -> bool:
        """`x-…` at the top holds anchors, as in other YAML files."""
        return len(path) == 1 and str(path[0]).startswith("x-")

    def _existing(self, path: Path) -> Path:
        return _find_existing(self._value, path)

    def _at(self, path: Path) -> Any:
        value: Any = self._value
        for step in path:
            value = value[step]
        return value

    def _remove(self, path: Path) -> None:
        if self._existing(path) == path:
            spots: Any = self._spot.find(path[:-1]).inside
            del self._at(path[:-1])[path[-1]], spots[path[-1]]
