"""Flow files: tasks and their dependencies."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pointsman.flows.build import build_run, build_subtasks
    from pointsman.flows.inputs import check_inputs
    from pointsman.flows.load import load_flow
    from pointsman.flows.model import Backoff, Check, Defaults, Flow, FlowTask, Input, Outputs

__all__ = [
    "Backoff",
    "Check",
    "Defaults",
    "Flow",
    "FlowTask",
    "Input",
    "Outputs",
    "build_run",
    "build_subtasks",
    "check_inputs",
    "load_flow",
]

_HOMES = {
    **dict.fromkeys(("build_run", "build_subtasks"), "pointsman.flows.build"),
    "check_inputs": "pointsman.flows.inputs",
    "load_flow": "pointsman.flows.load",
}


def __getattr__(name: str) -> object:
    """Load on first use, so that commands that only show runs do not pay for the models of flows."""
    if name not in __all__:
        raise AttributeError(f"module 'pointsman.flows' has no attribute '{name}'")
    return getattr(import_module(_HOMES.get(name, "pointsman.flows.model")), name)
