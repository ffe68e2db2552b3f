"""The rules for flows, by the names that findings carry."""

from __future__ import annotations

RULES = {
    "yaml": "the file is YAML, and one document",
    "structure": "keys are known and occur once, and values have the right type",
    "too-large": "the file is not too large, and the data of each task can be stored as JSON",
    "name": "tasks, inputs and the flow have names that can be used in expressions, files and logs",
    "no-tasks": "there is at least one task",
    "lifecycle": "the lifecycle exists and is valid",
    "input": "defaults and choices have the type of their input",
    "env": "variables have valid names that are not reserved",
    "action": "a task has exactly one key that selects its kind (`command`, `run`, `call`), and only keys of that kind",
    "check": "a check has exactly one kind, and `at_least` only with `glob`",
    "budget": "no task has a larger budget than the whole flow",
    "tool": "the tools of tasks are defined in the settings of the project",
    "needs": "a task names each of its needs once",
    "unknown-task": "the tasks that a task needs exist",
    "circle": "no task waits for itself, directly or through others",
    "ordered": "an ordered flow has no needs",
    "foreach": "the lifecycle supports subtasks",
    "expression": "expressions can be parsed, and what they refer to will exist",
    "later": "no key is used that comes with a later version",
}
