"""The lifecycle that a flow follows."""

from __future__ import annotations

from pathlib import Path

from pointsman.flows.model import Flow
from pointsman.kernel.machine import Kind, Lifecycle
from pointsman.lifecycles import SHIPPED, load_lifecycle


def find_lifecycle(flow: Flow) -> Lifecycle:
    """A shipped lifecycle by its name, or the one in a file, relative to the flow file; LifecycleError if there is none."""
    return load_lifecycle(_find_file(flow) or flow.lifecycle)


def _find_file(flow: Flow) -> Path | None:
    """The file of its lifecycle; None for a shipped one."""
    name = flow.lifecycle
    if name in SHIPPED or not ("/" in name or name.endswith((".yaml", ".yml"))):
        return None
    return Path(flow.file).parent / name if flow.file else Path(name)


def has_subtasks(lifecycle: Lifecycle) -> bool:
    """Whether its tasks can have subtasks: a signal must tell when the last of them is done."""
    return "children_done" in lifecycle.of_kind(Kind.TASK).signals
