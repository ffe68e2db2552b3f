"""The kinds of tasks: the key of a flow that selects one, and the runner that does the work.

A runner is a class with a `task_model`: the subclass of FlowTask that declares its keys. `pointsman.worker.runner` has the
rest of its contract. Other distributions register their runners as entry points, under the key that selects them:

    [project.entry-points."pointsman.runners"]
    http = "pointsman_http:HttpRunner"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from pointsman.errors import RunnerUnusable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pointsman.flows.model import FlowTask

GROUP = "pointsman.runners"
BUILT_IN = {
    "run": "pointsman.worker.runners.command:ShellRunner",
    "command": "pointsman.worker.runners.command:CommandRunner",
    "call": "pointsman.worker.runners.python:PythonRunner",
    "agent": "pointsman.worker.runners.agent:AgentRunner",
    "approval": "pointsman.flows.approval:Gate",
}

MERGES = "merges"
HIDDEN = {MERGES: "pointsman.worker.runners.merge:MergeRunner"}
"""Kinds of tasks that nobody writes: runs have them when their flows ask for something that a worker does."""


class RunnerClass(Protocol):
    """What flows know of a runner."""

    task_model: type[FlowTask]


@cache
def find_runner(key: str) -> RunnerClass | None:
    """The runner of the kind that a key selects."""
    own = BUILT_IN.get(key) or HIDDEN.get(key)
    entry = metadata.EntryPoint(key, own, GROUP) if own else _installed().get(key)
    return _load(entry) if entry else None


def list_models() -> dict[str, type[FlowTask]]:
    """The task model of every kind, by the key that selects it."""
    return {key: runner.task_model for key in (*BUILT_IN, *_installed()) if (runner := find_runner(key))}


def find_model(keys: Iterable[object]) -> type[FlowTask] | None:
    """The task model that the first of these keys selects.

    Installed entry points are looked up only for keys that are neither built in nor common to all kinds.
    """
    others = []
    for key in map(str, keys):
        if (key in BUILT_IN or key in HIDDEN) and (runner := find_runner(key)):
            return runner.task_model
        others.append(key)
    runners = (find_runner(key) for key in others if key not in common_keys())
    return next((runner.task_model for runner in runners if runner), None)


@cache
def common_keys() -> frozenset[str]:
    """The keys that tasks of every kind have."""
    from pointsman.flows.model import FlowTask

    return frozenset(keys_of(FlowTask))


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """The fields of a model, by the keys that a flow file uses for them."""
    return {info.serialization_alias or name: name for name, info in model.model_fields.items()}


@cache
def _installed() -> Mapping[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


def _load(entry: metadata.EntryPoint) -> RunnerClass:
    try:
        runner: RunnerClass = entry.load()
        kind = runner.task_model.kind
    except Exception as error:  # the code of another distribution may raise anything
        raise RunnerUnusable(f"Cannot load the runner of `{entry.name}` from {entry.value}: {error}.") from error
    if kind != entry.name:
        raise RunnerUnusable(f"{entry.value} is registered for `{entry.name}`, but its task model has the kind `{kind}`.")
    return runner
