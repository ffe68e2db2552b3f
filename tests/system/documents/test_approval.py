"""Document 003: every row of its tables, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.documents.harness import Project, Scenario, Scenarios, play, until

SCENARIOS = Scenarios(
    "approval",
    recovery=(
        "a step whose worker is gone is claimed again",
        "a step that is older than reclaim_after is claimed again",
        "a failed step returns to PENDING with a delay",
        "a step without attempts left fails the run",
        "an approval that is repeated changes nothing",
        "nothing is approved that does not wait for it",
        "a worker never executes an approval",
        "a step starts when every earlier one has succeeded",
        "a request that is repeated with its key makes one run",
        "another tenant's run is not found",
    ),
    unreachable={
        "another tenant's run is not found": "the command line works for one tenant",
    },
)


@SCENARIOS.add(
    "run: PENDING -> RUNNING : first_step_claimed",
    "run: RUNNING -> WAITING_APPROVAL : gate_reached",
    "run: WAITING_APPROVAL -> RUNNING : approve",
    "run: WAITING_APPROVAL -> SUCCEEDED : all_steps_succeeded",
    "step: PENDING -> RUNNING : claim",
    "step: RUNNING -> PENDING : fail",
    "step: RUNNING -> SUCCEEDED : complete",
    "step: PENDING -> WAITING_APPROVAL : open_gate",
    "step: WAITING_APPROVAL -> SUCCEEDED : approve",
    recovery=(
        "a failed step returns to PENDING with a delay",
        "an approval that is repeated changes nothing",
        "nothing is approved that does not wait for it",
        "a worker never executes an approval",
        "a step starts when every earlier one has succeeded",
    ),
)
def a_run_waits_for_each_of_its_approvals(project: Project) -> None:
    project.write_flow("""
        name: release
        lifecycle: approval
        ordered: true
        tasks:
          build: {run: 'test -e tried || { touch tried; exit 3; }', retries: 1, backoff: {base: 0.1s}}
          sign: {approval: 'Ship it?'}
          ship: {run: echo shipped}
          close: {approval: {by: [ada]}}
    """)
    run = project.start("run", "flow.yaml")
    project.wait_for("WAITING_APPROVAL", sign="WAITING_APPROVAL")
    until(lambda: "To decide: pointsman inbox" in run.said.text)
    assert "build  PENDING  after" in run.said.text
    assert project.ask("SELECT epoch FROM task WHERE name = 'sign'") == [(0,)], "no worker has claimed it"
    said = project.expect("WAITING_APPROVAL", build="SUCCEEDED", sign="WAITING_APPROVAL", ship="PENDING", close="PENDING")
    assert "after: sign" in said.out
    refused = project.call("approve", "latest", "close", "--as", "ada", code=2)
    assert "close is PENDING, which does not allow `approve`" in refused.err
    inbox = project.follow(run.said, "inbox")
    assert "Ship it?" in inbox.out
    assert "sign: WAITING_APPROVAL → SUCCEEDED" in project.follow(inbox, "approve").out
    project.wait_for("WAITING_APPROVAL", ship="SUCCEEDED", close="WAITING_APPROVAL")
    assert "It is up to ada." in project.call("approve", "latest", "close", "--as", "ben", code=2).err
    said = project.call("approve", "latest", "--as", "ada", "--reason", "all green")
    assert "WAITING_APPROVAL → SUCCEEDED" in said.out.splitlines()[-1]
    assert "SUCCEEDED  release: 4 of 4 tasks done" in run.wait().text
    assert "waits for an approval" in project.call("approve", "latest").err
    project.expect("SUCCEEDED", build="SUCCEEDED", sign="SUCCEEDED", ship="SUCCEEDED", close="SUCCEEDED")


@SCENARIOS.add(
    "step: RUNNING -> RUNNING : reclaim",
    "run: RUNNING -> SUCCEEDED : all_steps_succeeded",
    recovery=("a step whose worker is gone is claimed again", "a step that is older than reclaim_after is claimed again"),
)
def a_stale_step_is_claimed_again(project: Project) -> None:
    project.write_flow("""
        name: import
        lifecycle: approval
        ordered: true
        tasks:
          hang: {run: 'test -e hung || { touch hung; sleep 60; }', reclaim_after: 1s}
          crash: {run: 'test -e crashed || { touch crashed; sleep 60; }'}
    """)
    run = project.start("run", "flow.yaml")
    until((project.folder / "crashed").exists)
    run.kill()
    said = project.call("status", "latest")
    assert "RUNNING (interrupted)" in said.out
    resumed = project.follow(said, "resume")
    assert "SUCCEEDED  import: 2 of 2 tasks done" in resumed.text
    tries = project.ask("SELECT name, ended_by FROM attempt JOIN task ON task.id = task_id ORDER BY task_id, attempt.epoch")
    assert tries == [("hang", "reclaim"), ("hang", "complete"), ("crash", "reclaim"), ("crash", "complete")]


@SCENARIOS.add(
    "run: RUNNING -> FAILED : step_exhausted",
    "step: RUNNING -> FAILED : fail",
    "step: PENDING, WAITING_APPROVAL -> CANCELED : cancel",
    recovery=("a step without attempts left fails the run",),
)
def a_step_that_fails_for_good_ends_its_run(project: Project) -> None:
    project.write_flow("""
        name: import
        lifecycle: approval
        tasks:
          sign: {approval: 'Import it?'}
          load: {run: 'echo try >> tries; exit 3', max_attempts: 2, backoff: {base: 0.1s}}
          report: {needs: load, run: echo never}
    """)
    said = project.call("run", "flow.yaml", code=1)
    assert "FAILED  import: 0 of 3 tasks done, 1 failed, 2 canceled" in said.text
    assert (project.folder / "tries").read_text() == "try\ntry\n"
    project.follow(said, "logs")
    said = project.expect("FAILED", sign="CANCELED", load="FAILED", report="CANCELED")
    assert "import cannot succeed without load, and FAILED is final. Run the flow again." in said.out
    for command in (("approve", "latest", "sign"), ("retry", "latest"), ("cancel", "latest")):
        project.call(*command, code=2)


@SCENARIOS.add("run: WAITING_APPROVAL -> FAILED : step_exhausted")
def an_approval_that_expires_ends_its_run(project: Project) -> None:
    project.write_flow("""
        name: release
        lifecycle: approval
        tasks:
          sign: {approval: {prompt: 'Ship it?', expires: 1s}}
    """)
    said = project.call("run", "flow.yaml", code=1)
    assert "FAILED  release: 0 of 1 task done, 1 canceled" in said.text
    project.expect("FAILED", sign="CANCELED")
    project.call("approve", "latest", "sign", code=2)


@SCENARIOS.add(
    "run: PENDING, RUNNING, WAITING_APPROVAL -> CANCELED : cancel",
    "step: PENDING, RUNNING, WAITING_APPROVAL -> CANCELED : cancel",
    recovery=("a request that is repeated with its key makes one run",),
)
def a_run_is_canceled_wherever_it_is(project: Project) -> None:
    project.write_flow("""
        name: import
        lifecycle: approval
        ordered: true
        tasks: {load: {run: 'touch loading; sleep 60'}, sign: {approval: true}}
    """)
    project.write("gate.yaml", "{name: gate, lifecycle: approval, tasks: {sign: {approval: true}}}")
    assert project.submit("flow.yaml", "--request-id", "r-1") == project.submit("flow.yaml", "--request-id", "r-1")
    said = project.expect("PENDING", load="PENDING")
    assert "PENDING → CANCELED" in project.follow(said, "cancel", "--reason", "not today").out
    project.expect("CANCELED", load="CANCELED", sign="CANCELED")
    project.submit("gate.yaml")
    said = project.expect("WAITING_APPROVAL", sign="WAITING_APPROVAL")
    project.follow(said, "cancel")
    project.expect("CANCELED", sign="CANCELED")
    run = project.start("run", "flow.yaml")
    until((project.folder / "loading").exists)
    said = project.call("cancel", "latest")
    assert "RUNNING → CANCELED" in said.out
    assert "1 task was running; its worker ends it with SIGTERM" in said.err
    assert "CANCELED  import" in run.wait(1).text
    project.expect("CANCELED", load="CANCELED", sign="CANCELED")


def test_every_row_has_a_scenario() -> None:
    SCENARIOS.check_coverage()


@pytest.mark.parametrize(("scenario", "place"), SCENARIOS.each_place())
def test_the_command_line_takes_it_through_the_document(scenario: Scenario, tmp_path: Path, place: str) -> None:
    play(scenario, tmp_path, place)
