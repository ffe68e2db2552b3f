"""The words of the shipped lifecycles, each with its meaning; a user's file may use the same ones.

What follows from the phases is not repeated as an effect: entering `active` starts and counts an attempt, with its worker and
its timeout; leaving it ends them; entering `done` records the end and releases or blocks the dependents.
"""

from __future__ import annotations

from pointsman.kernel.machine import Kind
from pointsman.kernel.vocabulary import Signals, Vocabulary
from pointsman.lifecycles.guards import GUARDS

EFFECTS = {
    "count_retry": "count one more retry",
    "schedule_retry": "make it available again after the backoff",
    "reset_retries": "reset the count of retries",
    "record_error": "store the error",
    "run_checks": "run the checks that follow the execution",
    "store_output": "store the output and the cost",
    "store_question": "store the question for a person to answer",
    "clear_question": "remove the answered question",
    "store_comment": "store the reviewer's comment for the next attempt",
    "keep_session": "the next attempt continues the same session",
    "cancel_tasks": "cancel the tasks that have not ended",
    "kill_processes": "kill the processes that still run",
    "write_plan": "write the task graph and the execution plan",
    "merge_work": "merge the worktree to the main branch",
    "archive": "store the final state in the archive",
    "remove_worktree": "remove the worktree",
    "keep_worktree": "keep the worktree for a person to inspect",
    "allocate_workers": "reserve every worker that the run asks for",
    "release_workers": "release the reserved workers",
    "reassign_tasks": "the worker's tasks lose their leases",
    "start_health_checks": "expect heartbeats from now on",
    "start_cooldown": "refuse tasks until the cooldown has passed",
    "reset_failures": "reset the count of failures",
}

NEEDS = {
    "worker": "a worker is assigned",
    "session": "the session of an agent is known",
}

SIGNALS = {
    Kind.TASK: Signals(
        required={
            "claim": "a worker claims it",
            "complete": "its execution succeeded",
            "fail": "its execution failed",
            "expire": "it exceeded its timeout",
            "cancel": "a person or its run cancels it",
        },
        optional={
            "lease_lost": "its worker lost the lease",
            "ready": "everything it depends on is done",
            "delay_over": "its delay has elapsed",
            "checks_passed": "every check passed",
            "checks_failed": "a check failed",
            "ask": "its agent needs an answer to continue",
            "answer": "a person answered",
            "overspend": "it spent more than its budget",
            "approve": "a person approved it",
            "accept": "a reviewer accepted the result",
            "reject": "a person rejected it",
            "children_done": "every subtask succeeded",
            "child_failed": "a subtask failed permanently",
            "dependency_failed": "a dependency failed permanently",
            "retry": "a person requests another attempt",
            "resume": "a person continues the same session",
            "skip": "its dependents continue without it",
            "reset": "a person resets it to its initial state",
            "overstay": "it exceeded the longest stay of its state",
        },
    ),
    Kind.RUN: Signals(
        required={
            "start": "its tasks may start",
            "complete": "every task succeeded",
            "fail": "a critical task failed permanently",
            "cancel": "a person cancels it",
        },
        optional={
            "ready": "everything it needs to start is available",
            "wait": "it waits for a person",
            "proceed": "a person let it proceed",
            "pause": "a person pauses it: no new task starts",
            "resume": "a person lets tasks start again",
            "retry": "a person requests another try",
            "delay_over": "its delay has elapsed",
            "checks_passed": "every final check passed",
            "checks_failed": "a final check failed",
            "expire": "it exceeded its timeout",
            "overstay": "it exceeded the longest stay of its state",
        },
    ),
    Kind.WORKER: Signals(
        required={
            "assign": "it claims a task",
            "drain": "it should finish its tasks and end",
            "expire": "it sent no heartbeat for too long",
        },
        optional={
            "register": "it registered its capabilities",
            "release": "one of its tasks has ended",
            "suspect": "it missed its heartbeats",
            "recover": "its heartbeats came back",
            "pause": "a person pauses it: it claims no tasks",
            "resume": "a person lets it work again",
            "fail": "it had a fatal error",
            "terminate": "a person terminates it",
            "overstay": "it exceeded the longest stay of its state",
        },
    ),
    Kind.BREAKER: Signals(
        required={
            "fail": "the tool failed",
            "complete": "the tool succeeded",
            "delay_over": "the cooldown has passed",
            "reset": "a person resets it",
        },
        optional={},
    ),
}

VOCABULARY = Vocabulary(guards=GUARDS, effects=EFFECTS, needs=NEEDS, signals=SIGNALS)
