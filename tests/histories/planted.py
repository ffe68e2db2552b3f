"""Bugs to be planted: one line of the engine each, changed while it is loaded. A checker that lets one pass has no teeth."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Bug:
    module: str
    old: str
    new: str


BUGS = {
    "epoch check dropped": Bug(
        "pointsman.engine.commands.tasks",
        "if task.current_attempt == epoch and not task.lease_expired:",
        "if task.current_attempt is not None:",
    ),
    "heartbeat of any epoch accepted": Bug(
        "pointsman.engine.commands.workers",
        "task.tenant != self.tenant or task.current_attempt != epoch or task.lease_expired:",
        "task.tenant != self.tenant or task.current_attempt is None:",
    ),
    "probe admitted twice": Bug(
        "pointsman.engine.breakers",
        "return breaker.phase == Phase.QUEUED or (breaker.phase == Phase.ACTIVE and breaker.probe_task_id is None)",
        "return breaker.phase == Phase.QUEUED or breaker.phase == Phase.ACTIVE",
    ),
    "idempotency look-up skipped": Bug("pointsman.engine.batch", "if request is None:", "if True:"),
    "key taken for another request": Bug(
        "pointsman.engine.batch", "if stored.request_hash != request.request_hash:", "if False:"
    ),
    "job started with too few workers": Bug(
        "pointsman.engine.workers",
        "facts = runs.facts_of(run, free_workers=len(free))",
        "facts = runs.facts_of(run, free_workers=run.worker_count)",
    ),
    "retry not counted": Bug(
        "pointsman.engine.tasks",
        "task.retry_count += not report.usage_limit_until",
        "task.retry_count += 0",
    ),
    "answer lost": Bug(
        "pointsman.engine.tasks",
        "task.question, task.answer = None, report.answer",
        "task.question, task.answer = None, None",
    ),
    "forgotten task given up at once": Bug(
        "pointsman.engine.commands.workers",
        "if rows[task_id].entered_at + patience < work.now",
        "if patience",
    ),
}


def plant(name: str) -> None:
    """Change the source of a module before it is loaded."""
    bug = BUGS[name]
    if bug.module in sys.modules:
        raise AssertionError(f"{bug.module} is loaded already: nothing can be planted in it any more.")
    sys.meta_path.insert(0, _Gardener(bug))


class _Gardener(importlib.abc.MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._bug.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec
        assert spec.origin
        spec.loader = _Planting(fullname, spec.origin, self._bug)
        return spec


class _Planting(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, bug: Bug) -> None:
        super().__init__(fullname, path)
        self._bug = bug

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compiled anew, whatever was compiled before."""
        return compile(changed(Path(self.get_filename(fullname)).read_text("utf-8"), self._bug), self.path, "exec")


def changed(source: str, bug: Bug) -> str:
    found = source.count(bug.old)
    if found != 1:
        raise AssertionError(f"'{bug.old}' is there {found} times in {bug.module}, and must be there once. Write the bug anew.")
    return source.replace(bug.old, bug.new)
