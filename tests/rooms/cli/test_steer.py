"""`pointsman cancel`, `pause`, `retry`, `skip`: what changes, and what is said about it."""

from __future__ import annotations

import os
import re
from decimal import Decimal

import pytest
from tests.rooms.cli.scene import Scene

from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask

OVERSPENT = AttemptReport(cost_usd=Decimal(1), error="too much")


def test_a_run_is_cancelled_with_all_its_tasks_and_the_reason_is_kept(scene: Scene) -> None:
    run = scene.submit()
    said = scene.call("cancel latest", "--reason", "not today")
    assert (said.code, said.out) == (0, f"nightly ({run.id[-8:]}): PENDING → CANCELED\n")
    assert {task.outcome for task in scene.tasks(run).values()} == {"canceled"}
    assert scene.call("history latest --json").json["moves"][-1]["reason"] == "not today"


def test_a_task_is_cancelled_alone(scene: Scene) -> None:
    run = scene.submit(NewTask(name="one", critical=False), NewTask(name="two"))
    said = scene.call("cancel latest one")
    assert said.out.startswith("one: QUEUED → CANCELED\n")
    assert scene.state(run, "two") == "QUEUED"


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
def test_what_was_running_is_left_to_its_worker_to_end(scene: Scene, lifecycle: str) -> None:
    scene.submit(NewTask(name="only"), lifecycle=lifecycle)
    scene.claim()
    said = scene.call("cancel latest")
    assert (said.code, said.err) == (0, "1 task was running; its worker ends it with SIGTERM, and after 10s with SIGKILL.\n")


def test_a_run_is_paused_and_says_how_to_go_on(scene: Scene) -> None:
    run = scene.submit()
    scene.claim()
    said = scene.call("pause latest")
    assert said.out == f"nightly ({run.id[-8:]}): RUNNING → PAUSED\n"
    assert said.err.startswith("1 running task may finish, unless the worker suspends it; no other task starts.\n")
    assert said.err.endswith(f"\nTo continue: pointsman resume {run.id[-8:]}\n")
    (scene.folder / "pointsman.toml").write_text('on_pause = "suspend"\n')
    assert scene.call("pause latest").code == 2


def test_what_failed_is_tried_again_and_nothing_else(scene: Scene) -> None:
    run = scene.failed_run()
    said = scene.call("retry latest")
    assert said.out == f"nightly ({run.id[-8:]}): FAILED → RUNNING\n"
    assert said.err == f"Its workers continue: pointsman watch {run.id[-8:]}\n"
    tasks = scene.tasks(run)
    assert [(task.state, task.epoch) for task in tasks.values()] == [("SUCCEEDED", 1), ("QUEUED", 1), ("PENDING", 0)]


def test_a_task_is_tried_again_and_its_run_with_it(scene: Scene) -> None:
    scene.failed_run()
    said = scene.call("retry latest transform --json").json
    assert (said["task"]["state"], said["run"]["state"]) == ("QUEUED", "RUNNING")


def test_a_task_is_passed_over_and_what_waits_for_it_goes_on(scene: Scene) -> None:
    run = scene.failed_run()
    said = scene.call("skip latest transform")
    assert said.out.splitlines()[0] == "transform: FAILED → SKIPPED"
    assert scene.state(run, "load") == "QUEUED"


def test_without_a_worker_it_says_who_could_go_on(scene: Scene) -> None:
    run = scene.submit()
    assert scene.call("skip latest fetch").err == f"No worker is running it. To continue: pointsman resume {run.id[-8:]}\n"


def test_resume_of_a_task_runs_it_and_does_not_say_how_to(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text("{name: f, tasks: {slow: {run: 'test -e go || sleep 60', timeout: 0.2s}}}")
    assert scene.call(f"run {scene.folder}/flow.yaml").code == 1
    (scene.folder / "go").touch()
    said = scene.call("resume latest slow")
    assert (said.code, "slow: TIMED_OUT → QUEUED" in said.out) == (0, True)
    assert "To continue:" not in said.err
    assert "pointsman resume" not in said.err


@pytest.mark.parametrize("operation", ["retry", "resume"])
def test_another_try_of_a_task_whose_subtask_failed_leads_on(scene: Scene, operation: str) -> None:
    flow = "{name: f, tasks: {parts: {foreach: [1, 2], run: 'test -e go || test ${{ item }} = 1'}}}"
    (scene.folder / "flow.yaml").write_text(flow)
    assert scene.call(f"run {scene.folder}/flow.yaml").code == 1
    (scene.folder / "go").touch()
    assert scene.call(f"{operation} latest parts").code == 0
    scene.call("resume latest")
    view = scene.call("status latest --json").json
    assert {task["name"]: (task["outcome"], task["attempts"]) for task in view["tasks"]} == {
        "parts": ("success", 2),
        "parts[0]": ("success", 1),
        "parts[1]": ("success", 2),
    }


def test_a_critical_task_that_is_cancelled_costs_the_run_its_success_and_says_so(scene: Scene) -> None:
    run = scene.submit()
    said = scene.call("cancel latest fetch")
    assert said.out == f"fetch: QUEUED → CANCELED\nnightly ({run.id[-8:]}): PENDING → FAILED\n"
    assert said.err.splitlines() == [
        "nightly cannot succeed without fetch, and CANCELED is final. Run the flow again.",
        "(`pointsman skip` instead of `cancel` lets the other tasks continue.)",
    ]


def test_a_retry_that_cannot_lead_to_success_is_refused_before_anything_runs(scene: Scene) -> None:
    parts = (NewTask(name=f"load[{number}]", parent="load") for number in range(2))
    run = scene.submit(NewTask(name="load"), *parts, NewTask(name="other"))
    scene.call("cancel latest load[0]")
    before = scene.tasks(run)
    for command in ("retry latest", "skip latest load", "skip latest other"):
        said = scene.call(command)
        assert (said.code, said.out) == (2, ""), command
        assert said.err == "error: nightly cannot succeed without load[0], and CANCELED is final. Run the flow again.\n"
    assert scene.tasks(run) == before
    assert scene.state(run) == "FAILED"


def test_a_task_without_money_is_not_retried_but_may_be_skipped(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a", budget_usd=Decimal(1)), NewTask(name="b", depends_on=("a",)))
    (claim,) = scene.claim()
    scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, "overspend", OVERSPENT))
    for command in ("retry latest", "retry latest a"):
        said = scene.call(command)
        assert said.code == 2
        assert said.err.startswith("error: a has no money left, so it would fail again.")
    assert f"Possible now: pointsman skip {run.id[-8:]} a (skips a; the run continues)." in said.err
    assert scene.call("skip latest a").code == 0
    assert scene.state(run) == "RUNNING"


def test_an_agent_that_stopped_at_the_budget_of_its_run_is_to_be_resumed(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a b"), budget_usd=Decimal(1))
    (claim,) = scene.claim()
    spent = AttemptReport(session_id="s-1", cost_usd=Decimal(1), error="stopped")
    scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, "overspend", spent))
    command = f"pointsman resume {run.id[-8:]} 'a b'"
    assert f"and continue its session: `{command}`." in scene.call("status latest").out
    assert f"To continue: {command}\n" in scene.call("budget set latest 5").err
    assert re.search(r"resume \w{8} 'a b' +# queues a b again in the same session", scene.call("status latest").out)


def test_the_name_of_a_session_that_was_made_up_is_no_session(scene: Scene) -> None:
    scene.submit(NewTask(name="a"))
    (claim,) = scene.claim()
    invented = AttemptReport(session_id=f"{claim.task_id}.1", error="boom", retryable=False)
    scene.do(lambda engine: engine.fail_task(claim.task_id, claim.epoch, invented))
    assert "in the same session" not in scene.call("status latest").out


def test_the_hints_say_which_of_retry_and_resume_continues_the_session(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"))
    (claim,) = scene.claim()
    scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s-1")))
    scene.do(lambda engine: engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="boom", retryable=False)))
    part, shown = run.id[-8:], scene.call("status latest").out
    assert re.search(rf"pointsman retry {part} +# queues a again; the run continues", shown)
    assert re.search(rf"pointsman resume {part} a +# queues a again in the same session; the run continues", shown)


def test_a_task_that_stopped_at_the_budget_of_its_run_goes_on_when_that_is_raised(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"), budget_usd=Decimal(1))
    (claim,) = scene.claim()
    scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, "overspend", OVERSPENT))
    assert scene.call("retry latest a").code == 2
    assert scene.call("budget set latest 3").code == 0
    assert scene.call("retry latest a").code == 0
    assert scene.state(run) == "RUNNING"


@pytest.mark.parametrize("project", ["scene", "scene_on_postgres"])
@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
def test_canceling_a_failed_run_ends_what_still_runs(request: pytest.FixtureRequest, project: str, lifecycle: str) -> None:
    scene: Scene = request.getfixturevalue(project)
    run = scene.submit(NewTask(name="a", max_attempts=1), NewTask(name="b"), NewTask(name="c"), lifecycle=lifecycle)
    first, _ = scene.claim(limit=2)
    scene.do(lambda engine: engine.fail_task(first.task_id, first.epoch, AttemptReport(error="boom", retryable=False)))
    assert scene.state(run) == "FAILED"
    part = run.id[-8:]
    assert f"  pointsman cancel {part}" in scene.call("status latest").out
    said = scene.call("cancel latest")
    assert (said.code, said.out) == (0, f"nightly ({part}): still FAILED\n")
    assert said.err.startswith("1 task was running; its worker ends it with SIGTERM")
    running = scene.tasks(run)["b"]
    assert running.outcome == "canceled" or running.cancel_requested_at is not None
    assert scene.call("cancel latest").code == 2, "nothing is left to end"


def test_a_task_that_is_not_critical_is_cancelled_without_ado(scene: Scene) -> None:
    scene.submit(NewTask(name="one", critical=False), NewTask(name="two"))
    said = scene.call("cancel latest one").err
    assert "cannot succeed" not in said
    assert "skip" not in said


def test_a_refusal_speaks_of_the_run_or_the_task_and_changes_nothing(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    scene.complete(run)
    said = scene.call("retry latest")
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: nightly ({run.id[-8:]}) is SUCCEEDED, and that is final.\n"
    assert scene.call("skip latest only").err == "error: only is SUCCEEDED, and that is final.\n"
    assert "has no task 'onl'. Did you mean only?" in scene.call("skip latest onl").err
    assert scene.state(run) == "SUCCEEDED"


def test_a_refusal_says_what_can_be_done_instead(scene: Scene) -> None:
    run = scene.failed_run()
    part = run.id[-8:]
    said = scene.call("cancel latest").err
    assert said == (
        f"error: nightly ({part}) is FAILED, which does not allow `cancel`. "
        f"Possible now: pointsman retry {part} (queues transform again; the run continues).\n"
    )
    said = scene.call("cancel latest transform").err
    assert said == (
        "error: transform is FAILED, which does not allow `cancel`. "
        f"Possible now: pointsman skip {part} transform (skips transform; the run continues), "
        f"pointsman retry {part} transform (queues transform again; the run continues).\n"
    )


@pytest.mark.parametrize("is_changed", [True, False])
def test_whoever_has_mended_a_flow_hears_that_its_run_goes_on_as_it_was(scene: Scene, *, is_changed: bool) -> None:
    file = scene.folder / "flow.yaml"
    file.write_text("name: nightly\n")
    run = scene.submit(payload={"file": "flow.yaml", "directory": str(scene.folder)})
    scene.complete(run)
    scene.fail(run)
    instant = run.created_at.timestamp() + (60 if is_changed else -60)
    os.utime(file, (instant, instant))
    said = scene.call("retry latest")
    assert ("To run the new one: pointsman run flow.yaml" in said.err) is is_changed
