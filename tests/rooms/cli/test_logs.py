"""`pointsman logs`: what attempts have written, whole or followed, there or gone."""

from __future__ import annotations

import json
import os

import pytest
from tests.rooms.cli.scene import Scene
from tests.rooms.cli.test_watch import read_until

from pointsman.cli.logs import find_tail
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewTask


def test_lines_of_several_tasks_begin_with_the_name_of_theirs(scene: Scene) -> None:
    scene.failed_run()
    assert scene.call("logs latest").out == (
        "fetch     | fetched 1\nfetch     | fetched 2\nfetch     | fetched 3\ntransform | boom\n"
    )


def test_the_log_of_one_task_is_as_it_was_written(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    scene.complete(run, b"\xff\x00 binary\r\nno end of line")
    with (scene.folder / "shown").open("wb") as file:
        scene.start("logs latest only", output=file.fileno()).wait(20)
    assert (scene.folder / "shown").read_bytes() == b"\xff\x00 binary\r\nno end of line"
    lines = [json.loads(line) for line in scene.call("logs latest only --json").out.splitlines()]
    assert lines == [
        {"task": "only", "attempt": 1, "text": "\ufffd\0 binary\r"},
        {"task": "only", "attempt": 1, "text": "no end of line"},
    ]


def test_the_part_that_was_rotated_away_follows_and_the_tail_reaches_over_both(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    claim = scene.complete(run, b"1\n2\n3\n")
    path = scene.folder / ".pointsman" / "logs" / run.id / "only" / f"{claim.epoch}.log"
    path.with_name(f"{path.name}.1").write_bytes(b"4\n5\n")
    assert scene.call("logs latest only").out == "1\n2\n3\n4\n5\n"
    assert scene.call("logs latest only --tail 1").out == "5\n"
    assert scene.call("logs latest only --tail 4").out == "2\n3\n4\n5\n"
    assert scene.call("logs latest only --tail 99").out == "1\n2\n3\n4\n5\n"
    assert scene.call("logs latest only --tail 0").out == ""


@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"a\n", b"a\nb", b"a\nb\n", b"x" * 70_000 + b"\n\nb\n" + b"y" * 70_000])
def test_the_tail_is_found_from_the_end(scene: Scene, content: bytes) -> None:
    path = scene.folder / "log"
    path.write_bytes(content)
    lines = content.splitlines(keepends=True)
    for number in range(5):
        start, found = find_tail(path, number)
        wanted = lines[len(lines) - number :] if number < len(lines) else lines
        assert (content[start:], found) == (b"".join(wanted), len(wanted)), number


def test_an_earlier_attempt_can_be_asked_for(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    scene.fail(run, b"first\n")
    scene.call("retry latest")
    scene.complete(run, b"second\n")
    assert scene.call("logs latest only").out == "second\n"
    assert scene.call("logs latest only --attempt 1").out == "first\n"
    said = scene.call("logs latest only --attempt 3")
    assert (said.code, said.err) == (2, "error: 'only' has no attempt 3. Its attempts: 1, 2.\n")
    assert scene.call("logs latest --attempt 1").code == 2


def test_a_file_that_is_gone_is_told_with_what_the_database_has_kept(scene: Scene) -> None:
    run = scene.submit(NewTask(name="one", priority=1), NewTask(name="two"), NewTask(name="three", depends_on=("two",)))
    claim = scene.complete(run, b"x", output={"outputs": None, "tail": "all is\nwell\n"})
    (scene.folder / ".pointsman" / "logs" / run.id / claim.name / "1.log").unlink()
    scene.fail(run)
    gone = scene.call("logs latest one")
    assert (gone.code, gone.out) == (1, "all is\nwell\n")
    assert "The log of attempt 1 of 'one' is not on this machine: " in gone.err
    none = scene.call("logs latest two")
    assert (none.code, none.out, none.err) == (0, "", "Attempt 1 of 'two' wrote nothing.\n")
    assert scene.call("logs latest three").err == "'three' has not started, so there is no output.\n"
    assert scene.call("logs latest").code == 0


def test_a_task_that_its_condition_excludes_has_no_log(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text("{name: f, tasks: {a: {when: 1 == 2, run: echo a}}}")
    assert scene.call(f"run {scene.folder}/flow.yaml").code == 0
    said = scene.call("logs latest a")
    assert (said.code, said.err) == (0, "'a' was skipped, so there is no output: its condition is false: 1 == 2.\n")


def test_the_log_of_an_attempt_that_goes_on_can_be_read_and_followed(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    (claim,) = scene.claim()
    process = scene.start("logs latest only -f")
    try:
        path = scene.folder / scene.write_log(run, claim, b"so far\n")
        assert scene.call("logs latest only").out == "so far\n"
        read_until(process, "so far")
        with path.open("ab") as file:
            file.write(b"and on\n")
        read_until(process, "and on")
        scene.do(lambda engine: engine.complete_task(claim.task_id, claim.epoch))
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_what_a_killed_worker_has_left_can_be_read(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    (claim,) = scene.claim()
    scene.write_log(run, claim, b"last words\n")
    (worker,) = scene.do(lambda engine: engine.list_workers())
    scene.do(lambda engine: engine.signal_worker(worker.id, "terminate", ended=True))
    assert scene.call("logs latest only --attempt 1").out == "last words\n"
    assert f"log of attempt 1: {scene.folder}/.pointsman/logs/{run.id}/only/1.log" in scene.call("history latest only").out


def test_a_run_in_which_nothing_has_begun_says_so(scene: Scene) -> None:
    scene.submit()
    assert scene.call("logs latest").err == "No task of 'nightly' has started, so there is no output.\n"


def test_logs_are_followed_over_attempts_and_tasks_until_the_run_has_ended(scene: Scene) -> None:
    run = scene.submit(NewTask(name="one"), NewTask(name="two", depends_on=("one",)))
    process = scene.start("logs latest --follow")
    try:
        (claim,) = scene.claim()
        path = scene.write_log(run, claim, b"begun\nhalf ")
        scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(log_path=path)))
        assert read_until(process, "begun") == "one | begun\n"
        with (scene.folder / path).open("ab") as file:
            file.write(b"a line\n")
        assert read_until(process, "half") == "one | half a line\n"
        scene.do(lambda engine: engine.complete_task(claim.task_id, claim.epoch, AttemptReport(log_path=path)))
        scene.complete(run, b"the end, unended")
        assert read_until(process, "the end") == "two | the end, unended\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_run_whose_tasks_wrote_nothing_says_so(scene: Scene) -> None:
    run = scene.submit(NewTask(name="one"), NewTask(name="two"))
    scene.complete(run)
    scene.complete(run, b"")
    for command in ("logs latest", "logs latest -f"):
        said = scene.call(command)
        assert (said.code, said.out, said.err) == (0, "", "No task of 'nightly' has written anything.\n")
    assert scene.call("logs latest two").err == "'two' has written nothing.\n", "its log is an empty file"


def test_followed_logs_of_a_fan_out_are_shown_in_the_order_in_which_they_were_written(scene: Scene) -> None:
    run = scene.submit(*(NewTask(name=f"load[{number}]", priority=-number) for number in range(3)))
    claims = scene.claim(limit=3)
    for number, place in enumerate((2, 0, 1)):
        path = scene.folder / scene.write_log(run, claims[place], f"line {number}\n".encode())
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    reports = [ReportAttempt(claim.task_id, claim.epoch, "complete") for claim in claims]
    scene.do(lambda engine: engine.report_attempts(reports))
    assert scene.call("logs latest -f").out == "load[2] | line 0\nload[0] | line 1\nload[1] | line 2\n"
