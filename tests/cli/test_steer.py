"""`pointsman cancel`, `pause`, `retry`, `skip`: what changes, and what is said about it."""

from __future__ import annotations

import pytest
from tests.cli.scene import Scene

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
    assert (said.code, said.err) == (0, "1 task was running; its worker ends it, and after 10 s by force.\n")


def test_a_run_is_paused_and_says_how_to_go_on(scene: Scene) -> None:
    run = scene.submit()
    scene.claim()
    said = scene.call("pause latest")
    assert said.out == f"nightly ({run.id[-8:]}): RUNNING → PAUSED\n"
    assert said.err == f"1 task running may finish; nothing more begins.\nTo go on with it: pointsman resume {run.id[-8:]}\n"
    (scene.folder / "pointsman.toml").write_text('on_pause = "suspend"\n')
    assert scene.call("pause latest").code == 2


def test_what_failed_is_tried_again_and_nothing_else(scene: Scene) -> None:
    run = scene.failed_run()
    said = scene.call("retry latest")
    assert said.out == f"nightly ({run.id[-8:]}): FAILED → RUNNING\n"
    assert said.err == f"Its workers go on with it: pointsman watch {run.id[-8:]}\n"
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
    assert scene.call("skip latest fetch").err == f"No worker is at it. To go on with it: pointsman resume {run.id[-8:]}\n"


def test_a_refusal_is_the_sentence_of_the_engine_and_changes_nothing(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    scene.complete(run)
    said = scene.call("retry latest")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: standard.run has ended in SUCCEEDED: 'retry' cannot move it. Nothing leads out of it.\n"
    assert scene.call("skip latest only").err.startswith("error: standard.task has ended in SUCCEEDED: 'skip'")
    assert "has no task 'onl'. Did you mean only?" in scene.call("skip latest onl").err
    assert scene.state(run) == "SUCCEEDED"
