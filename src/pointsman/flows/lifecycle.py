"""The lifecycle that a flow follows."""

from __future__ import annotations

from pathlib import Path

from pointsman.flows.model import Flow
from pointsman.kernel.machine import Kind, Lifecycle
from pointsman.lifecycles import SHIPPED, load_lifecycle


def find_lifecycle(flow: Flow) -> Lifecycle:
    """A shipped one by its name, or one of a file, seen from the flow's own; LifecycleError where there is none."""
    return load_lifecycle(find_lifecycle_file(flow) or flow.lifecycle)


def find_lifecycle_file(flow: Flow) -> Path | None:
    """The file of its lifecycle, where it is not a shipped one."""
    name = flow.lifecycle
    if name in SHIPPED or not ("/" in name or name.endswith((".yaml", ".yml"))):
        return None
    return Path(flow.file).parent / name if flow.file else Path(name)


def has_subtasks(lifecycle: Lifecycle) -> bool:
    """Whether its tasks can have parts: something must happen when the last of them is done."""
    return "children_done" in lifecycle.of_kind(Kind.TASK).signals
