"""`pointsman doctor`: what is stuck or wrong, what would help, and the audit."""

from __future__ import annotations

import shlex

from tests.rooms.cli.scene import Scene
from tests.rooms.store.outsider import outsider

from pointsman.cli import main
from pointsman.engine.submit import NewTask


def test_a_healthy_project_has_nothing_to_show(scene: Scene) -> None:
    scene.complete(scene.submit())
    said = scene.call("doctor")
    assert (said.code, said.out) == (0, "nothing is stuck, and nothing is wrong\n")
    assert scene.call("doctor --json").json == {"findings": [], "repaired": []}


def test_a_failed_task_is_shown_with_advice(scene: Scene) -> None:
    task = scene.tasks(scene.failed_run())["transform"]
    said = scene.call("doctor")
    assert said.code == 1
    assert f"task {task.id}: transform is FAILED and is not retried" in said.out
    assert "    A person can retry" in said.out
    (finding,) = scene.call("doctor --json").json["findings"]
    assert (finding["subject"], finding["entity_id"], finding["repairable"]) == ("unretried", task.id, False)


def test_the_hint_repairs_what_needs_no_person(scene: Scene) -> None:
    """A deleted timer would keep a task waiting for ever."""
    run = scene.submit()
    with outsider(scene.url) as prompt:
        prompt.ask("UPDATE task SET open_dependencies = 2 WHERE name = 'load'")
    said = scene.call_as_it_is("doctor")
    assert said.code == 1
    assert "[repairable]" in said.out
    _, _, hint = said.out.rstrip().rpartition("to repair what needs no person: ")
    assert main(shlex.split(hint)[1:]) == 0
    assert scene.tasks(run)["load"].open_dependencies == 1


def test_an_audit_seals_what_it_has_verified(scene: Scene) -> None:
    scene.failed_run()
    said = scene.call_as_it_is("doctor --audit")
    assert (said.code, said.out.splitlines()[0]) == (0, "the audit trail is unchanged")
    seal = said.out.split("seal: ")[1].strip()
    _, _, hint = said.err.rstrip().rpartition("has changed: ")
    assert seal in hint
    assert main(shlex.split(hint)[1:]) == 0
    assert scene.call("doctor --audit --json").json == {"findings": [], "seal": seal, "unsealed": False}


def test_an_audit_tells_what_was_tampered_with(scene: Scene) -> None:
    scene.failed_run()
    scene.call("doctor --audit")
    with outsider(scene.url) as prompt, prompt.lawless("trail"):
        prompt.ask("UPDATE trail SET actor = 'mallory' WHERE revision = 0")
    said = scene.call("doctor --audit")
    assert said.code == 1
    assert "are not what was sealed at" in said.out
    assert "Somebody bypassed the law." in said.out
    assert scene.call("doctor --audit --json").json["findings"][0]["subject"] == "tampered"


def test_options_that_mean_nothing_together_are_refused(scene: Scene) -> None:
    scene.submit()
    assert "--seal needs --audit" in scene.call("doctor --seal 1:2").err
    assert "add --fix" in scene.call("doctor --reason why").err
    assert "leave out --fix" in scene.call("doctor --audit --fix").err
    assert "is not a seal" in scene.call("doctor --audit --seal yesterday").err


def test_the_doctor_sees_postgres_too(scene_on_postgres: Scene) -> None:
    scene_on_postgres.complete(scene_on_postgres.submit())
    assert scene_on_postgres.call("doctor").code == 0
    assert scene_on_postgres.call("doctor --audit").code == 0


def test_a_success_with_an_open_step_is_recognised_and_the_hint_repairs_it(scene: Scene) -> None:
    """Document 001, recovery 4, as its reader meets it."""
    run = scene.submit(lifecycle="pipeline")
    scene.complete(run)
    with outsider(scene.url) as prompt, prompt.lawless("run"):
        prompt.ask("UPDATE run SET state = 'S_SUCCESS', phase = 'done', outcome = 'success', completed_at = entered_at")
    said = scene.call_as_it_is("doctor")
    assert said.code == 1
    assert "The run is S_SUCCESS, but its task transform is S_PENDING. [repairable]" in said.out
    assert "audit trail ends, S_RUNNING, and lets it follow its tasks." in said.out
    _, _, hint = said.out.rstrip().rpartition("to repair what needs no person: ")
    assert main(shlex.split(hint)[1:]) == 0
    assert scene.state(run) == "S_RUNNING"


def test_a_stalled_workstream_is_left_to_a_person_who_can_cancel_it(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a", critical=False), lifecycle="orchestrated")
    scene.fail(run)
    said = scene.call("doctor --fix")
    assert (said.code, said.err) == (1, "")
    assert "none of its tasks can move" in said.out
    assert "[repairable]" not in said.out
    assert "now that a is failed. A person can cancel the run." in said.out
    assert scene.call("cancel latest").code == 0
    assert scene.call("doctor").code == 0


def test_a_failed_task_in_a_run_that_is_lost_is_not_to_be_retried(scene: Scene) -> None:
    """What the doctor advises is not refused afterwards: `retry` and `status` say the same."""
    run = scene.submit(NewTask(name="build"), NewTask(name="test"))
    scene.fail(run)
    assert "A person can retry" in scene.call("doctor").out
    scene.call("cancel latest test")
    lost = "nightly cannot succeed without test, and CANCELED is final. Run the flow again."
    assert f"    {lost}\n" in scene.call("doctor").out
    assert scene.call("retry latest").err == f"error: {lost}\n"
