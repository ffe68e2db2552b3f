"""The words of the shipped lifecycles, each with its meaning; a user's file may use the same ones.

What the phases already say is not repeated as an effect: entering `active` begins and counts an attempt, with its
worker and its timeout; leaving it ends them; entering `done` stamps the end and releases or blocks the dependents.
"""

from __future__ import annotations

from pointsman.kernel.machine import Kind
from pointsman.kernel.vocabulary import Signals, Vocabulary
from pointsman.lifecycles.guards import GUARDS

EFFECTS = {
    "count_retry": "one more retry is used up",
    "schedule_retry": "make it available again after the backoff",
    "reset_retries": "forget the retries that were used",
    "record_error": "keep the error as the last one",
    "run_checks": "run the checks that follow the execution",
    "store_output": "keep the output and the cost",
    "store_question": "keep the question for a person to answer",
    "clear_question": "the question is answered",
    "store_comment": "keep the reviewer's comment for the next attempt",
    "keep_session": "the next attempt continues the same session",
    "cancel_tasks": "cancel the tasks that have not ended",
    "kill_processes": "end the process trees that still run",
    "write_plan": "write the task graph and the execution plan",
    "merge_work": "merge the worktree to the main branch",
    "archive": "keep the final state in the archive",
    "remove_worktree": "the worktree is no longer needed",
    "keep_worktree": "leave the worktree for a person to look at",
    "allocate_workers": "reserve every worker that the run asks for",
    "release_workers": "give the reserved workers back",
    "reassign_tasks": "the worker's tasks lose their leases",
    "start_health_checks": "expect heartbeats from now on",
    "start_cooldown": "let nothing through until the cooldown is over",
    "reset_failures": "forget the failures that were counted",
}

NEEDS = {
    "worker": "a worker is assigned",
    "session": "the session of an agent is known",
}

SIGNALS = {
    Kind.TASK: Signals(
        required={
            "claim": "a worker takes it",
            "complete": "its execution succeeded",
            "fail": "its execution failed",
            "expire": "it ran longer than it may",
            "cancel": "a person or its run calls it off",
        },
        optional={
            "lease_lost": "its worker is gone",
            "ready": "nothing it depends on is open any more",
            "delay_over": "the time it had to wait has passed",
            "checks_passed": "every check passed",
            "checks_failed": "a check failed",
            "ask": "its agent wants an answer before it goes on",
            "answer": "a person answered",
            "overspend": "it spent more than its budget",
            "approve": "a person let it through",
            "accept": "a reviewer took the result",
            "reject": "a person sent it back or stopped it",
            "children_done": "every subtask succeeded",
            "child_failed": "a subtask failed for good",
            "dependency_failed": "something it depends on failed for good",
            "retry": "a person wants another attempt",
            "resume": "a person wants the same session to go on",
            "skip": "its dependents go on without it",
            "reset": "a person puts it back to the beginning",
        },
    ),
    Kind.RUN: Signals(
        required={
            "start": "its work begins",
            "complete": "every task succeeded",
            "fail": "a task that matters failed for good",
            "cancel": "a person calls it off",
        },
        optional={
            "ready": "everything it needs to begin is there",
            "wait": "only a person can move it on",
            "proceed": "a person moved it on",
            "pause": "a person wants no new task to begin",
            "resume": "a person lets tasks begin again",
            "retry": "a person wants another try",
            "delay_over": "the time it had to wait has passed",
            "checks_passed": "every final check passed",
            "checks_failed": "a final check failed",
            "expire": "it took longer than it may",
        },
    ),
    Kind.WORKER: Signals(
        required={
            "assign": "a task is handed to it",
            "drain": "it should finish what it holds and leave",
            "expire": "it has been silent for too long",
        },
        optional={
            "register": "it told what it can do",
            "release": "a task of its own has ended",
            "suspect": "it missed its heartbeats",
            "recover": "its heartbeats came back",
            "pause": "a person wants it to take nothing new",
            "resume": "a person lets it work again",
            "fail": "it met an error that it cannot survive",
            "terminate": "a person ends it by force",
        },
    ),
    Kind.BREAKER: Signals(
        required={
            "fail": "the tool failed",
            "complete": "the tool succeeded",
            "delay_over": "the cooldown has passed",
            "reset": "a person says that the tool is well",
        },
        optional={},
    ),
}

VOCABULARY = Vocabulary(guards=GUARDS, effects=EFFECTS, needs=NEEDS, signals=SIGNALS)
