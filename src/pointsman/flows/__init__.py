"""Flow files: tasks and their dependencies."""

from __future__ import annotations

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
