"""`pointsman history`: every move of anything, and the journal written anew."""

from __future__ import annotations

from tests.rooms.cli.scene import EXIT_CODE_2, Scene

from pointsman.cli import main
from pointsman.engine.submit import NewTask


def test_every_move_of_a_run_is_shown_with_who_and_why(scene: Scene) -> None:
    run = scene.failed_run()
    scene.call("retry latest --reason again")
    out = scene.call("history latest").out
    head, _, _, *rows = out.splitlines()
    assert head == f"run nightly  {run.id}"
    assert len(rows) == 4
    assert rows[-1].split()[1:3] == ["RUNNING", "retry"]
    assert rows[-1].endswith("again")
    moves = scene.call("history", run.id[-8:], "--json").json["moves"]
    assert [(move["from"], move["to"], move["trigger"]) for move in moves] == [
        (None, "PENDING", "create"),
        ("PENDING", "RUNNING", "start"),
        ("RUNNING", "FAILED", "fail"),
        ("FAILED", "RUNNING", "retry"),
    ]
    assert moves[2]["metadata"] == {"task_id": scene.tasks(run)["transform"].id}


def test_a_task_is_shown_with_its_attempts(scene: Scene) -> None:
    scene.failed_run()
    task = scene.call("status latest --json").json["tasks"][1]
    for name in (("latest", "transform"), (task["id"],), (task["id"][-8:],)):
        shown = scene.call("history", *name, "--json").json
        assert (shown["kind"], shown["name"], shown["id"]) == ("task", "transform", task["id"])
        (attempt,) = shown["attempts"]
        assert (attempt["attempt"], attempt["ended_by"], attempt["exit_code"], attempt["error"]) == (1, "fail", 2, EXIT_CODE_2)
    out = scene.call("history latest transform").out
    assert "exited with code 2" in out
    assert "log of attempt 1: " in out


def test_an_attempt_has_its_record_and_its_log_path_before_a_worker_takes_it(scene: Scene) -> None:
    run = scene.failed_run()
    scene.call("retry latest")
    first, waiting = scene.call("history latest transform --json").json["attempts"]
    assert (first["attempt"], waiting["attempt"]) == (1, 2)
    assert (waiting["worker_id"], waiting["started_at"], waiting["ended_at"], waiting["took_seconds"]) == (
        None,
        None,
        None,
        None,
    )
    assert waiting["log_path"].endswith(f".pointsman/logs/{run.id}/transform/2.log")
    out = scene.call("history latest transform").out
    assert "not started" in out
    assert f".pointsman/logs/{run.id}/transform/2.log" in out
    assert scene.call("logs latest transform --attempt 2").err == (
        "Attempt 2 of 'transform' has not started, so there is no output.\n"
    )
    scene.complete(run, b"done\n")
    _, second = scene.call("history latest transform --json").json["attempts"]
    assert second["ended_at"]
    assert waiting["log_path"].endswith(second["log_path"]), "the log is where the record said that it would be"


def test_workers_and_tools_have_a_history_too(scene: Scene) -> None:
    scene.failed_run()
    scene.do(lambda engine: engine.declare_tool("curl"))
    worker = scene.do(lambda engine: engine.list_workers())[0]
    assert scene.call("history", worker.id[-8:], "--json").json["kind"] == "worker"
    tool = scene.call("history curl --json").json
    assert (tool["kind"], tool["name"], len(tool["moves"])) == ("breaker", "curl", 1)
    assert "tool curl" in scene.call("history curl").out


def test_what_nobody_knows_is_refused(scene: Scene) -> None:
    scene.failed_run()
    assert "There is no run 'nothing'." in scene.call("history nothing").err
    assert "has no task 'trnsform'. Did you mean transform?" in scene.call("history latest trnsform").err
    assert "Name a run, a task, a worker or a tool." in scene.call("history").err
    assert scene.call("history latest --rebuild").code == 2


def test_the_journal_is_written_anew(scene: Scene) -> None:
    scene.submit()
    said = scene.call("history --rebuild")
    path = scene.folder / ".state" / "transitions.jsonl"
    lines = len(path.read_text().splitlines())
    assert (said.code, said.err) == (0, f"wrote {lines} lines to {path}\n")
    assert scene.call("history --rebuild --json").json == {"file": str(path), "lines": lines}
    assert main(["validate", "-l", "standard", str(path)]) == 0


def test_a_wish_that_a_worker_fulfils_later_is_kept_with_who_and_why(scene: Scene) -> None:
    scene.submit(NewTask(name="a"), lifecycle="agent")
    scene.claim()
    for command, entity, subject in (
        ("cancel latest a", ("latest", "a"), "cancel"),
        ("workers terminate box", ("box",), "terminate"),
    ):
        for _ in range(2):
            assert scene.call(f"{command} --as ada --reason stuck").code == 0
        (notice,) = scene.call("history", *entity, "--json").json["notices"]
        assert notice["subject"] == subject
        assert notice["message"].endswith(" By ada: stuck")
        assert notice["message"] in scene.call("history", *entity).out
