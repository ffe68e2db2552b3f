"""Stages: which tasks can run at the same time, and the two files that describe them for each run (document 002.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from pointsman.flows.model import Flow, FlowTask

PLAN_FILE = "plan.json"
DAG_FILE = "dag.json"
MANY = 300
"""With more tasks than this, no reader follows single lines."""


def find_stages(flow: Flow) -> list[list[str]]:
    """Group the tasks into stages: each task waits for one of the previous stage; those of one stage can run at once."""
    links = flow.links
    stage: dict[str, int] = {}
    for name in TopologicalSorter(links).static_order():
        stage[name] = max((stage[need] + 1 for need in links[name]), default=0)
    stages: list[list[str]] = [[] for _ in range(max(stage.values(), default=-1) + 1)]
    for name in flow.tasks:
        stages[stage[name]].append(name)
    return stages


def shorten_links(links: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Drop the links that others imply: a task that needs B, which needs A, waits for A anyway. Keep all if they are many."""
    if len(links) > MANY:
        return {name: tuple(needs) for name, needs in links.items()}
    before: dict[str, set[str]] = {}
    for name in TopologicalSorter(links).static_order():
        before[name] = {need for direct in links[name] for need in (direct, *before[direct])}
    return {
        name: tuple(need for need in needs if not any(need in before[other] for other in needs))
        for name, needs in links.items()
    }


def describe_plan(flow: Flow) -> dict[str, Any]:
    """The execution plan: the stages, and the longest chain of tasks, which bounds the duration."""
    stages = find_stages(flow)
    return {
        "flow": flow.name,
        "lifecycle": flow.lifecycle,
        "ordered": flow.ordered,
        "task_count": len(flow.tasks),
        "widest_stage": max((len(stage) for stage in stages), default=0),
        "stages": [{"stage": number, "tasks": tasks} for number, tasks in enumerate(stages, start=1)],
        "longest_chain": _find_chain(flow, stages),
    }


def describe_dag(flow: Flow) -> dict[str, Any]:
    """The graph of tasks: nodes with their main properties, and every link."""
    stage = {name: number for number, tasks in enumerate(find_stages(flow), start=1) for name in tasks}
    return {
        "flow": flow.name,
        "nodes": [{"name": name, "stage": stage[name], **_describe_task(flow.task(name))} for name in flow.tasks],
        "edges": [{"from": need, "to": name} for name, needs in flow.links.items() for need in needs],
    }


def describe_files(flow: Flow) -> dict[str, str]:
    """Both files, by name."""
    contents = {PLAN_FILE: describe_plan(flow), DAG_FILE: describe_dag(flow)}
    return {
        name: msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n" for name, content in contents.items()
    }


def write_files(files: Mapping[str, str], directory: Path) -> tuple[Path, ...]:
    """Write both files into a directory; it is created if it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        directory.joinpath(name).write_text(text, "utf-8")
    return tuple(directory / name for name in files)


def describe_action(task: FlowTask) -> str:
    """What a task does, in one short line."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in task.summary()).split())
    return words if len(words) <= 60 else f"{words[:59]}…"


def _describe_task(task: FlowTask) -> dict[str, Any]:
    return {
        "description": task.description,
        "kind": task.kind,
        "action": describe_action(task),
        "when": task.when,
        "foreach": task.foreach,
        "tool": task.tool,
        "critical": task.critical,
        "retries": task.retries,
        "timeout_seconds": task.timeout,
    }


def _find_chain(flow: Flow, stages: Sequence[Sequence[str]]) -> list[str]:
    links = flow.links
    chain = [stages[-1][0]] if stages else []
    for stage in map(frozenset, reversed(stages[:-1])):
        chain.append(next(need for need in links[chain[-1]] if need in stage))
    return chain[::-1]
