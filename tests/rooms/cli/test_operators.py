"""`workers`, `breakers`, `budget`, `notices`, `doctor --fix`, `resume --detach`: what operators do, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import click
import pytest
from tests.rooms.cli.scene import Said, Scene
from tests.rooms.store.outsider import outsider
from tests.rooms.worker.shop import until_state, until_there

from pointsman.cli import COMMANDS, main
from pointsman.cli.group import root
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask
from pointsman.store.rows import Worker
from pointsman.worker.leftovers import end_dead_workers
from pointsman.world import World

WAITS = "echo $$ > a.pid; until test -e go; do sleep 0.05; done"
PATIENCE_SECONDS = 120


@pytest.fixture(params=["scene", "scene_on_postgres"])
def project(request: pytest.FixtureRequest) -> Scene:
    scene: Scene = request.getfixturevalue(request.param)
    return scene


def write_flow(scene: Scene, script: str = WAITS, extra: str = "") -> str:
    path = scene.folder / "flow.yaml"
    path.write_text(json.dumps({"name": "held", "tasks": {"a": {"run": script}}}) + extra)
    return str(path)


@contextmanager
def working(scene: Scene, command: str = "worker --name box --slots 2") -> Iterator[int]:
    """A worker in a process of its own; it must end by itself."""
    process = scene.start(command)
    try:
        yield process.pid
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.communicate()
        scene.do(lambda engine: end_dead_workers(engine, scene.folder, World().sleep))


def wait_for(scene: Scene, is_so: Callable[[Said], bool], command: str = "status latest --json") -> Said:
    """Ask until the answer is right."""

    async def ask() -> Said:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so(said := await asyncio.to_thread(scene.call, command)):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)
            return said

    return asyncio.run(ask())


def register(scene: Scene, name: str = "box", lifecycle: str = "standard") -> Worker:
    return scene.do(lambda engine: engine.register_worker(name, lifecycle=lifecycle, lease_seconds=600))


def last_move(scene: Scene, entity: str) -> dict[str, object]:
    move: dict[str, object] = scene.call(f"history {entity} --json").json["moves"][-1]
    return move


def test_workers_show_the_metadata_that_they_were_started_with(project: Scene) -> None:
    with working(project, "worker --name box --metadata rack=7 --metadata owner=ada"):
        said = wait_for(project, lambda said: bool(said.json), "workers --json")
        assert said.json[0]["metadata"] == {"rack": 7, "owner": "ada"}
        assert "rack=7, owner=ada" in project.call("workers").out
        project.call("workers drain box")
    refused = project.call("worker --metadata rack")
    assert refused.code == 2
    assert "'rack' is not KEY=VALUE. Write for example: --metadata rack=7" in refused.err


def follow(hint: str) -> None:
    """A hint as it was printed: what is typed after it may be read."""
    assert main(shlex.split(hint)[1:]) == 0, hint


# Workers


def test_workers_are_listed_with_what_they_hold(project: Scene) -> None:
    run = project.submit()
    assert project.call("workers").err.startswith("No worker is running. Start one: pointsman worker")
    project.claim()
    head, row = project.call("workers").out.splitlines()
    assert head.split() == ["worker", "state", "slots", "heartbeat", "capabilities", "metadata", "protection", "id", "holds"]
    assert re.fullmatch(rf"box +BUSY +1/1 +\d\S+ ago +\w{{8}}  fetch \({run.id[-8:]}\)", row)
    (told,) = project.call("workers --json").json
    assert (told["name"], told["alive"], told["slots"], told["phase"], told["wish"]) == ("box", True, 1, "active", None)
    assert [task["name"] for task in told["holds"]] == ["fetch"]
    assert project.call("workers list --json").json == [told]


def test_workers_that_are_gone_are_listed_only_when_asked_for(scene: Scene) -> None:
    assert scene.call("workers --json").json == []
    register(scene)
    assert scene.call("workers drain box").out.endswith(": IDLE → SHUTDOWN\n")
    assert scene.call("workers --json").json == []
    assert [worker["name"] for worker in scene.call("workers --all --json").json] == ["box"]


def test_a_paused_worker_claims_nothing_and_the_hint_resumes_it(project: Scene) -> None:
    register(project)
    said = project.call_as_it_is("workers pause box --as ada --reason", "the disk is nearly full")
    assert said.code == 0
    assert re.match(r"box \(\w{8}\): IDLE → PAUSED\n", said.out)
    assert last_move(project, "box") | {"actor": "ada", "reason": "the disk is nearly full"} == last_move(project, "box")
    project.submit(NewTask(name="a"))
    assert project.call("status latest --json").json["tasks"][0]["why"] == "no worker takes tasks: box is PAUSED"
    follow(said.err.partition("To continue: ")[2])
    assert last_move(project, "box")["to"] == "IDLE"


@pytest.mark.parametrize(
    ("database", "lifecycle", "ending"),
    [
        ("scene", "supervised", "workers resume box"),
        ("scene_on_postgres", "standard", "workers drain box"),
        ("scene", "standard", "SIGTERM"),
    ],
)
def test_a_suspended_worker_stands_still_until_it_goes_on(
    request: pytest.FixtureRequest, database: str, lifecycle: str, ending: str
) -> None:
    """Also when it is to leave: a task that stands still would never end."""
    project: Scene = request.getfixturevalue(database)
    project.call(f"run {write_flow(project)} --detach")
    with working(project, f"worker --name box --lifecycle {lifecycle}") as pid:
        asyncio.run(until_there(project.folder / "a.pid"))
        work = int((project.folder / "a.pid").read_text())
        said = project.call("workers pause box --suspend")
        assert (said.code, said.err.splitlines()[0]) == (0, "1 running task is suspended.")
        asyncio.run(until_state(work, "T"))
        assert project.call("workers --json").json[0]["wish"] == "suspended"
        assert project.call("status latest --json").json["tasks"][0]["why"] == "suspended: its worker box is PAUSED"
        if ending == "SIGTERM":
            os.kill(pid, signal.SIGTERM)
        else:
            assert project.call(ending).code == 0
        asyncio.run(until_state(work, "S"))
        (project.folder / "go").touch()
        wait_for(project, lambda said: said.json["state"] == "SUCCEEDED")
        if ending == "workers resume box":
            project.call("workers drain box")
    assert project.call("status latest --json").json["tasks"][0]["attempts"] == 1


def test_a_terminated_worker_kills_its_task_and_another_one_takes_it(project: Scene) -> None:
    project.call(f"run {write_flow(project)} --detach")
    with working(project):
        asyncio.run(until_there(project.folder / "a.pid"))
        said = project.call("workers terminate box --reason stuck")
        assert said.err.splitlines()[0] == "It kills 1 running task and ends; other workers take over."
    assert project.call("workers --json").json == []
    assert project.call("history box --json").json["moves"][-1]["to"] == "TERMINATED"
    (project.folder / "go").touch()
    assert project.call("resume latest").code == 0


@pytest.mark.parametrize(
    ("lifecycle", "command", "words"),
    [
        ("supervised", "pause", "is IDLE, which does not allow `pause`. Possible now: pointsman workers terminate "),
        ("orchestrated", "pause", "is idle, which does not allow `pause`. Possible now: pointsman workers drain "),
        ("orchestrated", "terminate", "is idle, which does not allow `terminate`. Possible now: pointsman workers drain "),
    ],
)
def test_what_the_machine_of_a_worker_does_not_allow_is_refused(scene: Scene, lifecycle: str, command: str, words: str) -> None:
    register(scene, lifecycle=lifecycle)
    said = scene.call_as_it_is(f"workers {command} box")
    assert said.code == 2
    assert words in said.err
    follow(said.err.partition("Possible now: ")[2].split(", pointsman")[0].rstrip(".\n"))


def test_a_worker_of_document_000_is_paused_and_terminated_as_it_says(scene: Scene) -> None:
    async def begin(engine: Engine) -> None:
        worker = await engine.register_worker("box", lifecycle="supervised", lease_seconds=600)
        await engine.signal_worker(worker.id, "assign")

    scene.do(begin)
    assert "RUNNING → PAUSED" in scene.call("workers pause box").out
    assert "PAUSED → RUNNING" in scene.call("workers resume box").out
    assert "RUNNING → TERMINATED" in scene.call("workers terminate box").out
    assert scene.call("workers terminate box").err.endswith("is TERMINATED already.\n")


def test_a_worker_is_named_without_doubt(scene: Scene) -> None:
    one, two = register(scene, "box"), register(scene, "box")
    said = scene.call("workers pause box")
    assert said.code == 2
    assert f"'box' matches more than one worker: {one.id} (box), {two.id} (box). Write more of the id." in said.err
    assert scene.call(f"workers drain {one.id[-8:]}").code == 0
    assert f"({two.id[-8:]}): IDLE → PAUSED" in scene.call("workers pause box").out, "the one that has left is not meant"
    unknown = scene.call("workers pause boxx --json")
    assert (unknown.code, unknown.json) == (2, {"error": f"There is no worker 'boxx'. Did you mean box ({two.id[-8:]})?"})
    assert "Did you mean pause?" in scene.call_anywhere("workers pauze box").err


# Breakers and tools


def with_tool(scene: Scene, lifecycle: str = "standard") -> None:
    async def declare(engine: Engine) -> None:
        await engine.declare_tool("curl", cooldown_seconds=600, max_concurrent=2)

    scene.do(declare)
    scene.submit(NewTask(name="a", tool="curl", max_retries=1), lifecycle=lifecycle)


@pytest.mark.parametrize("lifecycle", ["standard", "pipeline"])
def test_a_tripped_circuit_starts_no_task_until_the_hint_resets_it(project: Scene, lifecycle: str) -> None:
    with_tool(project, lifecycle)
    said = project.call_as_it_is("breakers trip curl --for 2h --as ada --reason", "it answers nonsense")
    assert re.match(r"curl: CLOSED → OPEN, retry in (1h 59m|2h 0m)\n", said.out)
    (told,) = project.call("breakers --json").json
    assert (told["name"], told["phase"], told["failure_count"]) == ("curl", "held", 0)
    assert last_move(project, "curl") | {"trigger": "failure_threshold_exceeded", "actor": "ada"} == last_move(project, "curl")
    assert project.claim() == []
    assert "curl circuit is open, retry in" in project.call("status latest").out
    again = project.call("breakers trip curl")
    assert (again.code, again.err) == (2, "error: curl is OPEN already.\n")
    follow(said.err.partition("To close the circuit: ")[2])
    assert len(project.claim()) == 1
    assert project.call_anywhere("validate", str(project.folder / ".state/transitions.jsonl")).code == 0
    assert project.call("doctor --audit").code == 0


def test_a_probe_does_not_close_a_circuit_that_a_person_has_tripped_meanwhile(scene: Scene) -> None:
    async def half_open(engine: Engine) -> None:
        await engine.declare_tool("curl", failure_threshold=1, cooldown_seconds=0.01)
        await engine.trip_breaker("curl")

    scene.do(half_open)
    scene.submit(NewTask(name="a", tool="curl"))

    async def probe(engine: Engine) -> Worker:
        while (await engine.get_breaker("curl")).state == "OPEN":
            await engine.tend()
        worker = await engine.register_worker("box")
        assert await engine.claim_tasks(worker.id)
        return worker

    scene.do(probe)
    assert "probing" in scene.call("breakers").out
    assert scene.call("breakers trip curl --for 1h").out.startswith("curl: HALF_OPEN → OPEN")
    (task,) = scene.do(lambda engine: engine.list_held_tasks())
    scene.do(lambda engine: engine.complete_task(task.id, task.epoch))
    assert scene.call("breakers --json").json[0]["state"] == "OPEN"


def test_tools_are_listed_with_their_limits_and_named_without_doubt(scene: Scene) -> None:
    assert scene.call("breakers --json").json == []
    with_tool(scene)
    head, row = scene.call("breakers").out.splitlines()
    assert (head.split(), row.split()) == (
        ["tool", "circuit", "failures", "retry", "limits", "why"],
        ["curl", "CLOSED", "0/5", "2", "at", "once"],
    )
    assert scene.call("breakers reset curls").err == ("error: There is no tool 'curls' in this database. Did you mean curl?\n")
    assert scene.call("breakers reset curl").err == "error: curl is CLOSED already.\n"
    wrong = scene.call("breakers trip curl --for soon")
    assert (wrong.code, "Write for example: 90s, 10m or 2h." in wrong.err) == (2, True)


# Budgets


def test_advice_has_the_options_that_its_commands_need(project: Scene) -> None:
    file = Path(write_flow(project, "true"))
    spends = {"run": "echo 1.5 >> $POINTSMAN_COST; exit 3"}
    file.write_text(json.dumps({"name": "dear", "budget_usd": 1, "tasks": {"a": spends}}))
    where = ["--store", f"sqlite:///{project.folder}/other.db", "-C", str(project.folder)]
    assert project.call_anywhere(f"run {file}", *where).code == 1
    texts = [project.call_anywhere("status latest", *where).out, project.call_anywhere("retry latest", *where).err]
    raises = [re.findall(r"`(pointsman budget set [^`]+)`", text) for text in texts]
    see = re.findall(r"See: (pointsman status.*)", project.call_anywhere("status run_unknown", *where).err)
    for (command,) in (*raises, see):
        assert shlex.split(command)[-4:] == where, command
        assert project.call_anywhere("", *shlex.split(command)[1:]).code == 0, command
    assert "no money left" not in project.call_anywhere("status latest", *where).out


def test_a_run_that_has_spent_its_budget_gets_more_and_goes_on(project: Scene) -> None:
    script = "echo 1.5 >> $POINTSMAN_COST; test -e go || sleep 60"
    file = Path(write_flow(project, script))
    file.write_text(json.dumps({"name": "dear", "budget_usd": 1, "tasks": {"a": {"run": script}}}))
    assert project.call(f"run {file}").code == 1
    refused = project.call("retry latest")
    (advice,) = re.findall(r"Raise its budget, for example: `(pointsman budget set \w{8} 2)`, and retry it\.", refused.err)
    assert refused.code == 2
    assert advice.split()[-2] == project.call("budget show --json").json["run_id"][-8:]
    said = project.call_as_it_is("budget set latest 5.00 --as ada --reason", "it is worth it")
    assert re.fullmatch(r"dear \(\w{8}\): 1 USD → 5 USD\n", said.out)
    assert said.err.startswith("1.5 USD spent of 5, 3.5 left.\n")
    follow(said.err.partition("To continue: ")[2])
    (project.folder / "go").touch()
    assert project.call("resume latest").code == 0
    shown = project.call("budget --json").json
    assert [Decimal(shown[key]) for key in ("budget_usd", "spent_usd", "left_usd")] == [5, 3, 2]
    assert [(task["name"], Decimal(task["spent_usd"])) for task in shown["tasks"]] == [("a", Decimal(3))]
    (notice,) = project.call("history latest --json").json["notices"]
    assert notice["message"] == "The budget is 5 USD. It was 1 USD. By ada: it is worth it"
    assert project.call("notices latest --json").json == [notice]
    assert "budget  The budget is 5 USD." in project.call("notices").out


def test_a_run_with_a_budget_below_what_is_spent_goes_on_with_the_command_that_is_printed(project: Scene) -> None:
    run = project.submit(NewTask(name="a"), NewTask(name="b", depends_on=("a",), budget_usd=Decimal(2)), budget_usd=Decimal(9))
    (claim,) = project.claim()
    report = AttemptReport(cost_usd=Decimal("2.5"))
    project.do(lambda engine: engine.report_attempt(claim.task_id, claim.epoch, "complete", report))
    assert project.call("budget set latest 1").code == 0
    (command,) = re.findall(r"Raise its budget, for example: `pointsman (.*)`\.", project.call("status latest").out)
    assert command == f"budget set {run.id[-8:]} 5", "2.5 USD are spent, and b may need 2 USD"
    assert project.call(command).code == 0
    assert "no money left" not in project.call("status latest").out
    assert [claim.name for claim in project.claim()] == ["b"]


def test_a_budget_is_an_amount_or_none(scene: Scene) -> None:
    scene.submit(budget_usd=Decimal(2))
    assert scene.call("budget set latest none").out.endswith(": 2 USD → unlimited\n")
    assert scene.call("budget").out.endswith("0 USD spent, no limit\n")
    for amount in ("dear", "nan"):
        said = scene.call(f"budget set latest {amount}")
        assert (said.code, f"'{amount}' is not an amount. Write for example 20 or 2.50" in said.err) == (2, True)


# Notices and the doctor


def test_a_repair_is_kept_with_who_and_why(project: Scene) -> None:
    run = project.submit()
    with outsider(project.url) as prompt:
        prompt.ask("UPDATE task SET open_dependencies = 2 WHERE name = 'load'")
    fix = ("doctor --fix --as ada --request-id fix-1 --reason", "after the restore")
    assert project.call(*fix).code == 0
    assert project.tasks(run)["load"].open_dependencies == 1
    (notice,) = project.call("notices --json").json
    assert (notice["kind"], notice["name"], notice["subject"]) == ("task", "load", "repaired")
    assert notice["message"].startswith("Repaired: ")
    assert notice["message"].endswith(" By ada: after the restore")
    with outsider(project.url) as prompt:
        prompt.ask("UPDATE task SET open_dependencies = 2 WHERE name = 'transform'")
    assert project.call(*fix).code == 1, "the same request is not done again"
    assert project.call("notices --json").json == [notice]


def test_what_has_never_happened_is_said(scene: Scene) -> None:
    assert scene.call("notices --json").json == []
    scene.submit()
    assert scene.call("notices").err == "There are no notices.\n"
    assert scene.call("notices nobody").code == 2


# Every command that changes something


def every_change() -> dict[str, click.Command]:
    """Commands by name that have --request-id."""
    context = click.Context(root)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = root.get_command(context, name)
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        found |= {f"{name} {each}".strip(): which for each, which in inner.items() if which}
    return {name: each for name, each in found.items() if "request_id" in {option.name for option in each.params}}


OF_RUNS = ["run", "resume", "cancel", "pause", "retry", "skip", "reset", "approve", "reject", "accept", "answer", "start"]
OF_OPERATORS = [
    *(f"workers {each}" for each in ("pause", "resume", "drain", "terminate")),
    "breakers reset",
    "breakers trip",
    "budget set",
    "doctor",
    "tenant add",
    "tenant set",
    *(f"key {each}" for each in ("create", "rotate", "revoke")),
]


def test_every_command_that_changes_something_says_who_and_why_and_is_safe_to_repeat() -> None:
    changes = every_change()
    assert set(changes) == {*OF_RUNS, *OF_OPERATORS}
    for name, command in changes.items():
        assert {"reason", "actor", "request_id"} <= {option.name for option in command.params}, name


@pytest.mark.parametrize(
    "command",
    [
        "workers pause box",
        "workers drain box",
        "workers terminate box",
        "breakers trip curl",
        "budget set latest 5",
        "pause latest",
        "cancel latest",
        "skip latest a",
    ],
)
def test_a_repeated_request_has_one_effect(scene: Scene, command: str) -> None:
    with_tool(scene)
    register(scene)

    def look() -> tuple[object, object]:
        return scene.do(lambda engine: engine.last_position()), scene.call("notices --json").json

    before = look()
    assert scene.call(f"{command} --request-id once").code == 0
    after = look()
    assert after != before
    assert scene.call(f"{command} --request-id once").code == 0
    assert look() == after
    assert scene.call(f"{command} --request-id once --reason", "another one").code == 2


def test_a_repeated_run_is_the_same_run(project: Scene) -> None:
    command = f"run {write_flow(project, 'echo done')} --request-id nightly-1 --as ada --reason timer"
    assert project.call(command).code == 0
    again = project.call(command)
    assert (again.code, "SUCCEEDED  held: 1 of 1 task done" in again.err) == (0, True)
    (run,) = project.call("status --json").json
    first = project.call(f"history {run['id']} --json").json["moves"][0]
    assert (first["actor"], first["reason"]) == ("ada", "timer")
    write_flow(project, "echo other")
    assert project.call(command).code == 2


# In the background


def detach(scene: Scene, *options: str) -> tuple[str, str, int]:
    """In a process of its own, whose worker outlives it."""
    process = scene.start(" ".join(("resume latest --detach", *options)))
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return out, err, process.returncode


def test_a_run_goes_on_in_the_background_and_the_hints_follow_and_stop_it(project: Scene) -> None:
    project.call(f"run {write_flow(project)} --detach")
    out, err, code = detach(project, "--slots 3")
    assert code == 0, err
    assert "continues it in the background" in out
    (worker,) = project.call("workers --json").json
    assert worker["slots"] == 3
    asyncio.run(until_there(project.folder / "a.pid"))
    follow(re.findall(r"running tasks: (.*)", err)[0])
    assert project.call("workers --json").json[0]["id"] == worker["id"], "it finishes its task"
    (project.folder / "go").touch()
    follow(re.findall(r"To follow it: (.*)", err)[0])
    wait_for(project, lambda said: said.json == [], "workers --json")
    log = Path(re.findall(r"Its log: (.*)", err)[0])
    wait_for(project, lambda _: "SUCCEEDED  held: 1 of 1 task done" in log.read_text())


def test_a_detached_worker_is_stopped_at_once_and_the_run_is_kept(scene: Scene) -> None:
    said = scene.call(f"run {write_flow(scene)} --detach")
    hint = f"pointsman resume {said.out.strip()[-8:]} --detach"
    assert said.err == f"No worker takes its tasks. To run it in the background: {hint}\n"
    out, _, code = detach(scene, "--json")
    told = json.loads(out)
    assert (code, told["worker"]["name"].endswith(f":{told['worker']['pid']}")) == (0, True)
    asyncio.run(until_there(scene.folder / "a.pid"))
    os.kill(told["worker"]["pid"], signal.SIGINT)
    wait_for(scene, lambda said: said.json == [], "workers --json")
    assert scene.call("status latest --json").json["waiting"]["kind"] == "interrupted"


def test_a_run_is_handed_over_to_workers_that_take_tasks(project: Scene) -> None:
    project.call(f"run {write_flow(project)} --detach")
    with working(project):
        asyncio.run(until_there(project.folder / "a.pid"))
        project.call("pause latest")
        said = project.call("resume latest --detach --as ada --reason", "go on")
        assert said.out.endswith("its workers continue it in the background\n")
        assert last_move(project, "latest") | {"actor": "ada", "reason": "go on"} == last_move(project, "latest")
        assert len(project.call("workers --json").json) == 1
        (project.folder / "go").touch()
        wait_for(project, lambda said: said.json["state"] == "SUCCEEDED")
        project.call("workers drain box")


def test_a_worker_that_cannot_start_is_an_error(scene: Scene) -> None:
    scene.submit(NewTask(name="a"))
    (scene.folder / ".pointsman" / "workers").write_text("not a folder")
    _, err, code = detach(scene)
    assert code == 2
    assert "The worker ended at once, with exit code 2." in err


def test_attempts_of_a_tripped_tool_may_still_report(scene: Scene) -> None:
    with_tool(scene)
    (claim,) = scene.claim()
    assert scene.call("breakers trip curl").code == 0
    scene.do(lambda engine: engine.complete_task(claim.task_id, claim.epoch, AttemptReport(exit_code=0)))
    assert scene.call("status latest --json").json["state"] == "SUCCEEDED"
