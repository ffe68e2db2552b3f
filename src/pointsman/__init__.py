"""Pointsman: a durable orchestrator in which everything moves only along declared transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "AttemptReport",
    "Backoff",
    "Engine",
    "Facts",
    "NewRun",
    "NewTask",
    "Refusal",
    "ReportAttempt",
    "Snapshot",
    "Step",
    "__version__",
    "add_task",
    "ask",
    "load_lifecycle",
    "load_machine",
    "step",
]

if TYPE_CHECKING:
    from pointsman.engine.engine import Engine
    from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
    from pointsman.engine.policy import Backoff
    from pointsman.engine.submit import NewRun, NewTask
    from pointsman.inside import add_task, ask
    from pointsman.kernel.machine import Refusal
    from pointsman.kernel.step import Snapshot, Step, step
    from pointsman.lifecycles import load_lifecycle, load_machine
    from pointsman.lifecycles.guards import Facts

_HOMES = {
    "Backoff": "pointsman.engine.policy",
    "AttemptReport": "pointsman.engine.operations.attempts",
    "Engine": "pointsman.engine.engine",
    "Facts": "pointsman.lifecycles.guards",
    "NewRun": "pointsman.engine.submit",
    "NewTask": "pointsman.engine.submit",
    "Refusal": "pointsman.kernel.machine",
    "ReportAttempt": "pointsman.engine.operations.attempts",
    "Snapshot": "pointsman.kernel.step",
    "Step": "pointsman.kernel.step",
    "add_task": "pointsman.inside",
    "ask": "pointsman.inside",
    "load_lifecycle": "pointsman.lifecycles",
    "load_machine": "pointsman.lifecycles",
    "step": "pointsman.kernel.step",
}


def __getattr__(name: str) -> object:
    """Load on first use, so that `pointsman --help` does not pay for what it does not need."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pointsman' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
