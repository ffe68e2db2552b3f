"""The lifecycle that a flow follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as File

from pointsman.engine import gates
from pointsman.engine.machines import allocates
from pointsman.flows.approval import ApprovalTask
from pointsman.flows.document import Path
from pointsman.flows.model import Flow, FlowTask, TaskOptions
from pointsman.kernel.machine import Kind, Lifecycle, Machine, Phase
from pointsman.lifecycles import SHIPPED, load_lifecycle

USE_STANDARD = "Remove it, or use the lifecycle standard."
USE_SUPERVISED = "Remove it, or use the lifecycle supervised."
Misfit = tuple[str, Path, str, str]
"""What a flow asks for and its lifecycle does not have: (rule, path of the key, message, advice)."""
RETRYING = ("retries", "backoff", "retry_on")
JOB_KEYS = ("task_description", "worker_count", "workspace")
GATE_KEYS = {"quorum": ("quorum",), "on_expiry": ("on_expire",)}
"""Fields of a gate, by the keys of a flow."""


def find_lifecycle(flow: Flow, stored: Lifecycle | None = None) -> Lifecycle:
    """A shipped lifecycle or the `stored` one by its name, or the one in a file, relative to the flow file.

    LifecycleError if there is none.
    """
    if stored and flow.lifecycle == stored.name:
        return stored
    return load_lifecycle(_find_file(flow) or flow.lifecycle)


def _find_file(flow: Flow) -> File | None:
    """The file of its lifecycle; None for a shipped one."""
    name = flow.lifecycle
    if name in SHIPPED or not ("/" in name or name.endswith((".yaml", ".yml"))):
        return None
    return File(flow.file).parent / name if flow.file else File(name)


def find_misfits(flow: Flow, lifecycle: Lifecycle) -> Iterator[Misfit]:
    """Every key of a flow that its lifecycle has no meaning for."""
    machine = lifecycle.of_kind(Kind.TASK)
    yield from _find_misfits_of_run(flow, lifecycle)
    yield from _find_misfits_of_options(("defaults",), flow.defaults, lifecycle)
    for name, task in flow.tasks.items():
        path = ("tasks", name)
        yield from _find_misfits_of_options(path, task, lifecycle)
        yield from _find_misfits_of_task(path, task, machine, f"Tasks of the lifecycle {lifecycle.name}")
        if isinstance(task, ApprovalTask):
            for key, message in gates.find_misfits(machine, task.approval.quorum, task.approval.on_expire):
                at = (*path, "approval", *GATE_KEYS.get(key, ()))
                yield "approval", at, f"Task {name}: {message}", f"Or remove `{at[-1]}`."


def _find_misfits_of_run(flow: Flow, lifecycle: Lifecycle) -> Iterator[Misfit]:
    run, runs = lifecycle.of_kind(Kind.RUN), f"Runs of the lifecycle {lifecycle.name}"
    if flow.start == "manual" and lifecycle.of_kind(Kind.TASK).initial.phase is not Phase.HELD:
        message = f"Tasks of the lifecycle {lifecycle.name} start by themselves: they have no state before the queue."
        yield "start", ("start",), message, USE_STANDARD
    if flow.checks and "checks_passed" not in run.signals:
        advice = "Use the lifecycle standard or orchestrated, or a last task that needs all others."
        yield "check", ("checks",), f"{runs} have no final checks.", advice
    if flow.retries and not _retries(run):
        yield "retries", ("retries",), f"{runs} are never retried as a whole.", "Set the `retries` of its tasks instead."
    if "backoff" in flow.model_fields_set and not _retries(run):
        message = f"{runs} are never retried as a whole: `backoff` has no effect."
        yield "retries", ("backoff",), message, "Set the `backoff` of its tasks instead."
    if not allocates(run):
        for key in JOB_KEYS:
            if key in flow.model_fields_set:
                yield "job", (key,), f"{runs} have no `{key}`: they are no jobs with workers of their own.", USE_SUPERVISED


def _find_misfits_of_options(path: Path, options: TaskOptions, lifecycle: Lifecycle) -> Iterator[Misfit]:
    machine, tasks = lifecycle.of_kind(Kind.TASK), f"Tasks of the lifecycle {lifecycle.name}"
    given = options.model_fields_set
    if not _retries(machine):
        for key in (key for key in RETRYING if key in given):
            message = f"{tasks} are retried by people only: `{key}` has no effect."
            yield "retries", (*path, key), message, "Remove it. `max_attempts` limits how often people can retry."
    if "reclaim_after" in given and not _hands_over(machine):
        message = f"{tasks} fail when their worker is lost: no other worker takes an attempt over."
        yield "reclaim", (*path, "reclaim_after"), message, "Use `timeout`, which ends an attempt that takes too long."
    if not options.critical and "skip" not in machine.signals and not _knows_critical(lifecycle.of_kind(Kind.RUN)):
        message = f"{tasks} cannot be passed over when they fail, so all of them are critical."
        yield "critical", (*path, "critical"), message, USE_STANDARD


def _find_misfits_of_task(path: Path, task: FlowTask, machine: Machine, tasks: str) -> Iterator[Misfit]:
    if task.foreach is not None and "children_done" not in machine.signals:
        yield "foreach", (*path, "foreach"), f"{tasks} cannot have subtasks, which `foreach` creates.", USE_STANDARD
    if task.review and "accept" not in machine.signals:
        yield "review", (*path, "review"), f"{tasks} are done without a review.", USE_STANDARD
    if (
        "review" in task.model_fields_set
        and not task.review
        and "accept" in machine.signals
        and not _has_guard(machine, "review_wanted")
    ):
        yield "review", (*path, "review"), f"{tasks} are always reviewed.", USE_STANDARD
    if task.expects is not None and "ask" not in machine.signals:
        yield "expects", (*path, "expects"), f"{tasks} cannot ask questions.", USE_STANDARD


def explain_no_questions(machine: Machine) -> str | None:
    """Why tasks cannot ask people."""
    return None if "ask" in machine.signals else f"{_name_tasks(machine)} cannot ask questions."


def explain_no_subtasks(machine: Machine) -> str | None:
    """Why tasks cannot add subtasks."""
    return None if "children_done" in machine.signals else f"{_name_tasks(machine)} cannot have subtasks."


def _name_tasks(machine: Machine) -> str:
    return f"Tasks of the lifecycle {machine.name.partition('.')[0]}"


def _retries(machine: Machine) -> bool:
    """Whether it tries something again by itself."""
    return any("schedule_retry" in move.effects for move in machine.transitions)


def _hands_over(machine: Machine) -> bool:
    """Whether another worker can take over a task from an attempt, without a failure."""
    active = [state.name for state in machine.states if state.phase is Phase.ACTIVE]
    return "lease_lost" in machine.signals or any(machine.moves(state, "claim") for state in active)


def _knows_critical(run: Machine) -> bool:
    """Whether a run goes on after the failure of a task that is not critical."""
    return _has_guard(run, "critical_failure")


def _has_guard(machine: Machine, name: str) -> bool:
    return any(guard.name == name for move in machine.transitions for guard in move.guards)
