"""Flow files: tasks, what they need, and how they hang together."""

from __future__ import annotations

from pointsman.flows.build import build_items, build_run
from pointsman.flows.check import check_tools
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
    "build_items",
    "build_run",
    "check_inputs",
    "check_tools",
    "load_flow",
]
