"""A lifecycle of one's own: the example of the documentation, running beside the shipped ones, changed, and taken away."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import psycopg
import pytest
from tests.databases import DATABASES, open_store, sqlite_url
from tests.rooms.engine.harness import (
    ManualClock,
    claim_one,
    open_engine,
    pass_time,
    path_of,
    register,
    state_of,
    submit,
    task_of,
)
from tests.rooms.engine.test_supervised import STEADY, assert_promises_kept, last_move, moves_of
from tests.system.faults.prompt import prompt

from pointsman import lifecycles
from pointsman.cli import main
from pointsman.engine.engine import Engine
from pointsman.engine.machines import take_fingerprint
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask
from pointsman.errors import LeaseLost, LifecycleError, LifecycleInvalid, RequestInvalid, TransitionRefused, UnknownName
from pointsman.kernel.machine import Kind, Lifecycle, Machine, Phase
from pointsman.store.law import RuleRow, rule_rows
from pointsman.store.rows import Run, Worker
from pointsman.store.scripts import Migration, read_migrations

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "write-a-lifecycle.md"
QA = "      QA:        {phase: held}\n"


def read_example() -> str:
    """What the documentation tells its readers to save as `release.yaml`."""
    blocks: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return next(block for block in blocks if "lifecycle: release" in block)


def write_release(folder: Path, text: str | None = None) -> Path:
    file = folder / "release.yaml"
    file.write_text(text or read_example(), "utf-8")
    return file


def add_qa(text: str) -> str:
    """The example with one more state: somebody tests a release before somebody else accepts it."""
    text = text.replace("      REVIEW:    {phase: held}\n", f"      REVIEW:    {{phase: held}}\n{QA}")
    text = text.replace("- BUILDING -> REVIEW    : complete", "- BUILDING -> QA        : complete")
    text = text.replace("      - REVIEW   -> RELEASED", "      - QA       -> REVIEW    : approve\n      - REVIEW   -> RELEASED")
    return text.replace("- WAITING, BUILDING, REVIEW -> WITHDRAWN", "- WAITING, BUILDING, QA, REVIEW -> WITHDRAWN")


def with_version(text: str, version: int) -> str:
    return text.replace("lifecycle: release\n", f"lifecycle: release\nversion: {version}\n")


def adapt(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """A shipped lifecycle with changes, under a name of its own."""
    text = Path(lifecycles.__file__).with_name(f"{name}.yaml").read_text("utf-8")
    for old, new in ((f"lifecycle: {name}\n", f"lifecycle: my-{name}\n"), *changes):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = folder / f"my-{name}.yaml"
    file.write_text(text, "utf-8")
    return file


async def submit_release(engine: Engine, *tasks: NewTask) -> Run:
    return await submit(engine, *(tasks or (NewTask(name="build"),)), lifecycle="release")


async def build(engine: Engine, worker: Worker) -> str:
    claim = await claim_one(engine, worker)
    await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output="v1.tar.gz"))
    return claim.task_id


async def test_the_lifecycle_of_the_readme_runs_from_its_file(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine, lease_seconds=10_000)
        run = await submit_release(
            engine, NewTask(name="build", max_retries=1, backoff=STEADY), NewTask(name="ship", depends_on=("build",))
        )
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="flaky"))
        assert await engine.claim_tasks(worker.id) == []
        await pass_time(engine, clock, 1)
        task_id = await build(engine, worker)
        assert await state_of(engine, run, "build") == "REVIEW"
        assert await state_of(engine, run) == "WAITING"
        rejected = await engine.for_tenant(actor="ada").signal_task(
            task_id, "reject", reason="no changelog", comment="write a changelog"
        )
        assert (rejected.state, rejected.comment) == ("WAITING", "write a changelog")
        assert await state_of(engine, run) == "RUNNING"
        again = await claim_one(engine, worker)
        assert (again.epoch, again.comment) == (3, "write a changelog")
        await engine.complete_task(again.task_id, again.epoch, AttemptReport(output="v1.tar.gz"))
        await engine.for_tenant(actor="ada").signal_task(task_id, "accept", reason="good")
        move = await last_move(engine, task_id)
        assert (move.from_state, move.to_state, move.actor, move.reason) == ("REVIEW", "RELEASED", "ada", "good")
        assert await moves_of(engine, task_id) == [
            "WAITING -> BUILDING : claim",
            "BUILDING -> WAITING : fail",
            "WAITING -> BUILDING : claim",
            "BUILDING -> REVIEW : complete",
            "REVIEW -> WAITING : reject",
            "WAITING -> BUILDING : claim",
            "BUILDING -> REVIEW : complete",
            "REVIEW -> RELEASED : accept",
        ]
        shipped = await build(engine, worker)
        await engine.signal_task(shipped, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"
        await assert_promises_kept(engine)


async def test_a_broken_release_can_be_retried(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine)
        run = await submit_release(engine)
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="disk full"))
        assert (await state_of(engine, run, "build"), await state_of(engine, run)) == ("BROKEN", "FAILED")
        await engine.for_tenant(actor="ada").signal_task(claim.task_id, "retry", reason="there is room now")
        assert (await state_of(engine, run, "build"), await state_of(engine, run)) == ("WAITING", "RUNNING")
        task_id = await build(engine, worker)
        await engine.signal_task(task_id, "accept")
        assert await path_of(engine, task_id) == ["WAITING", "BUILDING", "BROKEN", "WAITING", "BUILDING", "REVIEW", "RELEASED"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "FAILED", "RUNNING", "WAITING", "SUCCEEDED"]
        await assert_promises_kept(engine)


@pytest.mark.parametrize("state", ["WAITING", "BUILDING", "REVIEW"])
async def test_a_release_can_be_withdrawn(database_url: str, clock: ManualClock, tmp_path: Path, state: str) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine)
        run = await submit_release(engine)
        if state == "BUILDING":
            await claim_one(engine, worker)
        elif state == "REVIEW":
            await build(engine, worker)
        assert await state_of(engine, run, "build") == state
        await engine.for_tenant(actor="ada").signal_run(run.id, "cancel")
        assert (await state_of(engine, run, "build"), await state_of(engine, run)) == ("WITHDRAWN", "CANCELED")
        with pytest.raises(TransitionRefused):
            await engine.signal_task((await task_of(engine, run, "build")).id, "retry")
        await assert_promises_kept(engine)


async def test_a_lost_worker_and_a_long_build_follow_the_fallbacks_of_the_file(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        gone = await register(engine, lease_seconds=30)
        run = await submit_release(engine, NewTask(name="build", max_retries=2, timeout_seconds=60, backoff=STEADY))
        await claim_one(engine, gone)
        await pass_time(engine, clock, 31)
        await pass_time(engine, clock, 1)
        worker = await register(engine, lease_seconds=10_000)
        await claim_one(engine, worker)
        await pass_time(engine, clock, 60)
        await pass_time(engine, clock, 2)
        task_id = await build(engine, worker)
        assert await moves_of(engine, task_id) == [
            *["WAITING -> BUILDING : claim", "BUILDING -> WAITING : fail"] * 2,
            "WAITING -> BUILDING : claim",
            "BUILDING -> REVIEW : complete",
        ]
        assert await state_of(engine, run) == "WAITING"
        await assert_promises_kept(engine)


async def test_a_build_that_lasts_longer_than_the_file_allows_is_reported(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine, lease_seconds=10_000)
        await submit_release(engine)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 3601)
        (notice,) = await engine.list_notices()
        assert (notice.entity_id, notice.message) == (claim.task_id, "It has been BUILDING for longer than 1h.")
        await assert_promises_kept(engine)


async def test_a_file_says_what_follows_when_a_task_stays_too_long(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    text = read_example().replace("      lease_lost: fail\n", "      lease_lost: fail\n      overstay: fail\n")
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path, text)]) as engine:
        worker = await register(engine, lease_seconds=10_000)
        await submit_release(engine)
        claim = await claim_one(engine, worker)
        with pytest.raises(RequestInvalid, match="'overstay' follows from what happens to the task"):
            await engine.signal_task(claim.task_id, "overstay")
        await pass_time(engine, clock, 3600)
        assert [each.subject for each in await engine.list_notices()] == ["overstayed"]
        move = await last_move(engine, claim.task_id)
        assert (move.from_state, move.to_state, move.actor) == ("BUILDING", "BROKEN", "engine")
        assert move.reason == "BUILDING for longer than 1h"
        assert (await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])).lost == ((claim.task_id, claim.epoch),)
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        await assert_promises_kept(engine)


async def test_a_file_says_what_follows_when_a_run_or_a_worker_stays_too_long(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    hasty = adapt(
        tmp_path,
        "pipeline",
        ("fallbacks:\n      expire: fail\n\n", "fallbacks:\n      expire: fail\n      overstay: cancel\n\n"),
    )
    shifts = adapt(
        tmp_path,
        "orchestrated",
        ("idle:         {phase: queued}", "idle:         {phase: queued, longest_stay: 1h}"),
        ("drain: shutdown_requested\n", "drain: shutdown_requested\n    fallbacks:\n      overstay: drain\n"),
    )
    async with open_engine(database_url, clock, lifecycles=[hasty, shifts]) as engine:
        worker = await register(engine, lifecycle="my-orchestrated", lease_seconds=10_000)
        run = await submit(engine, NewTask(name="a"), lifecycle="my-pipeline")
        await claim_one(engine, await register(engine, lease_seconds=10_000))
        await pass_time(engine, clock, 3600)
        assert await path_of(engine, run.id) == ["S_PENDING", "S_RUNNING", "S_ABANDONED"]
        assert await path_of(engine, worker.id) == ["initializing", "idle", "shutdown"]
        assert (await last_move(engine, worker.id)).reason == "idle for longer than 1h"
        await assert_promises_kept(engine)


async def test_it_runs_beside_the_shipped_lifecycles_on_the_same_workers(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine, slots=10)
        names = ("release", "standard", "pipeline", "orchestrated", "approval", "agent")
        runs = {name: await submit(engine, NewTask(name="work"), lifecycle=name) for name in names}
        claims = await engine.claim_tasks(worker.id, 10)
        assert {claim.run_id for claim in claims} == {run.id for run in runs.values()}
        for claim in claims:
            await engine.complete_task(claim.task_id, claim.epoch)
        assert {name: await state_of(engine, run, "work") for name, run in runs.items()} == {
            "release": "REVIEW",
            "standard": "SUCCEEDED",
            "pipeline": "S_SUCCESS",
            "orchestrated": "validating",
            "approval": "SUCCEEDED",
            "agent": "READY",
        }
        await assert_promises_kept(engine)


async def test_the_database_holds_tasks_to_the_rules_of_the_file(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine)
        run = await submit_release(engine)
        task = await task_of(engine, run, "build")
        result = await engine.request_transition(Kind.TASK, task.id, to_state="RELEASED")
        assert result.error is not None
        assert "release.task is WAITING: 'RELEASED' is not allowed from here" in result.error
        with prompt(database_url) as somebody, pytest.raises((apsw.Error, psycopg.Error), match="pointsman: no rule of"):
            somebody.ask("UPDATE task SET state = 'RELEASED' WHERE id = :id", id=task.id)
        await build(engine, worker)
        assert (await engine.for_tenant(actor="ada").request_transition(Kind.TASK, task.id, to_state="RELEASED")).success
        await assert_promises_kept(engine)


async def test_a_file_that_breaks_a_rule_is_refused_when_it_is_opened(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    file = write_release(tmp_path, read_example().replace("[retries_left]", "[retries_lft]"))
    with pytest.raises(LifecycleInvalid, match="retries_lft"):
        async with open_engine(database_url, clock, lifecycles=[file]):
            pass
    async with open_engine(database_url, clock) as engine:
        with pytest.raises(UnknownName, match="release"):
            await submit_release(engine)


async def test_a_changed_file_needs_a_new_version(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        run = await submit_release(engine)
    with pytest.raises(LifecycleError, match=r"Version 1 of release\.task is already in use.*'release' a new version number"):
        async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path, add_qa(read_example()))]):
            pass
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        assert await state_of(engine, run, "build") == "WAITING"
        await assert_promises_kept(engine)


async def test_a_file_whose_words_alone_have_changed_is_the_same_version(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]):
        pass
    text = "# Reviewed by Ada.\n" + read_example().replace("title: A release waits", "title: Every release waits")
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path, text)]) as engine:
        await submit_release(engine)
        await assert_promises_kept(engine)


async def test_old_tasks_keep_their_version_and_new_ones_get_the_new_one(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_engine(database_url, clock, seed=1, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine, lease_seconds=10_000)
        old = await submit_release(engine)
        await claim_one(engine, worker)
    newer = write_release(tmp_path, with_version(add_qa(read_example()), 2))
    async with open_engine(database_url, clock, seed=2, lifecycles=[newer]) as engine:
        new = await submit_release(engine)
        before = await task_of(engine, old, "build")
        await engine.complete_task(before.id, before.epoch)
        assert await state_of(engine, old, "build") == "REVIEW"
        await build(engine, worker)
        after = await task_of(engine, new, "build")
        assert after.state == "QA"
        assert after.machine_id != before.machine_id
        with pytest.raises(TransitionRefused):
            await engine.signal_task(after.id, "accept")
        await engine.for_tenant(actor="qa").signal_task(after.id, "approve")
        for task in (before, after):
            await engine.for_tenant(actor="ada").signal_task(task.id, "accept")
        assert await path_of(engine, before.id) == ["WAITING", "BUILDING", "REVIEW", "RELEASED"]
        assert await path_of(engine, after.id) == ["WAITING", "BUILDING", "QA", "REVIEW", "RELEASED"]
        assert [await state_of(engine, run) for run in (old, new)] == ["SUCCEEDED", "SUCCEEDED"]
        await assert_promises_kept(engine)


async def test_both_versions_work_side_by_side_in_two_processes(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    older = write_release(tmp_path)
    (tmp_path / "next").mkdir()
    newer = write_release(tmp_path / "next", with_version(add_qa(read_example()), 2))
    async with (
        open_engine(database_url, clock, seed=1, lifecycles=[older]) as one,
        open_engine(database_url, clock, seed=2, lifecycles=[newer]) as two,
    ):
        worker = await register(one, slots=2)
        runs = [await submit_release(engine) for engine in (one, two)]
        for engine, claim in zip((two, one), await one.claim_tasks(worker.id, 2), strict=True):
            await engine.complete_task(claim.task_id, claim.epoch)
        assert [await state_of(one, run, "build") for run in runs] == ["REVIEW", "QA"]
        await one.signal_task((await task_of(one, runs[1], "build")).id, "approve")
        for engine, run in zip((two, one), runs, strict=True):
            await engine.signal_task((await task_of(engine, run, "build")).id, "accept")
        assert [await state_of(two, run) for run in runs] == ["SUCCEEDED", "SUCCEEDED"]
        await assert_promises_kept(two)


async def test_an_engine_without_the_file_finishes_what_was_begun_with_it(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    file = write_release(tmp_path)
    async with open_engine(database_url, clock, seed=1, lifecycles=[file]) as engine:
        worker = await register(engine, lease_seconds=10_000)
        run = await submit_release(engine, NewTask(name="build", max_retries=1, backoff=STEADY), NewTask(name="ship"))
    file.unlink()
    async with open_engine(database_url, clock, seed=2) as engine:
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="flaky"))
        await pass_time(engine, clock, 1)
        for _ in range(2):
            task_id = await build(engine, worker)
            await engine.for_tenant(actor="ada").signal_task(task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"
        await submit_release(engine)
        await assert_promises_kept(engine)


async def test_the_doctor_knows_what_leads_on_without_the_file(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    async with open_engine(database_url, clock, seed=1, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine, slots=2, lease_seconds=10_000)
        await submit_release(engine, NewTask(name="broken", critical=False), NewTask(name="slow"))
        broken, slow = await engine.claim_tasks(worker.id, 2)
        await engine.fail_task(broken.task_id, broken.epoch, AttemptReport(error="no"))
        clock.advance(3601)
    async with open_engine(database_url, clock, seed=2) as engine:
        found = {each.entity_id: (each.subject, each.advice) for each in await engine.diagnose()}
    assert found[broken.task_id] == ("unretried", "A person can retry it.")
    assert found[slow.task_id][0] == "overstayed"


async def test_tasks_that_are_added_follow_what_those_of_their_run_follow(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    """Also where the file is not at hand, or has a newer version."""
    async with open_engine(database_url, clock, seed=1, lifecycles=[write_release(tmp_path)]) as engine:
        worker = await register(engine, lease_seconds=10_000)
        run = await submit(engine, NewTask(name="build"), lifecycle="release", task_count=3)
    async with open_engine(database_url, clock, seed=2) as engine:
        await engine.add_tasks(run.id, [NewTask(name="ship")])
    newer = write_release(tmp_path, with_version(add_qa(read_example()), 2))
    async with open_engine(database_url, clock, seed=3, lifecycles=[newer]) as engine:
        await engine.add_tasks(run.id, [NewTask(name="announce")])
        assert len({task.machine_id for task in await engine.list_tasks(run.id)}) == 1
        for _ in range(3):
            await engine.signal_task(await build(engine, worker), "accept")
        assert await state_of(engine, run) == "SUCCEEDED"
        await assert_promises_kept(engine)


async def test_an_engine_without_the_file_adds_the_first_task_of_a_run(
    database_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_engine(database_url, clock, seed=1, lifecycles=[write_release(tmp_path)]) as engine:
        run = await submit(engine, lifecycle="release", task_count=1)
    async with open_engine(database_url, clock, seed=2) as engine:
        await engine.add_tasks(run.id, [NewTask(name="ship")])
        assert [(task.name, task.state) for task in await engine.list_tasks(run.id)] == [("ship", "WAITING")]


UNFIT = {
    "starts work without a worker": ("- REVIEW   -> WAITING   : reject", "- REVIEW   -> BUILDING  : reject"),
    "without a worker": ("- REVIEW   -> RELEASED", "- BUILDING -> BUILDING : ask\n      - REVIEW   -> RELEASED"),
    "undoes a success": ("- BROKEN   -> WAITING   : retry", "- BROKEN, RELEASED -> WAITING : retry"),
}


@pytest.mark.parametrize("words", UNFIT)
async def test_what_the_engine_cannot_do_is_refused_when_it_is_opened(
    database_url: str, clock: ManualClock, tmp_path: Path, words: str
) -> None:
    text = (
        read_example().replace("outcome: success, sealed: true", "outcome: success") if "success" in words else read_example()
    )
    file = write_release(tmp_path, text.replace(*UNFIT[words]))
    with pytest.raises(LifecycleError, match=words):
        async with open_engine(database_url, clock, lifecycles=[file]):
            pass


def write_as_the_version_before(url: str, lifecycle: Lifecycle) -> None:
    """A database of schema 2 with this lifecycle: for that version, no move of a run waited for its tasks."""

    def read_first_migrations(package: str) -> list[Migration]:
        return read_migrations(package)[:2]

    def write_old_rules(machine_id: int, machine: Machine) -> list[RuleRow]:
        is_run = machine.kind is Kind.RUN
        rows = rule_rows(machine_id, machine)
        return [msgspec.structs.replace(row, needs_dependencies=row.needs_dependencies and not is_run) for row in rows]

    package = f"pointsman.store.{'sqlite' if url.startswith('sqlite') else 'postgres'}.store"
    with pytest.MonkeyPatch.context() as patch, prompt(url) as session:
        patch.setattr(f"{package}.read_migrations", read_first_migrations)
        patch.setattr("pointsman.store.contract.rule_rows", write_old_rules)
        with closing(open_store(url)) as store:
            # Every transaction of this version asks for quotas and for the time.
            session.ask("CREATE TABLE quota (tenant text)")
            session.ask("CREATE TABLE clock_offset AS SELECT * FROM clock")
            transaction = store.begin()
            for machine in lifecycle.machines:
                transaction.insert_machine(machine, fingerprint=take_fingerprint(machine), definition=lifecycle.text)
            transaction.commit()
            session.ask("DROP TABLE quota")
            session.ask("DROP TABLE clock_offset")
        assert session.ask("SELECT max(number) FROM migration") == [(2,)]


@pytest.mark.parametrize("database", DATABASES)
async def test_runs_of_a_lifecycle_that_the_version_before_has_stored_wait_for_their_tasks(
    database: str, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    url: str = sqlite_url(tmp_path) if database == "sqlite" else request.getfixturevalue("empty_postgres_url")
    file = adapt(tmp_path, "orchestrated")
    write_as_the_version_before(url, lifecycles.load_lifecycle(file))
    async with open_engine(url, clock):
        pass  # the first process that opens it need not have the file
    async with open_engine(url, clock, lifecycles=[file]) as engine:
        run = await submit(engine, NewTask(name="build"), lifecycle="my-orchestrated")
        await claim_one(engine, await register(engine))
        refused = pytest.raises((apsw.ConstraintError, psycopg.DatabaseError), match="all of its tasks have")
        with prompt(url) as session, refused:
            session.ask("UPDATE run SET state = 'validating' WHERE id = :run", run=run.id)
    assert await asyncio.to_thread(main, ["doctor", "--audit", "--store", url]) == 0, capsys.readouterr()
    with prompt(url) as session, pytest.raises((apsw.ConstraintError, psycopg.DatabaseError), match="rule cannot be changed"):
        session.ask("UPDATE rule SET needs_dependencies = NOT needs_dependencies")


async def test_an_added_lifecycle_is_followed_by_engines_without_its_file(database_url: str, clock: ManualClock) -> None:
    text = read_example() + "defaults: {max_attempts: 7}\n"
    async with open_engine(database_url, clock, seed=1) as one, open_engine(database_url, clock, seed=2) as other:
        with pytest.raises(UnknownName):
            await submit_release(one)
        added = await one.add_lifecycle(text)
        assert [(row.lifecycle, row.version) for row in added] == [("release", 1)] * len(added)
        assert await one.add_lifecycle(text) == added, "adding it again changes nothing"
        for engine in (one, other):
            run = await submit_release(engine)
            assert await state_of(engine, run, "build") == "WAITING"
            await engine.add_tasks(run.id, [NewTask(name="ship")])
            assert {task.max_retries for task in await engine.list_tasks(run.id)} == {6}, "as its defaults say"
        with pytest.raises(LifecycleError, match="already in use with other transitions"):
            await other.add_lifecycle(add_qa(text))
        await other.add_lifecycle(with_version(add_qa(text), 2))
        runs = [await submit_release(engine) for engine in (one, other)]
        for run in runs:
            (task,) = await one.list_tasks(run.id)
            machine = await one.get_machine(task)
            assert (machine.version, machine.state("QA").phase) == (2, Phase.HELD), "new runs follow the last version"


async def test_a_lifecycle_that_is_refused_leaves_nothing(database_url: str, clock: ManualClock, tmp_path: Path) -> None:
    refused = {
        "a shipped name": (read_example().replace("lifecycle: release", "lifecycle: approval"), "approval"),
        "a broken rule": (read_example().replace("-> REVIEW    : complete", "-> NOWHERE   : complete"), "NOWHERE"),
        "work without a worker": (read_example().replace("BROKEN   -> WAITING ", "BROKEN   -> BUILDING"), "without a worker"),
        "no mapping": ("- 1", "mapping"),
    }
    async with open_engine(database_url, clock, lifecycles=[write_release(tmp_path)]) as engine:
        before = await engine.list_definitions()
        refused["other transitions"] = (add_qa(read_example()), "already in use")
        for what, (text, why) in refused.items():
            with pytest.raises(LifecycleError, match=why):
                await engine.add_lifecycle(text)
            assert await engine.list_definitions() == before, what
