"""Document 001: every row of its tables, and each of its four recoveries, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.documents.harness import Project, Scenario, Scenarios, play, until

STUCK_RUNNING = "1: a workstream is stuck running"
NOT_RETRIED = "2: a failed step is not retried"
STUCK_OPEN = "3: a breaker is stuck open"
INCONSISTENT = "4: states contradict each other"
SCENARIOS = Scenarios("pipeline", recovery=(STUCK_RUNNING, NOT_RETRIED, STUCK_OPEN, INCONSISTENT))


@SCENARIOS.add(
    "workstream: S_PENDING -> S_RUNNING : start_execution",
    "workstream: S_RUNNING -> S_FAILED : step_fails",
    "workstream: S_FAILED -> S_RETRYING : retry_eligible",
    "workstream: S_RETRYING -> S_RUNNING : retry_attempt",
    "workstream: S_FAILED -> S_ABANDONED : retries_exhausted",
    "step: S_PENDING -> S_RUNNING : dependencies_met",
    "step: S_RUNNING -> S_SUCCESS : success",
    "step: S_RUNNING -> S_FAILED : failure",
    "step: S_FAILED -> S_RETRYING : retry_eligible",
    "step: S_RETRYING -> S_RUNNING : retry_attempt",
)
def a_workstream_is_abandoned_after_its_last_retry(project: Project) -> None:
    project.write_flow("""
        name: build
        lifecycle: pipeline
        retries: 1
        tasks:
          fetch: {run: exit 3, expected_exit_codes: [0, 3]}
          build: {run: exit 1, needs: fetch, retries: 1, backoff: {base: 0.1s}}
          ship: {run: 'true', needs: build}
        """)
    said = project.call("run", "flow.yaml", code=1)
    assert "S_ABANDONED  build: 1 of 3 tasks done, 1 failed" in said.text
    project.follow(said, "logs")
    said = project.expect("S_ABANDONED", fetch="S_SUCCESS", build="S_FAILED", ship="S_PENDING")
    way = "To reset or skip a failed task before the run ends, set `retries` and `backoff` of the flow"
    assert f"S_ABANDONED is final. Run the flow again. {way}" in said.text
    for command in ("reset", "skip"):
        refused = project.read(command, "latest", "build", code=2)
        assert refused.err.startswith(f"error: S_ABANDONED is final. Run the flow again. {way}")


@SCENARIOS.add("workstream: S_RUNNING -> S_ABANDONED : abandon", recovery=(STUCK_RUNNING,))
def a_workstream_that_lost_its_process_is_resumed_and_then_abandoned(project: Project) -> None:
    project.write_flow("""
        name: build
        lifecycle: pipeline
        tasks:
          fetch: {run: 'true'}
          build: {run: sleep 1000, needs: fetch, retries: 1, backoff: {base: 0.1s}}
        """)
    run = project.start("run", "flow.yaml")
    project.wait_for("S_RUNNING", build="S_RUNNING")
    run.kill()
    said = project.expect("S_RUNNING (interrupted)", fetch="S_SUCCESS", build="S_RUNNING")
    assert "interrupted: its worker" in said.text
    run = project.start_hint(said, "resume")
    project.wait_for_attempt("build", 2)
    project.follow(project.expect("S_RUNNING", build="S_RUNNING"), "cancel", "--reason", "not today")
    assert "S_ABANDONED  build: 1 of 2 tasks done" in run.wait(1).text
    project.expect("S_ABANDONED", fetch="S_SUCCESS", build="S_FAILED")
    assert "not today" in project.read("history", "latest").out


@SCENARIOS.add("workstream: S_RUNNING -> S_SUCCESS : all_steps_succeed", recovery=(STUCK_RUNNING,))
def a_workstream_whose_steps_have_all_succeeded_is_settled(project: Project) -> None:
    project.write_flow("{name: build, lifecycle: pipeline, tasks: {fetch: {run: 'true'}, build: {run: sleep 1000}}}")
    run = project.start("run", "flow.yaml")
    project.wait_for("S_RUNNING", fetch="S_SUCCESS", build="S_RUNNING")
    run.kill()
    project.end_work()
    project.ask("UPDATE task SET state = 'S_SUCCESS' WHERE name = 'build'")  # the step had ended, and nobody could say so
    said = project.read("doctor", code=1)
    assert "It is under way, but none of its tasks can move" in said.out
    assert "repaired 1 finding" in project.follow(said, "doctor --").text
    project.expect("S_SUCCESS", fetch="S_SUCCESS", build="S_SUCCESS")


@SCENARIOS.add(
    "step: S_FAILED -> S_PENDING : reset",
    "step: S_FAILED -> S_SUCCESS : skip",
    "breaker: CLOSED -> OPEN : failure_threshold_exceeded",
    "breaker: OPEN -> CLOSED : reset",
    recovery=(NOT_RETRIED, STUCK_OPEN),
)
def failed_steps_are_reset_or_skipped(project: Project) -> None:
    project.write(
        "pointsman.toml",
        """
        [tools.stubborn]
        command = ["sh", "-c"]
        retry_on_failure = false
        [tools.fragile]
        command = ["sh", "-c"]
        breaker = {failure_threshold = 1, cooldown = "1h"}
        """,
    )
    project.write_flow("""
        name: build
        lifecycle: pipeline
        retries: 1
        backoff: 6s
        tasks:
          flaky: {run: '[ -e mended ]'}
          stubborn: {tool: stubborn, command: [exit 1], retries: 1}
          fragile: {tool: fragile, command: [exit 1], retries: 1}
          ship: {run: 'true', needs: [flaky, stubborn, fragile]}
        """)
    run = project.start("run", "flow.yaml", slots=4)
    project.wait_for("S_RETRYING", flaky="S_FAILED", stubborn="S_FAILED", fragile="S_FAILED")
    run.kill()  # its retry is not due yet, and without a worker it waits
    doctor = project.read("doctor", code=1)
    found = doctor.text
    assert "flaky is S_FAILED and is not retried: it has used up its retries (0)." in found
    assert "stubborn is S_FAILED and is not retried: its tool is not to be retried (retry_on_failure is false)." in found
    assert "fragile is S_FAILED and is not retried: the circuit of fragile is open." in found
    assert "fragile circuit is open, retry in" in found
    said = project.expect("S_RETRYING", flaky="S_FAILED", stubborn="S_FAILED", fragile="S_FAILED", ship="S_PENDING")
    project.write("mended")
    project.call("reset", "latest", "flaky", "--reason", "the disk was full", "--as", "ada")
    project.call("skip", "latest", "stubborn")
    project.follow(said, f"skip {project.latest_run()[-8:]} fragile")
    said = project.expect("S_RETRYING", flaky="S_PENDING", stubborn="S_SUCCESS", fragile="S_SUCCESS", ship="S_PENDING")
    assert "S_SUCCESS  build: 4 of 4 tasks done (2 skipped)" in project.follow(said, "resume").text
    project.follow(doctor, "breakers reset fragile")
    history = project.read("history", "latest", "flaky").out
    assert "ada" in history
    assert "the disk was full" in history


@SCENARIOS.add(
    "breaker: OPEN -> HALF_OPEN : cooldown_expires",
    "breaker: HALF_OPEN -> OPEN : failure",
    "breaker: HALF_OPEN -> CLOSED : success",
    "breaker: HALF_OPEN -> CLOSED : reset",
    recovery=(STUCK_OPEN,),
)
def a_breaker_lets_one_probe_through(project: Project) -> None:
    project.write(
        "pointsman.toml",
        """
        [tools.curl]
        command = ["sh", "-c"]
        breaker = {failure_threshold = 1, cooldown = "1s"}
        """,
    )
    project.write_flow("""
        name: build
        lifecycle: pipeline
        retries: 2
        tasks:
          fetch: {tool: curl, command: ['echo >> tries; [ $(wc -l < tries) = 3 ]']}
        """)
    project.call("run", "flow.yaml")
    assert len((project.folder / "tries").read_text()) == 3
    project.expect("S_SUCCESS", fetch="S_SUCCESS")
    project.call("breakers", "trip", "curl", "--for", "0.1s")
    worker = project.start("worker")  # its timers, or those of the server, let the next task of the tool be a probe
    until(lambda: "IDLE" in project.workers().values(), lambda: project.said)
    until(lambda: project.ask("SELECT state FROM breaker") == [("HALF_OPEN",)], lambda: project.said)
    project.follow(project.read("doctor", code=1), "breakers reset curl")
    worker.end()


@SCENARIOS.add(recovery=(INCONSISTENT,))
def a_success_with_a_failed_step_is_put_right(project: Project) -> None:
    project.write_flow("{name: build, lifecycle: pipeline, tasks: {fetch: {run: 'true'}}}")
    project.call("run", "flow.yaml")
    project.ask_without_law("task", "UPDATE task_state SET state = 'S_FAILED', outcome = 'failure'")
    said = project.read("doctor", code=1)
    assert "The run is S_SUCCESS, but its task fetch is S_FAILED." in said.out
    project.follow(said, "doctor --")
    project.expect("S_SUCCESS", fetch="S_SUCCESS")

    project.write_flow("{name: build, lifecycle: pipeline, tasks: {fetch: {run: exit 1}}}")
    project.call("run", "flow.yaml", code=1)
    change = "UPDATE run SET state = 'S_SUCCESS', outcome = 'success' WHERE id = :run"
    project.ask_without_law("run", change, run=project.latest_run())
    said = project.read("doctor", code=1)
    assert "The run is S_SUCCESS, but its task fetch is S_FAILED." in said.out
    project.follow(said, "doctor --")
    project.expect("S_ABANDONED", fetch="S_FAILED")


@pytest.mark.parametrize(("scenario", "place"), SCENARIOS.each_place())
def test_the_command_line_takes_it_through_the_document(scenario: Scenario, tmp_path: Path, place: str) -> None:
    play(scenario, tmp_path, place)


def test_every_row_has_a_scenario() -> None:
    SCENARIOS.check_coverage()
