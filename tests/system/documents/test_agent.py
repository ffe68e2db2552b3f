"""Document 004: every row of its tables, from the command line. Commands stand in for coding agents."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.documents.harness import Project, Scenario, Scenarios, play, until

SCENARIOS = Scenarios(
    "agent",
    recovery=(
        "READY is for top-level tasks only",
        "an answer continues the same session",
        "a comment reaches the next attempt",
        "a parent with subtasks is BLOCKED until they are COMPLETED",
        "a task behind a failed one fails with it",
        "a lost worker fails its task",
        "manual retries are limited where the task says so",
        "a task that timed out continues in the same session",
        "BUDGET_EXCEEDED is final",
        "a running task is CANCELLED when its process has ended",
        "a task that completes before its cancellation is COMPLETED",
    ),
)


@SCENARIOS.add(
    "task: PENDING -> QUEUED : run",
    "task: QUEUED -> RUNNING : claim",
    "task: RUNNING -> BLOCKED : ask",
    "task: BLOCKED -> QUEUED : answer",
    "task: RUNNING -> READY : exit_ok",
    "task: READY -> PENDING : reject",
    "task: READY -> COMPLETED : accept",
    "task: RUNNING -> BLOCKED : exit_ok",
    "task: RUNNING -> COMPLETED : exit_ok",
    "task: BLOCKED -> READY : children_done",
    recovery=(
        "READY is for top-level tasks only",
        "an answer continues the same session",
        "a comment reaches the next attempt",
        "a parent with subtasks is BLOCKED until they are COMPLETED",
    ),
)
def people_start_answer_reject_and_accept(project: Project) -> None:
    project.write_flow("""
        name: feature
        lifecycle: agent
        start: manual
        tasks:
          plan:
            run: |
              echo "$POINTSMAN_SESSION|$POINTSMAN_ANSWER|$POINTSMAN_COMMENT" >> plan.txt
              if test -z "$POINTSMAN_ANSWER"; then
                echo '{"text": "Where?", "choices": ["east", "west"]}' > "$POINTSMAN_QUESTION"
              fi
          build:
            needs: plan
            run: |
              echo '{"name": "part", "run": "until test -e go; do sleep 0.1; done"}' > "$POINTSMAN_SUBTASKS"
    """)
    run = project.start("run", "flow.yaml")
    project.wait_for("WAITING", plan="PENDING")
    project.follow(project.call("inbox"), "start")
    project.wait_for("WAITING", plan="BLOCKED")
    refused = project.call("answer", "latest", "plan", "north", code=2)
    assert "'north' is not one of the choices: east, west" in refused.err
    inbox = project.call("inbox")
    assert "Where?" in inbox.out
    assert "plan: BLOCKED → " in project.follow(inbox, "answer").out
    project.wait_for("WAITING", plan="READY")
    said = project.expect("WAITING", plan="READY", build="PENDING")
    project.follow(said, "reject", "--comment", "shorter")
    project.wait_for("WAITING", plan="PENDING")
    project.call("start", "latest")
    project.wait_for("WAITING", plan="READY", build="QUEUED")
    asked, answered, rejected = (line.split("|") for line in (project.folder / "plan.txt").read_text().splitlines())
    assert asked[0] == answered[0] == rejected[0], "a rejected result is improved in the same session"
    assert (answered[1:], rejected[1:]) == (["east", ""], ["east", "shorter"])
    project.follow(project.expect("WAITING", plan="READY"), "accept")
    project.wait_for("RUNNING", plan="COMPLETED", build="BLOCKED", **{"build/part": "RUNNING"})
    assert "after: 1 subtask" in project.expect("RUNNING", build="BLOCKED").out
    project.write("go")
    project.wait_for("WAITING", build="READY", **{"build/part": "COMPLETED"})
    said = project.follow(project.call("inbox"), "accept")
    assert "WAITING → SUCCEEDED" in said.out
    assert "SUCCEEDED  feature: 3 of 3 tasks done" in run.wait().text
    project.expect("SUCCEEDED", plan="COMPLETED", build="COMPLETED")


@SCENARIOS.add(
    "task: RUNNING -> FAILED : error",
    "task: QUEUED -> FAILED : dependency_failed",
    "task: FAILED -> QUEUED : run",
    recovery=(
        "a task behind a failed one fails with it",
        "a lost worker fails its task",
        "manual retries are limited where the task says so",
    ),
    findings=("check is FAILED and is not retried: it has never run", "write is FAILED and is not retried: it has used up"),
)
def people_retry_what_failed_until_no_attempt_is_left(project: Project) -> None:
    project.write_flow("""
        name: fix
        lifecycle: agent
        tasks:
          write: {run: 'test -e tried || { touch tried; sleep 60; }; exit 3', max_attempts: 2}
          check: {needs: write, run: echo never}
    """)
    run = project.start("run", "flow.yaml")
    until((project.folder / "tried").exists)
    run.kill()
    said = project.call("status", "latest")
    assert "RUNNING (interrupted)" in said.out
    said = project.follow(said, "resume", code=1)
    project.expect("FAILED", write="FAILED", check="FAILED")
    said = project.follow(project.follow(said, "retry"), "resume", code=1)
    assert "write  exited with code 3 (expected 0)" in said.text
    said = project.expect("FAILED", write="FAILED", check="FAILED")
    assert "pointsman retry" not in said.out
    refused = project.call("retry", "latest", "write", code=2)
    assert refused.err == "error: FAILED is final. Run the flow again.\n"


@SCENARIOS.add(
    "task: RUNNING -> TIMED_OUT : deadline",
    "task: TIMED_OUT -> QUEUED : resume",
    recovery=("a task that timed out continues in the same session",),
)
def a_task_that_timed_out_continues_its_session(project: Project) -> None:
    project.write_flow("""
        name: research
        lifecycle: agent
        tasks:
          read:
            timeout: 1s
            run: |
              echo "$POINTSMAN_SESSION" >> sessions.txt
              test $POINTSMAN_ATTEMPT -gt 1 || sleep 60
    """)
    said = project.call("run", "flow.yaml", code=1)
    said = project.expect("FAILED", read="TIMED_OUT")
    assert "It was stopped after 1s, its timeout." in said.out
    run = project.start_hint(said, "resume")
    project.wait_for("WAITING", read="READY")
    project.follow(project.expect("WAITING", read="READY"), "accept")
    run.wait()
    first, second = (project.folder / "sessions.txt").read_text().split()
    assert first == second
    project.expect("SUCCEEDED", read="COMPLETED")


@SCENARIOS.add(
    "task: RUNNING -> BUDGET_EXCEEDED : overspend",
    recovery=("BUDGET_EXCEEDED is final",),
    findings=("read is BUDGET_EXCEEDED and is not retried: its budget is spent",),
)
def a_task_that_overspends_is_ended_for_good(project: Project) -> None:
    project.write_flow("""
        name: research
        lifecycle: agent
        tasks: {read: {run: 'echo 2 > "$POINTSMAN_COST"; sleep 60', budget_usd: 1}}
    """)
    said = project.call("run", "flow.yaml", code=1)
    assert "the task has spent 2 USD of its budget of 1 USD" in said.text
    said = project.expect("FAILED", read="BUDGET_EXCEEDED")
    assert "read has no money left. Raise `budget_usd` in the flow, and run it again." in said.out
    for command in (("retry", "latest"), ("retry", "latest", "read"), ("cancel", "latest", "read")):
        project.call(*command, code=2)


@SCENARIOS.add(
    "task: PENDING, QUEUED -> CANCELLED : cancel",
    "task: RUNNING -> CANCELLED : cancel",
    recovery=(
        "a running task is CANCELLED when its process has ended",
        "a task that completes before its cancellation is COMPLETED",
    ),
)
def a_canceled_run_waits_for_its_processes(project: Project) -> None:
    project.write_flow("""
        name: feature
        lifecycle: agent
        start: manual
        tasks:
          write: {run: 'trap "until test -e go; do sleep 0.1; done; exit 1" TERM; touch writing; while :; do sleep 0.1; done'}
          finish: {run: 'trap "" TERM; touch finishing; until test -e go; do sleep 0.1; done'}
          check: {needs: write, run: echo never}
          later: {run: echo never}
    """)
    project.submit()
    for name in ("write", "finish", "check"):
        project.call("start", "latest", name)
    worker = project.start("worker", grace_seconds=30)
    until((project.folder / "writing").exists)
    until((project.folder / "finishing").exists)
    said = project.call("cancel", "latest")
    assert "2 tasks were running; their workers end them with SIGTERM" in said.err
    project.expect("CANCELED", write="RUNNING", finish="RUNNING", check="CANCELLED", later="CANCELLED")
    project.write("go")
    project.wait_for("CANCELED", write="CANCELLED", finish="CANCELLED")
    worker.end()


def test_every_row_has_a_scenario() -> None:
    SCENARIOS.check_coverage()


@pytest.mark.parametrize(("scenario", "place"), SCENARIOS.each_place())
def test_the_command_line_takes_it_through_the_document(scenario: Scenario, tmp_path: Path, place: str) -> None:
    play(scenario, tmp_path, place)
