"""Document 002: every row of its tables, from the command line."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from tests.system.documents.harness import Command, Project, Scenario, Scenarios, play, until

LEASE_SECONDS = 2
SCENARIOS = Scenarios(
    "orchestrated",
    recovery=(
        "a failed task is retried with a delay",
        "a task without retries left fails, and its dependents are blocked",
        "a failed validation has its details",
        "a critical failure cancels what remains",
        "a failure that is not critical lets the others go on",
        "the task of an unresponsive worker is reassigned",
    ),
)


@SCENARIOS.add(
    "task: pending -> queued : scheduler_assigned",
    "task: queued -> running : worker_started",
    "task: running -> validating : execution_completed",
    "task: running -> retrying : execution_failed",
    "task: retrying -> queued : retry_delay_elapsed",
    "task: validating -> completed : validation_passed",
    "workstream: planned -> ready : all_tasks_created",
    "workstream: ready -> executing : first_task_started",
    "workstream: executing -> validating : all_tasks_completed",
    "workstream: validating -> completed : validation_passed",
    recovery=("a failed task is retried with a delay",),
)
def a_workstream_is_validated_and_completes(project: Project) -> None:
    project.write_flow("""
        name: release
        lifecycle: orchestrated
        tasks:
          build: {run: 'test -e tried || { touch tried; exit 3; }; echo made > result.txt', retries: 1, backoff: {base: 0.1s}}
          test: {needs: build, run: cat result.txt, checks: [{output: made}]}
        checks: [{file: result.txt}]
    """)
    said = project.call("run", "flow.yaml")
    assert "completed  release: 3 of 3 tasks done" in said.text
    project.expect("completed", build="completed", test="completed", checks="completed")
    (plan,) = project.folder.glob(".pointsman/runs/*/plan.json")
    assert json.loads(plan.read_text())["stages"]


@SCENARIOS.add(
    "task: validating -> failed : validation_failed",
    "task: pending, queued, running, retrying -> cancelled : user_cancelled",
    "workstream: executing -> failed : critical_task_failed",
    recovery=("a failed validation has its details", "a critical failure cancels what remains"),
)
def a_critical_failure_cancels_whatever_remains(project: Project) -> None:
    project.write_flow("""
        name: release
        lifecycle: orchestrated
        tasks:
          test: {run: echo tested, checks: [{run: 'until test -e go; do sleep 0.1; done; exit 5'}]}
          pack: {run: 'touch packing; sleep 60'}
          scan: {run: exit 3, retries: 1, backoff: {base: 1h}}
          train: {run: echo never, needs_capabilities: gpu}
          ship: {needs: test, run: echo never}
    """)
    run = project.start("run", "flow.yaml", slots=3)
    project.wait_for("executing", test="validating", pack="running", scan="retrying", train="queued", ship="pending")
    until(lambda: "no worker has the capability gpu" in run.said.text)
    said = project.expect("executing", test="validating")
    assert "retry scheduled in" in said.out
    assert "after: test" in said.out
    project.write("go")
    said = run.wait(1)
    assert "failed  release: 0 of 5 tasks done, 1 failed, 4 canceled" in said.text
    project.follow(said, "logs")
    said = project.expect("failed", test="failed", pack="cancelled", scan="cancelled", train="cancelled", ship="cancelled")
    assert "check `run: until test -e go; do sleep 0.1; done; exit 5`: exited with code 5" in said.out
    assert "release cannot succeed without test, and failed is final. Run the flow again." in said.out
    for command in ("retry", "resume", "cancel"):
        project.call(command, "latest", code=1 if command == "resume" else 2)


@SCENARIOS.add(
    "workstream: validating -> failed : validation_failed",
    "workstream: planned, ready -> cancelled : user_cancelled",
)
def a_final_validation_fails_the_workstream(project: Project) -> None:
    project.write_flow("""
        name: release
        lifecycle: orchestrated
        tasks: {build: {run: echo built}}
        checks: [{file: missing.txt}]
    """)
    said = project.call("run", "flow.yaml", code=1)
    assert "✗ checks  check `file: missing.txt`: there is no file" in said.text
    project.expect("failed", build="completed", checks="failed")
    project.submit()
    said = project.expect("ready", build="queued")
    assert "ready → cancelled" in project.follow(said, "cancel", "--reason", "not today").out
    project.expect("cancelled", build="cancelled")
    project.announce("orchestrated")  # a flow always has its tasks, so nobody can cancel one before
    said = project.expect("planned")
    project.follow(said, "cancel")
    project.expect("cancelled")


@SCENARIOS.add(
    "task: running -> failed : execution_failed",
    "workstream: executing -> cancelled : user_cancelled",
    recovery=(
        "a task without retries left fails, and its dependents are blocked",
        "a failure that is not critical lets the others go on",
    ),
)
def a_failure_that_is_not_critical_leaves_the_end_to_a_person(project: Project) -> None:
    project.write_flow("""
        name: release
        lifecycle: orchestrated
        tasks:
          lint: {run: 'echo try >> tries; exit 4', critical: false, retries: 1, backoff: {base: 0.1s}}
          build: {run: 'until test -e go; do sleep 0.1; done'}
          report: {needs: lint, run: echo never}
    """)
    run = project.start("run", "flow.yaml")
    project.wait_for("executing", lint="failed", build="running")
    until(lambda: "release cannot succeed without lint, and failed is final" in run.said.text)
    watch = project.start("watch", "--all")
    until(lambda: "lint" in watch.said.text, lambda: project.said)
    project.write("go")
    said = run.wait(1)
    watched = watch.wait(1).text
    assert "build    running → validating" in watched
    stuck = r"release is executing, \S+ elapsed. release cannot succeed without lint, and failed is final. Run the flow again."
    assert re.search(stuck, watched)
    assert re.search(stuck, project.call("watch", code=1).err)  # nor does it wait if nothing moves from the start
    assert (project.folder / "tries").read_text() == "try\ntry\n"
    project.expect("executing", lint="failed", build="completed", report="pending")
    found = project.call("doctor", code=1)
    assert "Its lifecycle has no way on from executing now that lint is failed. A person can cancel the run." in found.out
    project.call("resume", "latest", code=1)
    assert "executing → cancelled" in project.follow(said, "cancel").out
    project.expect("cancelled", lint="failed", build="completed", report="cancelled")


@SCENARIOS.add(
    "task: running -> queued : worker_lost",
    "worker: initializing -> idle : registration_complete",
    "worker: idle -> busy : task_assigned",
    "worker: busy -> idle : task_completed",
    "worker: busy -> unresponsive : health_check_timeout",
    "worker: unresponsive -> idle : health_check_recovered",
    "worker: unresponsive -> shutdown : max_timeout_exceeded",
    "worker: idle -> shutdown : shutdown_requested",
    "worker: busy -> shutdown : shutdown_requested",
    recovery=("the task of an unresponsive worker is reassigned",),
)
def the_task_of_an_unresponsive_worker_is_reassigned(project: Project) -> None:
    project.write_flow("""
        name: import
        lifecycle: orchestrated
        inputs: {go: go}
        tasks: {load: {run: 'until test -e ${{ inputs.go }}; do sleep 0.1; done'}}
    """)
    first = start_worker(project, "first")
    project.submit()
    project.wait_for("executing", load="running")
    project.stop(first)
    second = start_worker(project, "second")
    project.wait_for_attempt("load", 2)
    assert project.workers() == {"first": "unresponsive", "second": "busy"}
    first.send(signal.SIGCONT)
    until(lambda: project.workers()["first"] == "idle")
    project.call("workers", "drain", "second", "--reason", "maintenance")
    project.write("go")
    second.wait()
    project.expect("completed", load="completed")
    assert "lost its lease" in first.said.text

    project.submit("flow.yaml", "-i", "go=again")
    project.wait_for("executing", load="running")
    project.stop(first)
    third = start_worker(project, "third")
    project.wait_for_attempt("load", 2)
    first.kill()
    until(lambda: project.workers()["first"] == "shutdown")
    project.write("again")
    project.wait_for("completed", load="completed")
    third.end()
    assert set(project.workers().values()) == {"shutdown"}


def start_worker(project: Project, name: str) -> Command:
    worker = project.start("worker", "--lifecycle", "orchestrated", "--name", name, lease_seconds=LEASE_SECONDS)
    until(lambda: name in project.workers())
    return worker


def test_every_row_has_a_scenario() -> None:
    SCENARIOS.check_coverage()


@pytest.mark.parametrize(("scenario", "place"), SCENARIOS.each_place())
def test_the_command_line_takes_it_through_the_document(scenario: Scenario, tmp_path: Path, place: str) -> None:
    play(scenario, tmp_path, place)
