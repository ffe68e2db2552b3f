"""`pointsman status`, and how runs and tasks are named on the command line."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from tests.rooms.cli.scene import EXIT_CODE_2, Scene

from pointsman.cli.output import show_time
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.store.rows import Run
from pointsman.worker.records import Record

COLOR = re.compile(r"\x1b\[")


def test_where_nothing_was_run_it_says_how_to_begin_and_leaves_nothing_behind(scene: Scene) -> None:
    said = scene.call("status")
    assert (said.code, said.out, said.err) == (0, "", "There are no runs here yet. Start one: pointsman run flow.yaml\n")
    assert scene.call("status --json").json == []
    assert scene.call("status latest").code == 2
    assert list(scene.folder.iterdir()) == []


def test_a_database_that_was_named_and_is_not_there_is_named_again(scene: Scene) -> None:
    said = scene.call("status", "--store", f"sqlite:///{scene.folder}/other.db")
    assert said.err.startswith(f"There are no runs in {scene.folder}/other.db yet.")


def test_a_database_without_runs_is_as_good_as_none(scene: Scene) -> None:
    async def nothing(_: object) -> None: ...

    scene.do(nothing)
    assert scene.call("status").err.startswith("There are no runs here yet.")
    assert scene.call("cancel latest").code == 2


def test_the_latest_runs_are_listed_newest_first_with_how_far_they_are(scene: Scene) -> None:
    failed, new = scene.failed_run(), scene.submit(name="weekly")
    head, *rows = scene.call("status").out.splitlines()
    assert head.split() == ["state", "name", "done", "created", "elapsed", "run"]
    assert [(row.split()[1], row.split()[2], row.split()[-1]) for row in rows] == [
        ("weekly", "0/3", new.id[-8:]),
        ("nightly", "1/3", failed.id[-8:]),
    ]
    listed = scene.call("status --json").json
    assert [run["id"] for run in listed] == [new.id, failed.id]
    assert listed[1]["outcome"] == "failure"
    assert {key: listed[1]["tasks"][key] for key in ("total", "done", "success", "failure")} == {
        "total": 3,
        "done": 2,
        "success": 1,
        "failure": 1,
    }


def test_older_runs_are_told_of(scene: Scene) -> None:
    for _ in range(3):
        scene.submit()
    said = scene.call("status -n 2")
    assert len(said.out.splitlines()) == 3
    assert said.err == "There are older runs: pointsman status -n 4\n"


def test_a_run_is_shown_with_its_tasks_what_went_wrong_and_what_can_be_done(scene: Scene) -> None:
    run = scene.failed_run()
    out = scene.call("status latest").out
    assert "nightly  FAILED  1 of 3 tasks done, 1 failed, " in out
    assert run.id in out
    assert re.search(r"^transform +FAILED +1 +\S+ +exited with code 2 \(expected 0\)$", out, re.MULTILINE)
    assert re.search(r"^load +PENDING +after: transform$", out, re.MULTILINE)
    assert f"  log: {scene.folder}/.pointsman/logs/{run.id}/transform/1.log\n" in out
    for step in ("logs {} transform", "retry {}", "skip {} transform"):
        assert f"  pointsman {step.format(run.id[-8:])} " in out


def test_a_run_is_told_to_programs_with_everything(scene: Scene) -> None:
    run = scene.failed_run()
    shown = scene.call("status latest --json").json
    assert (shown["id"], shown["outcome"], shown["error"]) == (run.id, "failure", EXIT_CODE_2)
    transform = next(task for task in shown["tasks"] if task["name"] == "transform")
    assert (transform["exit_code"], transform["attempts"], transform["error"]) == (2, 1, EXIT_CODE_2)
    assert f"pointsman retry {run.id[-8:]}" in [step["command"] for step in shown["next"]]


@pytest.mark.parametrize(
    ("lifecycle", "expected"),
    [("standard", {"resume", "cancel"}), ("orchestrated", {"resume", "cancel"}), ("pipeline", {"resume"})],
)
def test_only_what_the_machine_takes_is_offered(scene: Scene, lifecycle: str, expected: set[str]) -> None:
    scene.submit(lifecycle=lifecycle)
    said = scene.call("status latest --json").json
    assert not said["attended"]
    assert expected <= {step["command"].split()[1] for step in said["next"]} <= {"resume", "cancel"}


def test_no_log_is_offered_of_what_never_ran(scene: Scene) -> None:
    run = scene.submit(NewTask(name="gate", gate=True))
    scene.call("reject latest gate")
    assert re.findall(r"pointsman (\w+)", scene.call("status latest").out) == ["skip"]
    assert scene.call(f"skip {run.id} gate").code == 0


def test_nothing_is_offered_for_what_has_succeeded(scene: Scene) -> None:
    run = scene.submit(NewTask(name="only"))
    scene.complete(run)
    said = scene.call("status latest")
    assert "SUCCEEDED" in said.out
    assert "Next:" not in said.out


def test_of_many_tasks_those_that_went_well_are_counted(scene: Scene) -> None:
    run = scene.submit(*(NewTask(name=f"task-{number:03}", priority=number) for number in range(60)))
    scene.complete(run)
    said = scene.call("status latest")
    assert "and 1 SUCCEEDED" in said.out.replace("9 QUEUED, ", "")
    assert len(scene.call("status latest --all").out.splitlines()) > 60


def test_subtasks_stand_below_their_task_and_what_was_skipped_says_why(scene: Scene) -> None:
    parts = [NewTask(name=f"load[{number}]", parent="load") for number in range(2)]
    scene.submit(NewTask(name="load"), NewTask(name="after", depends_on=("load", "load[0]")), *parts)
    scene.call("skip latest load[1] --reason empty")
    rows = scene.call("status latest").out.split("\n\n")[1].splitlines()[1:]
    assert [row[: row.index("  ", 3)] for row in rows] == ["load", "  load[0]", "  load[1]", "after"]
    assert rows[2].endswith("  empty")
    assert rows[3].endswith("  after: load, load[0]")


def test_a_task_that_failed_and_was_skipped_says_why_it_was_skipped(scene: Scene) -> None:
    scene.failed_run()
    scene.call("skip latest transform", "--reason", "known trouble")
    assert why(scene, "transform") == "known trouble; last error: exited with code 2 (expected 0)"


def test_a_usage_limit_says_of_what_and_until_when(scene: Scene) -> None:
    scene.do(lambda engine: engine.declare_tool("claude"))
    run = scene.submit(using("claude"))
    (claim,) = scene.claim()
    report = AttemptReport(error="try later", usage_limit_until=run.created_at + timedelta(hours=2))
    scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, "interrupt", report))
    limited = r"claude has reached its usage limit, retry in 1h 5\dm \(at [\d: -]+\)"
    assert re.fullmatch(limited + "; last error: try later", why(scene, "only") or "")
    scene.submit(using("claude"))
    assert re.fullmatch(limited, why(scene, "only") or "")


def test_tokens_and_estimates_are_shown_for_attempts_tasks_and_runs(scene: Scene) -> None:
    scene.submit()
    (claim,) = scene.claim()
    report = AttemptReport(cost_usd=Decimal("0.5"), cost_is_estimated=True, tokens_in=1200, tokens_out=34)
    scene.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, report=report))
    assert ", 0.5 USD spent (estimated, 1,200 tokens in, 34 out)" in scene.call("status latest").out
    shown = scene.call("status latest --json").json
    for used in (shown, *(task for task in shown["tasks"] if task["name"] == claim.name)):
        assert (used["tokens_in"], used["tokens_out"], used["cost_is_estimated"]) == (1200, 34, True)
    (attempt,) = scene.call("history latest", claim.name, "--json").json["attempts"]
    assert (attempt["tokens_in"], attempt["tokens_out"], attempt["cost_is_estimated"]) == (1200, 34, True)
    assert "0.5 USD, estimated, 1,200 tokens in, 34 out" in scene.call("history latest", claim.name).out
    assert scene.call("budget --json").json["tenant"]["tokens_in"] == 1200


def test_a_task_that_waits_for_the_budget_of_its_tenant_says_so(scene: Scene) -> None:
    scene.do(lambda engine: engine.set_tenant_budget(Decimal(0)))
    scene.submit(NewTask(name="only"))
    assert scene.claim() == []
    assert why(scene, "only") == "the budget of the tenant is spent: 0 of 0 USD"
    assert "All runs of the tenant default: 0 of 0 USD spent." in scene.call("budget").out


def test_a_time_on_another_day_has_its_date() -> None:
    noon = datetime(2026, 3, 4, 12).astimezone()
    assert show_time(noon, noon + timedelta(hours=1)) == "12:00:00"
    assert show_time(noon, noon - timedelta(days=7)) == "2026-03-04 12:00"


def test_the_folder_of_the_project_is_named_where_it_is_not_the_one_that_is_meant(scene: Scene) -> None:
    scene.submit()
    (scene.folder / "below").mkdir()
    assert "Project:" not in scene.call("status").err
    process = subprocess.run(
        [sys.executable, "-m", "pointsman", "status"], cwd=scene.folder / "below", capture_output=True, text=True, check=True
    )
    assert process.stderr == f"Project: {scene.folder} (its settings or .pointsman are there)\n"
    assert "nightly" in process.stdout


def test_a_run_is_found_by_its_id_a_part_of_it_and_as_the_latest(scene: Scene) -> None:
    first, last = scene.submit(), scene.submit()
    for name in (first.id, first.id[4:], first.id[-8:], first.id[-4:], first.id[: -len("0000")]):
        assert scene.call("status", name, "--json").json["id"] == first.id, name
    assert scene.call("status latest --json").json["id"] == last.id


def test_a_name_that_could_be_several_or_none_is_refused_with_what_is_near(scene: Scene) -> None:
    first, last = scene.submit(), scene.submit(name="weekly")
    common = first.id[:6]
    said = scene.call("status", common)
    assert (said.code, said.out) == (2, "")
    assert f"'{common}' matches more than one run: " in said.err
    assert all(run.id in said.err for run in (first, last))
    swapped = first.id[-8:-1] + ("0" if first.id[-1] != "0" else "1")
    assert f"Did you mean {first.id[-8:]} (nightly)" in scene.call("status", swapped).err
    assert f"'weekly' is the name of a flow, not of a run. Its runs: {last.id[-8:]}." in scene.call("status weekly").err
    assert "The latest are:" in scene.call("status xx").err
    assert scene.call("status xx --json").json == {"error": scene.call("status xx").err.removeprefix("error: ").strip()}


def test_the_commands_work_on_postgres(scene_on_postgres: Scene) -> None:
    scene = scene_on_postgres
    run = scene.failed_run()
    assert run.id[-8:] in scene.call("status").out
    assert "retry" in scene.call("status latest").out
    assert scene.call("retry latest").code == 0
    assert scene.call("cancel latest").code == 0
    assert scene.call("watch latest --all").code == 1
    assert "fetched 3" in scene.call("logs latest fetch --tail 1").out
    assert [move["trigger"] for move in scene.call("history latest --json").json["moves"]][-2:] == ["retry", "cancel"]


def look(scene: Scene, run: Run, **environment: str) -> str:
    """What a person sees in a terminal of 80 columns."""
    controller, terminal = pty.openpty()
    process = scene.start(f"status {run.id}", {"COLUMNS": "80", "TERM": "xterm"} | environment, terminal)
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 65536):
            output += chunk
    except OSError:
        pass  # Linux says EIO once the other side is closed
    os.close(controller)
    process.wait()
    return output.decode()


def test_a_terminal_gets_colours_and_lines_that_fit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    run = scene.failed_run()
    colored = look(scene, run)
    assert "\x1b[31mFAILED\x1b[0m" in colored
    assert "exited with code 2 (expected 0)" in colored
    table = re.sub(r"\x1b\[\d+m", "", colored).split("\r\n\r\n")[1]
    assert max(len(line) for line in table.splitlines()) <= 80
    assert not COLOR.search(look(scene, run, NO_COLOR="1"))
    assert not COLOR.search(scene.call("status latest").out)


def test_a_worker_that_was_killed_here_is_not_waited_for(scene: Scene) -> None:
    run = scene.submit()
    scene.claim()
    assert "pointsman watch" in scene.call("status latest").out
    worker_id = scene.tasks(run)["fetch"].worker_id
    # A worker that has left its record behind: no process of this machine was started at that instant.
    Record(scene.folder, str(worker_id))
    record = scene.folder / ".pointsman" / "workers" / f"{worker_id}.jsonl"
    record.write_text(re.sub(r'"started_ticks":\d+', '"started_ticks":1', record.read_text()))
    shown = scene.call("status latest").out
    assert "nightly  RUNNING (interrupted)  0 of 3 tasks done" in shown
    assert "\nInterrupted: no worker is running it.\n" in shown
    assert "interrupted: its worker box was killed, its lease ends in " in shown
    assert f"pointsman resume {run.id[-8:]}" in shown
    assert shown.split("elapsed")[0] == scene.call("status latest").out.split("elapsed")[0], "no time passes"
    assert scene.call("status").out.splitlines()[1].startswith("RUNNING (interrupted)  nightly")


def test_a_worker_of_another_run_is_not_waited_for(scene: Scene) -> None:
    """`pointsman run` serves its own run only, so another run in the same project is as good as unattended."""
    served = scene.submit(name="served")
    scene.claim()
    Record(scene.folder, str(scene.tasks(served)["fetch"].worker_id), run_id=served.id)
    other = scene.submit(name="other")
    assert why(scene, "fetch") == "no worker is running it"
    assert f"pointsman resume {other.id[-8:]}" in scene.call("status latest").out


def why(scene: Scene, task: str) -> str | None:
    tasks = scene.call("status latest --json").json["tasks"]
    answer: str | None = next(each["why"] for each in tasks if each["name"] == task)
    return answer


def using(tool: str, name: str = "only") -> NewTask:
    return NewTask(name=name, tool=tool, payload={"run": "true", "tool": tool}, critical=False)


def test_a_task_that_no_worker_can_do_says_what_is_missing_and_who_could(scene: Scene) -> None:
    payload = {"run": "true", "needs_capabilities": ["gpu"]}
    run = scene.submit(NewTask(name="train", capabilities=("gpu",), payload=payload), NewTask(name="other"))
    assert why(scene, "train") == "no worker has the capability gpu"
    assert f"pointsman resume {run.id[-8:]} --capability gpu " in scene.call("status latest").out
    scene.claim()
    out = scene.call("status latest").out
    assert re.search(r"^train +QUEUED +no worker has the capability gpu$", out, re.MULTILINE)
    assert "  pointsman worker --capability gpu " in out

    async def join(engine: Engine) -> None:
        await engine.register_worker("big", capabilities=("gpu", "docker"))

    scene.do(join)
    assert why(scene, "train") == "a worker is about to start it"


def test_what_can_only_be_done_by_several_workers_is_told_so(scene: Scene) -> None:
    payload = {"run": "true", "needs_capabilities": ["gpu", "docker"]}
    scene.submit(NewTask(name="train", capabilities=("gpu", "docker"), payload=payload))

    async def join(engine: Engine) -> None:
        for word in ("gpu", "docker"):
            await engine.register_worker(word, capabilities=(word,))

    scene.do(join)
    assert why(scene, "train") == "no single worker has the capabilities docker, gpu"


def test_a_task_whose_tool_is_shut_off_says_for_how_long(scene: Scene) -> None:
    async def declare(engine: Engine) -> None:
        await engine.declare_tool("curl", failure_threshold=1, cooldown_seconds=600)

    scene.do(declare)
    run = scene.submit(using("curl", "first"), using("curl", "second"))
    scene.fail(run)
    assert re.fullmatch(r"curl circuit is open, retry in 9m \d+s \(at [\d:]{8}\)", why(scene, "second") or "")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"max_concurrent": 1}, "curl is at its limit of 1 at once"),
        ({"rate_count": 1, "rate_seconds": 600.0}, "curl is at its limit of 1 in 10m, retry in 9m 5"),
    ],
)
def test_a_task_whose_tool_bears_no_more_says_so_whoever_uses_it(scene: Scene, limit: dict[str, float], reason: str) -> None:
    async def declare(engine: Engine) -> None:
        await engine.declare_tool("curl", **limit)  # type: ignore[arg-type]

    scene.do(declare)
    scene.submit(using("curl"))
    scene.claim()
    scene.submit(using("curl", "next"))
    assert (why(scene, "next") or "").startswith(reason)


def test_a_task_whose_run_is_over_or_paused_says_so(scene: Scene) -> None:
    run = scene.submit(NewTask(name="one"), NewTask(name="two"))
    scene.call("pause latest")
    assert why(scene, "two") == "the run is PAUSED"
    scene.do(lambda engine: engine.for_tenant(actor="me").signal_run(run.id, "resume"))
    scene.fail(run)
    assert why(scene, "two") == "the run is FAILED"


def test_nothing_is_offered_where_nothing_leads_on(scene: Scene) -> None:
    scene.submit()
    scene.call("cancel latest fetch")
    out = scene.call("status latest").out
    assert "nightly cannot succeed without fetch, and CANCELED is final. Run the flow again." in out
    assert "Next:" not in out


@pytest.mark.parametrize("command", ["status latest", "retry latest", "skip latest transform", "watch latest"])
def test_a_hint_means_the_same_project(scene: Scene, command: str) -> None:
    scene.failed_run()
    said = scene.call_as_it_is(command)
    hints = re.findall(r"pointsman (?:logs|retry|skip|resume|status|watch) .*?(?= *  #|$|\n)", said.out + said.err)
    assert hints
    assert all(hint.endswith(scene.options) for hint in hints), hints


def test_a_hint_works_without_the_password(scene_on_postgres: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_on_postgres
    scene.failed_run()
    url = re.sub(r"//(\w+):?@", r"//\1:hunter2@", scene.url)
    assert "hunter2" in url
    given = ("--store", url, "-C", str(scene.folder))
    said = scene.call_anywhere("status", "latest", *given)
    assert "hunter2" not in said.out + said.err
    assert "***" not in said.out + said.err
    assert "set POINTSMAN_STORE to the URL of --store: its password is not shown." in said.err
    (hint,) = re.findall(r"pointsman (retry .*?)  #", said.out)
    assert "--store" not in hint
    monkeypatch.setenv("POINTSMAN_STORE", url)
    said = scene.call_anywhere("status", "latest", *given)
    assert (said.err, hint in said.out) == ("", True)
    assert scene.call_anywhere(*shlex.split(hint)).code == 0


def test_a_hint_leaves_out_a_store_that_the_settings_name(scene: Scene) -> None:
    scene.failed_run()
    said = scene.call_anywhere("status", "latest", "--store", scene.url, "-C", str(scene.folder))
    assert "--store" not in said.out
    other = scene.folder / "other.db"
    shutil.copyfile(scene.url.removeprefix("sqlite:///"), other)
    said = scene.call_anywhere("status", "latest", "--store", f"sqlite:///{other}", "-C", str(scene.folder))
    assert f"--store sqlite:///{other} -C {scene.folder}  #" in said.out
    assert said.err == ""


def test_the_list_of_runs_is_filtered_by_flags(scene: Scene) -> None:
    def submit(name: str) -> Run:
        new = NewRun(name=name, tasks=(NewTask(name="a"),), tags=(name, "dull"))
        run: Run = scene.do(lambda engine: engine.submit_run(new))
        return run

    nightly, weekly = submit("nightly"), submit("weekly")
    scene.do(lambda engine: engine.signal_run(weekly.id, "pause", reason="snow"))
    cases = {
        "--name nightly": [nightly.id],
        "--state PAUSED": [weekly.id],
        "--phase held --text snow": [weekly.id],
        "--created-after 1999-12-31": [weekly.id, nightly.id],
        "--created-before 1999-12-31": [],
        "--outcome failure": [],
        "--tag dull": [weekly.id, nightly.id],
        "--tag weekly --state PAUSED": [weekly.id],
    }
    for flags, expected in cases.items():
        assert [run["id"] for run in scene.call(f"status --json {flags}").json] == expected, flags
    assert scene.call("status --lifecycle none").err == "No run fulfills these conditions.\n"
    for flags in ("--phase runing", "--created-after yesterday", "--name x latest"):
        refused = scene.call(f"status {flags}")
        assert refused.code == 2, flags
        assert flags.split()[0] in refused.err, flags


def test_an_approval_in_a_run_that_has_failed_does_not_ask_for_a_decision(scene: Scene) -> None:
    """A decision is refused there: first the run has to be retried."""
    flow = "name: gated\ntasks: {sign: {approval: 'Ship it?'}, build: {run: exit 1}}\n"
    (scene.folder / "flow.yaml").write_text(flow)
    assert scene.call(f"run {scene.folder / 'flow.yaml'} -C {scene.folder}").code == 1
    shown = scene.call("status latest").out
    assert re.search(r"^sign +WAITING_APPROVAL +the run is FAILED$", shown, re.MULTILINE)
    assert "Nothing waits for you." in scene.call("inbox --list").err
    assert scene.call("approve latest sign").code == 2


def test_a_job_that_failed_is_not_lost_because_of_what_was_canceled_with_it(scene: Scene) -> None:
    tasks = "{build: {run: exit 1, max_attempts: 1}, ship: {needs: build, run: 'true'}}"
    flow = f"name: job\nlifecycle: supervised\ntasks: {tasks}\n"
    (scene.folder / "flow.yaml").write_text(flow)
    said = scene.call(f"run {scene.folder / 'flow.yaml'} -C {scene.folder}")
    assert said.code == 1
    for shown in (said.err, scene.call("status latest").out):
        assert "FAILED is final. Run the flow again." in shown
        assert "cannot succeed without ship" not in shown
