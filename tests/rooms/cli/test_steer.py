"""`pointsman cancel`, `pause`, `retry`, `skip`: what changes, and what is said about it."""

from __future__ import annotations

import os

import pytest
from tests.rooms.cli.scene import Scene

from pointsman.engine.submit import NewTask


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
    assert (said.code, said.err) == (0, "1 task was running; its worker ends it with SIGTERM, and after 10 s with SIGKILL.\n")


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


def test_a_critical_task_that_is_cancelled_costs_the_run_its_success_and_says_so(scene: Scene) -> None:
    run = scene.submit()
    said = scene.call("cancel latest fetch")
    assert said.out == f"fetch: QUEUED → CANCELED\nnightly ({run.id[-8:]}): PENDING → FAILED\n"
    assert said.err.splitlines() == [
        "nightly cannot succeed without fetch, and CANCELED is final. Run the flow again.",
        "(`pointsman skip` instead of `cancel` lets the other tasks continue.)",
    ]


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
