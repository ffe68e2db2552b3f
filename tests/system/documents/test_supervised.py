"""Document 000: every row of its tables, and of its tables of error recovery, from the command line."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.system.documents.harness import Command, Project, Scenario, Scenarios, play, until

TRANSIENT = "worker: a transient error is retried"
EXHAUSTED = "worker: without resources it pauses"
UNRECOVERABLE = "worker: an unrecoverable error ends it"
TIMED_OUT = "worker: the supervisor ends one that is silent"
CRASHED = "job: a crashed worker is replaced"
INVALID = "job: an error that no retry mends fails it"
TOO_LONG = "job: a timeout cancels it"
UNAVAILABLE = "job: without workers it stays pending"
SCENARIOS = Scenarios(
    "supervised",
    recovery=(TRANSIENT, EXHAUSTED, UNRECOVERABLE, TIMED_OUT, CRASHED, INVALID, TOO_LONG, UNAVAILABLE),
)
LONG = "{name: job, lifecycle: supervised, tasks: {work: {run: sleep 1000}}}"
ONCE_LONG = "{name: job, lifecycle: supervised, tasks: {work: {run: '[ -e tried ] || { touch tried; sleep 1000; }'}}}"


def start_worker(project: Project, name: str, *options: str, **settings: object) -> Command:
    """Start a worker of document 000, and wait until it is registered."""
    worker = project.start("worker", "--lifecycle", "supervised", "--name", name, *options, **settings)
    until(lambda: name in project.workers() or worker.has_ended, lambda: project.said)
    return worker


def wait_for_worker(project: Project, name: str, state: str) -> None:
    until(lambda: project.workers().get(name) == state, lambda: f"{project.workers()} {project.said}")


@SCENARIOS.add(
    "job: SUBMITTED -> PENDING : validate",
    "job: PENDING -> RUNNING : allocate_resources",
    "job: RUNNING -> COMPLETED : success",
    "worker: IDLE -> RUNNING : start_task",
    "worker: RUNNING -> COMPLETED : complete_tasks",
    "worker: RUNNING -> FAILED : error_unrecoverable",
    "worker: COMPLETED, FAILED -> TERMINATED : terminate",
    recovery=(TRANSIENT, UNRECOVERABLE, UNAVAILABLE),
    breaks_database=True,
)
def a_job_waits_for_all_of_its_workers(project: Project) -> None:
    project.write_flow("""
        name: job
        lifecycle: supervised
        worker_count: 2
        tasks:
          fetch: {run: 'echo >> tries; [ $(wc -l < tries) = 3 ]', backoff: {base: 0.1s}}
        """)
    project.submit()
    one = start_worker(project, "one")
    assert "waits for 2 workers of its own" in project.expect("PENDING", fetch="QUEUED").text
    assert project.workers() == {"one": "IDLE"}
    two = start_worker(project, "two")
    project.wait_for("COMPLETED", fetch="SUCCEEDED")
    assert re.search(r"fetch +SUCCEEDED +3 ", project.expect("COMPLETED").text)
    assert project.workers() == {"one": "RUNNING", "two": "RUNNING"}
    one.end()
    break_worker(project, "two")
    two.wait(2)
    assert "error_unrecoverable" in project.read("history", "two").out
    assert project.workers() == {"one": "COMPLETED", "two": "FAILED"}
    for name in ("one", "two"):
        project.call("workers", "terminate", name)
    assert project.workers() == {"one": "TERMINATED", "two": "TERMINATED"}


def break_worker(project: Project, worker: str) -> None:
    """Let a worker meet an error that it cannot handle: a task that somebody has damaged in the database."""
    project.write_flow("{name: damaged, lifecycle: approval, tasks: {work: {run: 'true'}}}")
    project.call("workers", "pause", worker)
    run = project.submit()
    change = "UPDATE task_spec SET policy = :policy WHERE run_id = :run"
    ((sound,),) = project.ask("SELECT policy FROM task WHERE run_id = :run", run=run)
    project.ask_without_law("task", change, policy="[]", run=run)
    project.call("workers", "resume", worker)
    wait_for_worker(project, worker, "FAILED")
    project.ask_without_law("task", change, policy=sound, run=run)
    project.follow(project.expect("PENDING", run, work="PENDING"), "cancel")


@SCENARIOS.add(
    "job: SUBMITTED, PENDING, RUNNING -> CANCELED : cancel",
    "job: RUNNING -> FAILED : error",
    recovery=(INVALID, TOO_LONG),
)
def a_job_is_refused_or_fails_or_is_canceled(project: Project) -> None:
    project.write_flow("{name: job, lifecycle: supervised, worker_count: 11, tasks: {work: {run: exit 1}}}")
    assert "worker_count" in project.call("run", "flow.yaml", code=2).err
    assert project.latest_run() == ""
    project.write_flow("{name: job, lifecycle: supervised, tasks: {work: {run: exit 1, retry_on: timeout}}}")
    assert "FAILED  job: 0 of 1 task done, 1 failed" in project.call("run", "flow.yaml", code=1).text
    assert re.search(r"work +FAILED +1 ", project.expect("FAILED").text)

    announced = project.announce("supervised")
    project.follow(project.expect("SUBMITTED", announced), "cancel")
    project.expect("CANCELED", announced)

    project.write_flow(LONG)
    pending = project.submit()
    project.follow(project.expect("PENDING", pending, work="QUEUED"), "cancel")
    project.expect("CANCELED", pending, work="CANCELED")

    run = project.start("run", "flow.yaml")
    project.wait_for("RUNNING", work="RUNNING")
    project.follow(project.expect("RUNNING", work="RUNNING"), "cancel")
    assert "CANCELED  job: 0 of 1 task done" in run.wait(1).text
    project.expect("CANCELED", work="CANCELED")

    project.write_flow(LONG.replace("tasks:", "timeout: 1s, tasks:"))
    assert "timeout of 1s" in project.call("run", "flow.yaml", code=1).text
    project.expect("CANCELED")


@SCENARIOS.add(
    "worker: RUNNING -> PAUSED : pause",
    "worker: PAUSED -> RUNNING : resume",
    "worker: IDLE, RUNNING, PAUSED -> TERMINATED : terminate",
    recovery=(EXHAUSTED,),
)
def a_supervisor_pauses_resumes_and_terminates_workers(project: Project) -> None:
    idle = start_worker(project, "idle")
    project.call("workers", "terminate", "idle")
    idle.wait()
    assert project.workers() == {"idle": "TERMINATED"}

    project.write_flow(LONG)
    project.submit()
    running = start_worker(project, "running")
    project.wait_for_attempt("work", 1)
    project.call("workers", "pause", "running", "--reason", "the disk is full")
    assert re.search(r"running +PAUSED", project.read("workers").out)
    project.call("workers", "resume", "running")
    assert re.search(r"running +RUNNING", project.read("workers").out)
    project.call("workers", "terminate", "running")
    running.wait()

    poor = start_worker(project, "poor", "--min-free-disk", "900000 GB")
    wait_for_worker(project, "poor", "PAUSED")
    until(lambda: project.states()["work"] == "QUEUED", lambda: project.said)  # it gave its task back
    project.call("workers", "terminate", "poor")
    poor.wait()
    assert set(project.workers().values()) == {"TERMINATED"}
    project.follow(project.expect("RUNNING (interrupted)", work="QUEUED"), "cancel")
    project.expect("CANCELED", work="CANCELED")


@SCENARIOS.add(recovery=(CRASHED, TIMED_OUT))
def a_supervisor_replaces_a_crashed_worker_and_ends_a_silent_one(project: Project) -> None:
    silent = start_worker(project, "silent", lease_seconds=0.5)
    project.stop(silent)
    pool = project.start("worker", "--lifecycle", "supervised", "--name", "pool", "--count", "1")
    wait_for_worker(project, "silent", "TERMINATED")
    assert "was silent for too long" in silent.end(signal.SIGCONT, code=1).text

    project.write_flow(ONCE_LONG)
    project.submit()
    until((project.folder / "tried").exists, lambda: project.said)
    (pid,) = re.findall(r"started \(process (\d+)\)", pool.said.text)
    os.kill(int(pid), signal.SIGKILL)
    project.wait_for("COMPLETED", work="SUCCEEDED")
    assert len(re.findall(r"started \(process (\d+)\)", pool.end().text)) == 2
    moves = json.loads(project.read("history", "latest", "--json").out)["moves"]
    assert [move["to"] for move in moves] == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]


@pytest.mark.parametrize(("scenario", "place"), SCENARIOS.each_place())
def test_the_command_line_takes_it_through_the_document(scenario: Scenario, tmp_path: Path, place: str) -> None:
    play(scenario, tmp_path, place)


def test_every_row_has_a_scenario() -> None:
    SCENARIOS.check_coverage()
