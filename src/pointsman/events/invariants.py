"""The invariants of document 002 that can be checked in a log.

Each function gets a move and its entity, reports the invariants that the move breaks, and updates the entity.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise

from pointsman.events.entities import Entity
from pointsman.events.event import Event
from pointsman.events.track import Move, Track
from pointsman.kernel.machine import Kind, Phase

Report = Callable[[str, str, str], None]
"""Takes the rule, the message and the advice."""


def check_task(track: Track, task: Entity, event: Event, move: Move, report: Report) -> None:
    """Calls only the checks that apply to the line: long logs spend most of their time here."""
    metadata = event.metadata
    if metadata.depends_on:
        track.entities.depend(task, metadata.depends_on)
    if metadata.critical is not None:
        task.critical = metadata.critical
    if metadata.created_at or metadata.started_at or metadata.completed_at or task.completed_at:
        _timestamp_order(track, task, event, report)
    if move.retries or move.resets_retries or metadata.retry_count is not None or metadata.max_retries is not None:
        _retry_limit(task, event, move, report)
    if move.waits and task.depends_on:
        _dependency_satisfaction(track, task, event, report)
    if metadata.worker_id or task.worker:
        _worker_assignment(track, task, event, report)
    if move.matters_to_run or metadata.run_id or metadata.workstream_id or event.from_state != task.state:
        _run_account(track, task, event, report)


def check_worker(track: Track, worker: Entity, event: Event, move: Move, report: Report) -> None:  # noqa: ARG001
    if event.metadata.max_concurrent_tasks is not None:
        worker.max_concurrent_tasks = event.metadata.max_concurrent_tasks
    worker.tasks_held -= min(worker.tasks_held, len(event.metadata.lost))
    if not worker.tasks_held:
        return
    message = f"Worker {event.entity_id} goes to {event.to_state} while it still holds {worker.tasks_held} task(s)."
    if event.to_state in track.succeeded:
        report("graceful-shutdown", message, "Finish or reassign its tasks before the worker leaves.")
    elif event.to_state in track.queued:
        report("worker-release", message, "Finish or reassign its tasks before the worker is free again.")


def check_run(track: Track, run: Entity, event: Event, move: Move, report: Report) -> None:
    if move.fails or event.from_state in track.done:
        run.critical_failure = None
    if event.to_state not in track.succeeded and not move.completes:
        return
    if run.critical_failure:
        message = f"{event.entity_id} goes to {event.to_state} although its critical task {run.critical_failure} failed."
        report("failure-propagation", message, "A run whose critical task failed must fail.")
    elif run.unfinished:
        message = f"{event.entity_id} goes to {event.to_state} while {run.unfinished} of its tasks have not succeeded."
        report("completion", message, "A run completes only when all of its tasks have.")


def _timestamp_order(track: Track, task: Entity, event: Event, report: Report) -> None:
    metadata = event.metadata
    if event.from_state in track.done:
        task.completed_at = None
    for name in ("created_at", "started_at", "completed_at"):
        instant: datetime | None = getattr(metadata, name)
        if instant is not None:
            try:
                setattr(task, name, instant.astimezone(UTC))
            except OverflowError:
                report(
                    "schema", f"`metadata.{name}` is out of range.", "Write an instant between the years 1 and 9999, in UTC."
                )
    instants = (("created_at", task.created_at), ("started_at", task.started_at), ("completed_at", task.completed_at))
    known = [(name, instant) for name, instant in instants if instant is not None]
    for (earlier, first), (later, second) in pairwise(known):
        if first > second:
            message = f"{event.entity_id} has {earlier} {first.isoformat()} after {later} {second.isoformat()}."
            report("timestamp-order", message, "created_at, started_at and completed_at must not run backwards.")


def _retry_limit(task: Entity, event: Event, move: Move, report: Report) -> None:
    metadata = event.metadata
    if metadata.max_retries is not None:
        task.max_retries = metadata.max_retries
    before = task.retries
    if move.resets_retries:
        before = task.retries = 0
    if move.retries and not metadata.usage_limit and not metadata.interrupted:
        task.retries += 1
    if metadata.retry_count is not None:
        task.retries = max(task.retries, metadata.retry_count)
    if task.max_retries is not None and task.retries > max(before, task.max_retries):
        message = f"{event.entity_id} is at retry {task.retries}, but max_retries is {task.max_retries}."
        report("retry-limit", message, "A task whose retries are used up must fail instead.")


def _dependency_satisfaction(track: Track, task: Entity, event: Event, report: Report) -> None:
    for name in task.depends_on:
        dependency = track.entities.get(name)
        if dependency is None or not dependency.state:
            if track.whole:
                message = f"{event.entity_id} goes to {event.to_state}, but nothing is known of {name}, on which it depends."
                report("dependency-satisfaction", message, "Log the dependency's transitions, too, or use --partial.")
        elif dependency.state not in track.tracks.of(dependency).succeeded:
            message = f"{event.entity_id} goes to {event.to_state} while {name}, on which it depends, is {dependency.state}."
            report("dependency-satisfaction", message, "A task may proceed only when all of its dependencies have succeeded.")


def _worker_assignment(track: Track, task: Entity, event: Event, report: Report) -> None:
    """Only a running task has a worker; it keeps that worker, which must be available and have capacity."""
    named = event.metadata.worker_id
    leaves, enters = event.from_state in track.held_by_worker, event.to_state in track.held_by_worker
    if named and not leaves and not enters:
        message = f"{event.entity_id} has worker {named} while it goes from {event.from_state} to {event.to_state}."
        report("worker-assignment", message, f"Only a task in {' or '.join(sorted(track.held_by_worker))} has a worker.")
    takes_over = enters and event.from_state == event.to_state
    if leaves and named and task.worker and named != task.worker and not takes_over:
        message = f"{event.entity_id} is held by worker {task.worker}, but this line says {named}."
        report("one-worker", message, "Release the task and let the other worker claim it.")
    if task.worker and (not enters or takes_over or (named and named != task.worker)):
        _release(track, task)
    if enters and named and task.worker is None:
        task.worker = named
        _claim(track, named, event, report)


def _claim(track: Track, name: str, event: Event, report: Report) -> None:
    workers = track.tracks.entities[Kind.WORKER]
    worker = workers.get(name) or workers.add(name)
    worker.tasks_held += 1
    state = track.tracks.of(worker).states.get(worker.state) if worker.state else None
    if state is not None and state.phase in (Phase.HELD, Phase.DONE):
        message = f"{event.entity_id} is claimed by worker {name}, which is {worker.state}."
        report("worker-available", message, "Only a worker that may be given work claims tasks.")
    if worker.max_concurrent_tasks is not None and worker.tasks_held > worker.max_concurrent_tasks:
        message = f"Worker {name} holds {worker.tasks_held} tasks, but max_concurrent_tasks is {worker.max_concurrent_tasks}."
        report("worker-capacity", message, "Release a task before the worker claims another one.")


def _release(track: Track, task: Entity) -> None:
    worker = track.tracks.entities[Kind.WORKER].get(task.worker) if task.worker else None
    if worker is not None and worker.tasks_held:
        worker.tasks_held -= 1
    task.worker = None


def _run_account(track: Track, task: Entity, event: Event, report: Report) -> None:
    """Count the unfinished tasks of a run; a task starts only while its run is going on and no critical task has failed."""
    named = event.metadata.run_id or event.metadata.workstream_id
    if task.run and named and named != task.run:
        message = f"{event.entity_id} belongs to {task.run}, but this line says {named}."
        report("one-run", message, "A task stays in the run that it was created in.")
    name = task.run or named
    if name is None:
        return
    runs = track.tracks.entities[Kind.RUN]
    run = runs.get(name) or runs.add(name)
    # By the recorded state, not by what this line says: the count must be right even if the log contradicts itself.
    counted_before = task.run is not None and task.state not in track.succeeded
    run.unfinished += (event.to_state not in track.succeeded) - counted_before
    task.run = name
    if event.to_state in track.failed and task.critical:
        run.critical_failure = event.entity_id
    elif run.critical_failure == event.entity_id:
        run.critical_failure = None
    if event.to_state in track.active and event.from_state not in track.active:
        _check_start(track, name, run, event, report)


def _check_start(track: Track, name: str, run: Entity, event: Event, report: Report) -> None:
    if run.state and run.state in track.tracks.of(run).done:
        message = f"{event.entity_id} goes to {event.to_state}, but its run {name} is {run.state} since line {run.line}."
        report("run-over", message, "Let no task start after its run has ended.")
    elif run.critical_failure:
        message = f"{event.entity_id} goes to {event.to_state} although {run.critical_failure}, critical to {name}, failed."
        report("failure-propagation", message, f"Fail {name} and cancel its remaining tasks.")


CHECKS: dict[Kind, Callable[[Track, Entity, Event, Move, Report], None]] = {
    Kind.TASK: check_task,
    Kind.WORKER: check_worker,
    Kind.RUN: check_run,
}
