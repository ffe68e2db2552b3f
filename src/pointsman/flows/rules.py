"""The rules for flows, by the names that findings carry."""

from __future__ import annotations

RULES = {
    "yaml": "the file is YAML, and one document",
    "structure": "keys are known and occur once, and values have the right type",
    "too-large": "the file is not too large, and the data of each task can be stored as JSON",
    "name": "the flow and its tasks have names of one line without brackets; inputs have names for expressions",
    "no-tasks": "there is at least one task",
    "lifecycle": "the lifecycle exists and is valid",
    "input": "defaults and choices have the type of their input",
    "env": "variables have valid names that are not reserved",
    "action": "a task has one key that selects its kind (`command`, `run`, `call`, `agent`, …), its keys, and real functions",
    "check": "a check has exactly one kind, and `at_least` only with `glob`; its function exists, and its JSON Schema is valid",
    "budget": "no task has a larger budget than the whole flow",
    "tool": "the tools of tasks are defined in the settings of the project; `on_open_circuit` belongs to a tool",
    "agent": "the agents of tasks are known, or defined in the settings of the project",
    "needs": "a task names each of its needs once",
    "unknown-task": "the tasks that a task needs exist",
    "circle": "no task waits for itself, directly or through others",
    "ordered": "an ordered flow has no needs",
    "foreach": "the lifecycle supports subtasks",
    "approval": "the lifecycle supports approvals as the task asks for them",
    "review": "the lifecycle supports reviews",
    "expects": "the lifecycle supports questions, and the default is an answer",
    "retries": "the lifecycle retries runs, or tasks, by itself",
    "reclaim": "the lifecycle lets a worker take over the attempt of another",
    "critical": "the lifecycle supports tasks that may fail",
    "job": "the lifecycle has jobs with workers of their own",
    "start": "the lifecycle supports tasks that a person starts",
    "expression": "expressions can be parsed, what they refer to will exist, and constants have a value",
    "worktree": "no task has a worktree beside that of the flow; branches have names that git accepts, each item its own",
}
