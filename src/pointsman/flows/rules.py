"""The rules that flows are held to, by the names that findings carry."""

from __future__ import annotations

RULES = {
    "yaml": "the file is YAML, and one document",
    "structure": "keys are known and stand once, values are of their kind",
    "too-large": "the file, and the data of each task, can be read and kept as JSON",
    "name": "tasks, inputs and the flow have names that can be written in expressions, files and logs",
    "no-tasks": "there is at least one task",
    "lifecycle": "the lifecycle exists and is sound",
    "input": "defaults and choices fit the type of their input",
    "env": "variables have names that a program can be given, and that are not Pointsman's own",
    "action": "a task has one of `command`, `run` and `call`; `with` and `mode` go with `call`; threads own nothing",
    "check": "a check has exactly one kind, and `at_least` only with `glob`",
    "budget": "no task may spend more than the whole flow",
    "tool": "the tools of tasks are described in the settings of the project",
    "needs": "a task names each of its needs once",
    "unknown-task": "what a task needs is there",
    "circle": "no task waits for itself, directly or through others",
    "ordered": "an ordered flow has no needs",
    "foreach": "the lifecycle knows subtasks",
    "expression": "expressions can be read, and what they refer to will be there",
    "later": "nothing is used that comes with a later version",
}
