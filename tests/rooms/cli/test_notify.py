"""`pointsman notify`, and the notifications that commands deliver where no worker is there to do it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene
from tests.rooms.notify.receiver import Receiver, open_receiver

from pointsman.store.rows import Run

SETTINGS = """
[[notify]]
name = "ops"
on = ["person_needed", "run_ended", "breaker_opened"]
webhook = "{url}"
secret_env = "OPS_SECRET"
allow_private = true
tries = 1

[tools.flaky]
command = ["false"]
"""
SECRET = b"a secret of 24 bytes, ok"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as opened:
        yield opened


@pytest.fixture
def project(scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return declare(scene, receiver, monkeypatch)


def declare(scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("OPS_SECRET", "whsec_YSBzZWNyZXQgb2YgMjQgYnl0ZXMsIG9r")
    (scene.folder / "pointsman.toml").write_text(SETTINGS.format(url=receiver.url("/hidden-path")))
    scene.do(lambda engine: engine.outbox.open(["ops"]))
    return scene


def test_a_decision_is_told_by_the_command_where_no_worker_is(project: Scene, receiver: Receiver) -> None:
    run = project.submit()
    said = project.call("cancel", run.id)
    assert (said.code, [got.message["data"]["run"]["id"] for got in receiver.received]) == (0, [run.id])
    assert receiver.received[0].is_signed_with(SECRET)
    assert "notification" not in said.err
    assert project.call("notify").out.splitlines()[1].split()[2:5] == ["ops", "run_ended", "delivered"]


def test_the_same_on_postgresql(scene_on_postgres: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    project = declare(scene_on_postgres, receiver, monkeypatch)
    run = project.submit()
    project.call("cancel", run.id, "--json")
    assert [got.message["data"]["run"]["id"] for got in receiver.received] == [run.id]
    assert [entry["delivery"] for entry in project.call("notify list --json").json] == ["delivered"]


def test_where_a_worker_is_the_command_leaves_it_to_the_worker(project: Scene, receiver: Receiver) -> None:
    run = project.submit()
    project.claim()
    project.call("pause", run.id)
    project.call("cancel", run.id)
    assert receiver.received == []


def test_a_circuit_that_a_person_opens_is_told(project: Scene, receiver: Receiver) -> None:
    (project.folder / "use.yaml").write_text("{name: use, tasks: {a: {tool: flaky, command: [], retries: 0}}}")
    project.call("run", str(project.folder / "use.yaml"))
    before = len(receiver.received)
    assert project.call("breakers trip flaky --reason maintenance").code == 0
    (opened,) = receiver.received[before:]
    assert (opened.message["type"], opened.message["data"]["reason"]) == ("breaker_opened", "maintenance")


def test_the_commands_of_a_flow_are_left_to_a_worker(project: Scene) -> None:
    run = project.submit(payload={"notify": [{"on": ["run_ended"], "command": ["touch", "told"]}]})
    project.call("cancel", run.id)
    assert [entry["target"] for entry in project.call("notify list --json").json if entry["delivery"] == "due"] == ["0"]
    told = project.folder / "told"
    assert not told.exists()
    said = project.call("notify retry --all")
    assert (said.code, told.exists()) == (0, True)


def fail_once(project: Scene, receiver: Receiver) -> Run:
    receiver.answer = lambda _: 500
    run = project.submit()
    project.call("cancel", run.id)
    return run


def test_what_could_not_be_delivered_is_listed_with_its_error_and_can_be_tried_again(
    project: Scene, receiver: Receiver
) -> None:
    fail_once(project, receiver)
    said = project.call("notify list --dead")
    assert "answered 500 Internal Server Error." in said.out
    assert said.err == "To try the dead ones again: pointsman notify retry --all\n"
    (entry,) = project.call("notify list --dead --json").json
    assert (entry["delivery"], entry["tries"], entry["declared_in"]) == ("dead", 1, "settings")
    said = project.call("notify retry", entry["id"][-8:])
    assert (said.code, said.err.splitlines()[-1]) == (1, "0 notifications delivered, 1 not.")
    receiver.answer = lambda _: 200
    said = project.call("notify retry --all")
    assert (said.code, said.err.splitlines()[-1]) == (0, "1 notification delivered, 0 not.")
    assert project.call("notify list --dead").err == "There are no dead notifications.\n"
    assert project.call("notify retry --all").err == "Every notification is delivered.\n"
    assert "was delivered already" in project.call("notify retry", entry["id"]).err


def test_a_notification_that_is_not_there_is_refused(project: Scene) -> None:
    project.submit()
    assert project.call("notify").err == "There are no notifications.\n"
    said = project.call("notify retry 12345678")
    assert (said.code, "There is no notification '12345678'" in said.err) == (2, True)
    assert "Name notifications by their ids, or retry all" in project.call("notify retry").err


def test_neither_the_secret_nor_the_path_of_a_webhook_is_ever_shown(project: Scene, receiver: Receiver) -> None:
    fail_once(project, receiver)
    shown = [
        project.call(*words) for words in (("notify",), ("notify list --json",), ("config show",), ("config show --json",))
    ]
    journal = Path(project.folder / ".state" / "transitions.jsonl")
    text = " ".join([each.out + each.err for each in shown] + ([journal.read_text()] if journal.exists() else []))
    assert "hidden-path" not in text
    assert "whsec_" not in text
    assert json.loads(shown[1].out)[0]["error"] == f"http://127.0.0.1:{receiver.port}/… answered 500 Internal Server Error."
