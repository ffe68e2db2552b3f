"""`pointsman inbox`, `approve`, `reject`, `accept`, `answer`, `start`, `reset`: what people decide, and what is kept of it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from unittest import mock

import pytest
from tests.rooms.cli.scene import Scene
from tests.rooms.cli.terminal import OnTerminal

from pointsman.cli import main
from pointsman.cli.project import person
from pointsman.engine.claims import Claim
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask
from pointsman.store.rows import Run

GATED = (NewTask(name="gate", gate=True), NewTask(name="after", depends_on=("gate",)))


def ask(scene: Scene, question: str) -> Claim:
    (claim,) = scene.claim()
    scene.do(
        lambda engine: engine.report_attempt(
            claim.task_id, claim.epoch, "ask", AttemptReport(question=question, session_id="s-1")
        )
    )
    return claim


def last_move(scene: Scene, task: str) -> dict[str, object]:
    move: dict[str, object] = scene.call(f"history latest {task} --json").json["moves"][-1]
    return move


@pytest.mark.parametrize("lifecycle", ["standard", "approval"])
def test_an_approval_is_kept_with_who_and_why(scene: Scene, lifecycle: str) -> None:
    run = scene.submit(*GATED, lifecycle=lifecycle)
    assert f"pointsman approve {run.id[-8:]} gate" in scene.call("status latest").out
    said = scene.call("approve latest gate --as ada --reason", "all green")
    assert (said.code, said.out.splitlines()[0]) == (0, "gate: WAITING_APPROVAL → SUCCEEDED")
    assert (last_move(scene, "gate")["actor"], last_move(scene, "gate")["reason"]) == ("ada", "all green")
    assert scene.call("approve latest gate").code == 2


def test_all_gates_are_approved_at_once_and_a_repetition_changes_nothing(scene_on_postgres: Scene) -> None:
    scene = scene_on_postgres
    run = scene.submit(NewTask(name="one", gate=True), NewTask(name="two", gate=True), lifecycle="approval")
    said = scene.call("approve latest")
    assert said.out.splitlines() == [
        "one: WAITING_APPROVAL → SUCCEEDED",
        "two: WAITING_APPROVAL → SUCCEEDED",
        f"nightly ({run.id[-8:]}): WAITING_APPROVAL → SUCCEEDED",
    ]
    again = scene.call("approve latest")
    assert (again.code, again.out, again.err) == (0, "", f"No task of nightly ({run.id[-8:]}) waits for an approval.\n")


def test_hints_are_for_the_person_who_reads_them(scene: Scene) -> None:
    scene.submit(NewTask(name="gate", gate=True, approvers=("ada", "ben"), quorum=2))
    status = scene.call("status latest").out
    assert "needs approval by ada or ben (0 of 2)" in status
    assert "pointsman approve" not in status
    assert scene.call("approve latest gate").err == f"error: {person()} may not decide about gate. It is up to ada or ben.\n"
    assert scene.call("approve latest gate --as ada").out == "gate: still WAITING_APPROVAL, 1 of 2 approvals: ada\n"
    assert "needs approval by ada or ben (1 of 2: ada)" in scene.call("status latest").out
    assert "gate: WAITING_APPROVAL → SUCCEEDED" in scene.call("approve latest gate --as ben").out


@pytest.mark.parametrize("lifecycle", ["standard", "supervised", "approval"])
def test_a_gate_may_be_up_to_others_than_the_submitter(scene: Scene, lifecycle: str) -> None:
    gate = "approval: {prompt: Ship?, self_approval: false}"
    (scene.folder / "flow.yaml").write_text(
        f"{{name: f, lifecycle: {lifecycle}, tasks: {{gate: {{{gate}}}, b: {{run: echo, needs: gate}}}}}}"
    )
    assert scene.call("run --detach", str(scene.folder / "flow.yaml")).code == 0
    if lifecycle == "supervised":
        scene.do(lambda engine: engine.register_worker("box"))
    shown = scene.call("status latest").out
    assert f"needs approval, but not by {person()}" in shown
    assert "pointsman approve" not in shown
    for command in ("approve latest gate", "approve latest"):
        refused = scene.call(command)
        assert (refused.code, refused.err) == (
            2,
            f"error: {person()} submitted f and may not approve gate. It is up to somebody else.\n",
        )
    assert "gate: WAITING_APPROVAL → SUCCEEDED" in scene.call("approve latest gate --as ada").out


def test_a_gate_that_nobody_may_pass_is_refused(scene: Scene) -> None:
    approval = f"approval: {{by: [{person()}], self_approval: false}}"
    (scene.folder / "flow.yaml").write_text(f"{{name: f, tasks: {{gate: {{{approval}}}}}}}")
    refused = scene.call("run", str(scene.folder / "flow.yaml"))
    assert (refused.code, "may not approve gate: too few others may" in refused.err) == (2, True)


def test_a_request_id_makes_a_decision_safe_to_repeat(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a", review=True))
    scene.complete(run)
    first = scene.call("reject latest a --request-id r-1 --comment", "shorter")
    assert first.out.splitlines()[0] == "a: READY → QUEUED"
    again = scene.call("reject latest a --request-id r-1 --comment", "shorter")
    assert (again.code, again.out.splitlines()[0]) == (0, "a: still QUEUED")
    other = scene.call("reject latest a --request-id r-1")
    assert (other.code, "was used for another request" in other.err) == (2, True)
    (claim,) = scene.claim()
    assert claim.comment == "shorter"


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
def test_a_result_is_accepted(scene: Scene, lifecycle: str) -> None:
    run = scene.submit(NewTask(name="a", review=True), lifecycle=lifecycle)
    scene.complete(run, b"a patch\n")
    assert f"pointsman accept {run.id[-8:]} a" in scene.call("status latest").out
    said = scene.call("accept latest a")
    assert (said.code, said.out.splitlines()[-1]) == (0, f"nightly ({run.id[-8:]}): WAITING → SUCCEEDED")


def test_the_history_has_what_people_said(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a", review=True))
    ask(scene, "Where?")
    scene.call("answer latest a east --as ada")
    scene.complete(run, b"a patch\n")
    scene.call("reject latest a --as ben --reason bugs --comment", "Fix the typo.\nAnd the title.")
    shown = scene.call("history latest a").out
    assert re.search(r"QUEUED +answer +ada +Where\? east$", shown, re.MULTILINE)
    assert re.search(r"PENDING +reject +ben +bugs; Fix the typo\.$", shown, re.MULTILINE)
    (rejected,) = [move for move in scene.call("history latest a --json").json["moves"] if move["trigger"] == "reject"]
    assert rejected["metadata"]["comment"] == "Fix the typo.\nAnd the title."


def test_an_answer_is_given_on_the_line_on_stdin_or_by_default(scene: Scene) -> None:
    run = scene.submit(*(NewTask(name=name) for name in "abc"))
    for _ in range(3):
        ask(scene, '{"text": "Where?", "choices": ["east", "west"], "default": "west"}')
    refused = scene.call("answer latest a north")
    assert (refused.code, refused.err) == (2, "error: answer: 'north' is not one of the choices: east, west.\n")
    assert scene.call("answer latest a east").out.splitlines()[0] == "a: BLOCKED → QUEUED"
    for task, given in (("b", "east\n"), ("c", "")):
        with mock.patch.object(sys, "stdin", io.StringIO(given)):
            assert scene.call(f"answer latest {task}").code == 0
    assert {name: task.answer for name, task in scene.tasks(run).items()} == {"a": "east", "b": "east", "c": "west"}


def test_what_waits_to_be_started_is_started(scene: Scene) -> None:
    run = scene.submit(autostart=False)
    assert [(item["task"], item["waiting"]["kind"]) for item in scene.call("inbox --json").json] == [("fetch", "start")]
    assert f"pointsman start {run.id[-8:]} fetch" in scene.call("status latest").out
    refused = scene.call("start latest transform")
    assert "It needs: the tasks that it depends on to have succeeded." in refused.err
    assert scene.call("start latest").out.splitlines()[0] == "fetch: PENDING → QUEUED"
    assert scene.call("start latest").err.startswith(f"No task of nightly ({run.id[-8:]}) waits to be started.\n")


def test_a_workstream_executes_when_its_first_task_has_started(scene: Scene) -> None:
    run = scene.submit(lifecycle="orchestrated", autostart=False)
    assert scene.state(run) == "ready"
    assert scene.call("start latest").out == "fetch: pending → queued\n"
    assert scene.state(run) == "ready"
    scene.claim()
    assert scene.state(run) == "executing"


def test_a_failed_step_is_reset(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"), lifecycle="pipeline", max_retries=1)
    scene.fail(run)
    assert scene.call("reset latest a --reason", "the disk was full").out.splitlines()[0] == "a: S_FAILED → S_PENDING"
    assert last_move(scene, "a")["reason"] == "the disk was full"


def make_inbox(scene: Scene) -> Run:
    run = scene.submit(NewTask(name="gate", gate=True), NewTask(name="draft", review=True), NewTask(name="plan"))
    scene.complete(run, output={"outputs": {"words": 3}, "tail": "line\n" * 12})
    ask(scene, '{"text": "Where?", "choices": ["east", "west"]}')
    return run


def test_the_inbox_of_another_person_has_the_commands_of_that_person(scene: Scene) -> None:
    run = scene.submit(NewTask(name="gate", gate=True, approvers=("ada", "ben"), quorum=2))
    part = run.id[-8:]
    unable = scene.call("inbox --list").out
    assert "pointsman approve" not in unable
    assert "up to ada or ben: pointsman inbox --as ada" in unable
    assert f"pointsman approve {part} gate --as ada" in scene.call("inbox --list --as ada").out
    for _ in range(2):
        said = scene.call("approve latest --as ada")
        assert (said.code, said.out) == (0, "gate: still WAITING_APPROVAL, 1 of 2 approvals: ada\n")
    assert "does not allow `accept`" in scene.call("accept latest gate").err
    assert "gate: WAITING_APPROVAL → SUCCEEDED" in scene.call("approve latest --as ben").out


def test_the_inbox_has_everything_that_waits_for_a_person_oldest_first(scene: Scene) -> None:
    assert scene.call("inbox").err == "There are no runs here yet. Start one: pointsman run flow.yaml\n"
    part = make_inbox(scene).id[-8:]
    said = scene.call("inbox")
    assert said.code == 0
    heads = [line.split("  ")[0] for line in said.out.splitlines() if line and not line.startswith(" ")]
    assert heads == ["nightly: gate", "nightly: draft", "nightly: plan"]
    for line in (
        '  outputs: {"words":3}',
        "  … 2 lines before",
        "  Where?",
        f"  pointsman accept {part} draft  # completes draft; the run stays WAITING",
    ):
        assert line in said.out.splitlines(), said.out
    found = scene.call("inbox --json").json
    commands = [each["command"] for item in found for each in item["commands"]]
    assert commands == [
        f"pointsman {words.replace('RUN', part)}"
        for words in ("approve RUN gate", "reject RUN gate", "accept RUN draft", "reject RUN draft")
    ] + [f"pointsman answer {part} plan east", f"pointsman answer {part} plan west"]
    for command in (commands[0], commands[3], commands[5]):
        assert scene.call(shlex.join(shlex.split(command)[1:])).code == 0
    assert scene.call("inbox").err == "Nothing waits for you.\n"


@pytest.mark.parametrize("form", ["", " --json"])
def test_what_begins_to_wait_is_shown_as_it_comes_also_from_the_first_run_of_a_project(scene: Scene, form: str) -> None:
    process = scene.start(f"inbox --watch{form}")
    assert process.stderr
    assert process.stdout
    with process:
        advice = f"Start one: pointsman run flow.yaml -C {scene.folder}"
        assert process.stderr.readline() == f"There are no runs here yet. {advice}\n"
        for name in ("one", "two"):
            scene.submit(NewTask(name=name, gate=True))
            head = f'"task":"{name}"' if form else f"nightly: {name}  needs approval"
            assert any(head in line for line in process.stdout), process.stderr.read()
        process.send_signal(signal.SIGINT)
        shown = process.stdout.read()
    assert (process.returncode, "nightly" in shown) == (130, False), "each is shown once"


def test_a_terminal_asks_for_a_decision_about_each(scene: Scene) -> None:
    run = make_inbox(scene)
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "pointsman", "inbox", "--as", "ada", "-C", str(scene.folder)]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        os.write(controller, b"?\na\nfine\nr\nshorter\nwest\na\nwest\n")
        shown = b""
        try:
            while chunk := os.read(controller, 65536):
                shown += chunk
        except OSError:
            pass  # Linux says EIO once the other side is closed
        os.close(controller)
    assert process.returncode == 0, shown.decode()
    tasks = scene.tasks(run)
    assert (tasks["gate"].actor, tasks["gate"].reason, tasks["gate"].outcome) == ("ada", "fine", "success")
    assert (tasks["draft"].comment, tasks["plan"].answer) == ("shorter", "west")
    assert "3 of 3" in shown.decode()
    assert shown.decode().count("leaves it for later and shows the next one") == 2


def test_the_first_interrupt_at_a_prompt_ends_the_command(scene: Scene) -> None:
    run = scene.submit(NewTask(name="gate", gate=True))
    inbox = OnTerminal("inbox", "-C", str(scene.folder), cwd=scene.folder, lines=30, columns=120)
    inbox.until(lambda shown: "[?] help" in shown)
    inbox.until_it_reads()
    inbox.type("\x03")
    assert inbox.wait() == 130
    inbox.close()
    assert scene.state(run, "gate") == "WAITING_APPROVAL"


def test_a_question_without_an_answer_says_how_to_give_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.submit(NewTask(name="plan"))
    ask(scene, '{"text": "Where?"}')
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = scene.call("answer latest plan")
    assert (said.code, said.err) == (2, "error: There is no answer. Give it: pointsman answer latest plan ANSWER\n")


def test_a_subtask_is_added_inside_a_task_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POINTSMAN_SUBTASKS", raising=False)
    assert main(["task", "add", "part", "--run", "true"]) == 2
    file = scene.folder / "subtasks.jsonl"
    monkeypatch.setenv("POINTSMAN_SUBTASKS", str(file))
    assert main(["task", "add", "part", "--set", "retries=2", "--", "make", "part"]) == 0
    assert main(["task", "add", "sum", "--call", "reports:sum_up", "--needs", "part"]) == 0
    assert main(["task", "add", "nothing"]) == 2
    assert main(["task", "add", "both", "--run", "x", "--call", "a:b"]) == 2
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"name": "part", "command": ["make", "part"], "retries": 2},
        {"name": "sum", "call": "reports:sum_up", "needs": ["part"]},
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("retriess=1", "`retriess` is not a key of task part. Did you mean retries?"),
        ("retries=many", "`retries` of task part is 'many', but must be a whole number. Write a whole number here."),
        ("backoff={factr: 2}", "`factr` is not a key of `backoff` of task part. Did you mean factor?"),
        ("checks=[{json_schema: {file: a}}]", "`json_schema` of a check of task part has no `schema`. Add `schema:` to it."),
        ("call=a:b", "Task part has `call` beside `run`. Keep one of them, and move the other to a task of its own."),
    ],
)
def test_a_wrong_key_of_a_subtask_is_explained_as_in_a_flow(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], given: str, message: str
) -> None:
    monkeypatch.setenv("POINTSMAN_SUBTASKS", str(scene.folder / "subtasks.jsonl"))
    assert main(["task", "add", "part", "--run", "true", "--set", given]) == 2
    assert message in capfd.readouterr().err


def test_a_subtask_that_does_not_fit_to_those_before_it_is_refused_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = scene.folder / "subtasks.jsonl"
    monkeypatch.setenv("POINTSMAN_SUBTASKS", str(file))
    file.write_text("no JSON\n[]\n")
    assert main(["task", "add", "lint", "--run", "true"]) == 0
    before = file.read_text()
    assert main(["task", "add", "lint", "--run", "false"]) == 2
    assert "lint: There is another subtask 'lint'." in capfd.readouterr().err
    assert main(["task", "add", "test", "--run", "true", "--needs", "lnit"]) == 2
    assert "test: It needs 'lnit', but no subtask before it has that name." in capfd.readouterr().err
    assert main(["task", "add", "test", "--run", "true", "--set", "name=other"]) == 2
    assert file.read_text() == before
    assert main(["task", "add", "1", "--run", "true"]) == 0
    assert main(["task", "add", "2", "--run", "true", "--set", "needs=1"]) == 0


def test_an_approval_that_expired_is_not_shown_as_the_decision_of_a_person(scene: Scene) -> None:
    gate = "{approval: {prompt: Go?, expires: 0.2s, on_expire: approve}}"
    (scene.folder / "flow.yaml").write_text(f"{{name: f, tasks: {{gate: {gate}}}}}")
    assert scene.call("run", str(scene.folder / "flow.yaml")).code == 0
    reason = "nobody decided in time, so on_expire: approve applies"
    assert reason in scene.call("status latest").out
    last = scene.call("history latest gate --json").json["moves"][-1]
    assert (last["to"], last["actor"], last["reason"]) == ("SUCCEEDED", "engine", reason)


def test_a_mistake_in_a_command_line_is_said_like_every_other_error(scene: Scene) -> None:
    for command in ("status --nonsense", "history"):
        said = scene.call(command)
        assert said.code == 2
        assert "\nerror: " in said.err
        assert "Error:" not in said.err
