"""`pointsman watch`: moves as they happen, and an exit code by outcome."""

from __future__ import annotations

import json
import re
import signal
from subprocess import Popen

from tests.rooms.cli.scene import Scene

from pointsman.engine.submit import NewTask


def read_until(process: Popen[str], words: str) -> str:
    """The first line with these words."""
    assert process.stdout
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_a_run_that_has_ended_says_how_and_nothing_else(scene: Scene) -> None:
    scene.failed_run()
    said = scene.call("watch")
    assert (said.code, said.out) == (1, "")
    assert re.match(r"nightly is FAILED, \S+ elapsed\. exited with code 2 \(expected 0\)\nMore: ", said.err)
    run = scene.submit(NewTask(name="only"))
    scene.complete(run)
    assert scene.call("watch").code == 0


def test_what_has_happened_before_is_shown_when_asked_for_also_what_followed_the_end(scene: Scene) -> None:
    run = scene.submit()
    scene.call("cancel latest --reason enough")
    lines = scene.call("watch --all").out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  nightly    PENDING → CANCELED  enough", lines[-4])
    assert [line.split()[1] for line in lines[-3:]] == ["fetch", "transform", "load"]
    moves = [json.loads(line) for line in scene.call("watch --all --json").out.splitlines()]
    assert [move["name"] for move in moves if move["from"] is None] == ["nightly", "fetch", "transform", "load"]
    assert {move["run_id"] for move in moves} == {run.id}


def test_a_run_that_was_tried_again_is_watched_to_its_last_end(scene: Scene) -> None:
    run = scene.failed_run()
    scene.call("retry latest")
    scene.complete(run)
    scene.complete(run)
    said = scene.call("watch --all")
    assert said.code == 0
    assert "RUNNING → FAILED" in said.out
    assert said.err.startswith("nightly is SUCCEEDED")


def test_moves_are_shown_while_they_happen_until_the_run_has_ended(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    process = scene.start("watch latest --json")
    try:
        assert process.stderr
        hint = f"pointsman resume {run.id[-8:]}{scene.options}"
        assert process.stderr.readline() == f"No worker is running it. To continue: {hint}\n"
        (claim,) = scene.claim()
        move = json.loads(read_until(process, '"claim"'))
        assert (move["name"], move["kind"], move["id"]) == ("only", "task", claim.task_id)
        scene.do(lambda engine: engine.complete_task(claim.task_id, claim.epoch))
        read_until(process, '"SUCCEEDED"')
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_run_that_is_paused_says_so_and_how_to_go_on(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    scene.call("pause latest")
    process = scene.start("watch latest")
    try:
        assert process.stderr
        hint = f"pointsman resume {run.id[-8:]}{scene.options}"
        assert process.stderr.readline() == f"The run is PAUSED. To continue: {hint}\n"
    finally:
        process.kill()
        process.communicate()


def test_an_interrupt_ends_it_without_a_traceback(scene: Scene) -> None:
    scene.submit(NewTask(name="only"))
    process = scene.start("watch latest")
    try:
        assert process.stderr
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()
