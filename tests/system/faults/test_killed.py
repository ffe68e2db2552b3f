"""Whoever is killed, what was acknowledged is there, the rest is not, and work goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from typing import Any

import apsw
import pytest
from tests.rooms.engine.harness import path_of, state_of, submit
from tests.system.faults.programs import Program, run

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask
from pointsman.store.rows import Worker

WORKSHOP = """
import asyncio, json, sys
from pointsman import app
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import LeaseLost

def say(*words):
    print(json.dumps(words), flush=True)

async def submit(engine, name):
    for number in range(1000):
        tasks = (NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        key = f"{name} {number}"
        run = await engine.submit_run(NewRun(name=key, tasks=tasks), request_id=key)
        say("submitted", run.id, key)

async def work(engine, name):
    worker = await engine.register_worker(name, max_concurrent_tasks=3, lease_seconds=1)
    while True:
        claims = await engine.claim_tasks(worker.id, 3, wait_seconds=5)
        for claim in claims:
            say("claimed", claim.task_id, claim.epoch)
        for claim in claims:
            try:
                await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output=[name, claim.epoch]))
            except LeaseLost:
                continue
            say("completed", claim.task_id, claim.epoch, [name, claim.epoch])

async def main(url, name):
    async with app.open(url) as engine:
        say("ready")
        await asyncio.gather(submit(engine, name), work(engine, name + " 1"), work(engine, name + " 2"))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""
"""Submits, claims and completes at the same time, and says so after each answer."""

HOLDER = """
import asyncio, sys
from pointsman import AttemptReport, app

async def main(url):
    async with app.open(url, keeps=False) as engine:
        worker = await engine.register_worker("holder", lease_seconds=1)
        (claim,) = await engine.claim_tasks(worker.id, wait_seconds=20)
        print(claim.task_id, claim.epoch, flush=True)
        beats = asyncio.create_task(beat(engine, worker, claim))
        await asyncio.to_thread(sys.stdin.readline)
        beats.cancel()
        try:
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output="of a zombie"))
            print("completed", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
        lost = (await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])).lost
        print("lost", len(lost), flush=True)

async def beat(engine, worker, claim):
    while True:
        await asyncio.sleep(0.2)
        await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])

asyncio.run(main(sys.argv[1]))
"""
"""Claims a task and holds it until it is told to complete it."""

WRITER = """
import asyncio, json, sys
from pointsman import app
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import StoreError
from pointsman.engine.operations.attempts import AttemptReport

async def main(url):
    async with app.open(url, keeps=False) as engine:
        for number in range(int(sys.argv[2])):
            try:
                run = await engine.submit_run(NewRun(name=f"run {number}", tasks=(NewTask(name="a"),)))
                print(json.dumps(["submitted", run.id, run.name]), flush=True)
            except StoreError as error:
                print(json.dumps(["refused", type(error).__name__, f"run {number}"]), flush=True)

asyncio.run(main(sys.argv[1]))
"""


class Journal:
    """All that programs have said before they were killed."""

    def __init__(self) -> None:
        self.words: list[list[Any]] = []

    def hear(self, lines: Sequence[str]) -> None:
        self.words += [json.loads(line) for line in lines]

    def of(self, verb: str) -> list[list[Any]]:
        return [words[1:] for words in self.words if words[0] == verb]


async def check_promises(engine: Engine, journal: Journal) -> None:
    """Everything acknowledged is there, and the audit trail agrees with every state."""
    for run_id, name in journal.of("submitted"):
        assert (await engine.get_run(run_id)).name == name
        assert len(await engine.list_tasks(run_id)) == 2
    for task_id, epoch in journal.of("claimed"):
        assert epoch in [attempt.epoch for attempt in await engine.list_attempts(task_id)]
    for task_id, _, output in journal.of("completed"):
        task = await engine.get_task(task_id)
        assert (task.state, json.loads(str(task.output))) == ("SUCCEEDED", output)
    await check_folding(engine)
    runs = await engine.list_runs(limit=10_000)
    assert len({each.name for each in runs}) == len(runs), "a request that was repeated has had one effect"


async def check_folding(engine: Engine) -> None:
    """fold(audit) == state, entity by entity, each along moves that follow one another."""
    stands: dict[str, str] = {}
    for run_ in await engine.list_runs(limit=10_000):
        for name in (run_.id, *(task.id for task in await engine.list_tasks(run_.id))):
            for move in await engine.list_history(name):
                assert move.from_state == stands.get(name)
                stands[name] = move.to_state
        assert stands[run_.id] == run_.state
        for task in await engine.list_tasks(run_.id):
            assert stands[task.id] == task.state
    assert not [each for each in await engine.diagnose() if each.subject == "disagreement"]


async def finish(engine: Engine) -> None:
    """What the killed have left is done by others, as soon as their leases are over."""
    worker = await engine.register_worker("heir", max_concurrent_tasks=50, lease_seconds=60)
    async with asyncio.timeout(40):
        while {each.phase for each in await engine.list_runs(limit=10_000)} != {"done"}:
            for claim in await engine.claim_tasks(worker.id, 50, wait_seconds=0.5):
                await engine.complete_task(claim.task_id, claim.epoch)
            await engine.tend()


async def test_what_was_acknowledged_survives_a_kill(database_url: str) -> None:
    journal = Journal()
    for number, words in enumerate((3, 40, 90)):
        with run(WORKSHOP, database_url, f"workshop {number}") as workshop:
            journal.hear([await workshop.hear() for _ in range(words)])
            workshop.kill()
            journal.hear(workshop.read_rest())
        async with app.open(database_url, keeps=False) as engine:
            await check_promises(engine, journal)
    assert len(journal.of("submitted")) > 10
    assert journal.of("completed")
    if database_url.startswith("sqlite"):
        with apsw.Connection(database_url.removeprefix("sqlite:///")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    async with app.open(database_url, keeps=True) as engine:
        await finish(engine)
        assert {each.state for each in await engine.list_runs(limit=10_000)} == {"SUCCEEDED"}
        await check_folding(engine)


async def test_two_programs_one_of_which_is_killed(database_url: str) -> None:
    journal = Journal()
    with run(WORKSHOP, database_url, "survivor") as survivor, run(WORKSHOP, database_url, "victim") as victim:
        for program in (survivor, victim):
            journal.hear([await program.hear() for _ in range(40)])
        victim.kill()
        journal.hear(victim.read_rest())
        journal.hear([await survivor.hear() for _ in range(40)])
        survivor.kill()
        journal.hear(survivor.read_rest())
    async with app.open(database_url, keeps=False) as engine:
        await check_promises(engine, journal)
    async with app.open(database_url, keeps=True) as engine:
        await finish(engine)
        await check_folding(engine)


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@needs_strace
@pytest.mark.parametrize("when", [3, 5, 6, 9])
async def test_a_kill_at_the_very_moment_of_a_commit(sqlite_url: str, when: int) -> None:
    """At an exact write to the disk: what was being written was not acknowledged, and what was acknowledged is there."""
    inject = ("strace", "-f", "-o", "/dev/null", "-e", f"inject=fdatasync:signal=SIGKILL:when={when}")
    journal = Journal()
    with run(WRITER, sqlite_url, "30", under=inject) as writer:
        journal.hear(await asyncio.to_thread(writer.read_rest))
    assert len(journal.of("submitted")) < 30, "it was killed"
    async with app.open(sqlite_url, keeps=False) as engine:
        names = {each.name for each in await engine.list_runs(limit=1000)}
        assert {name for _, name in journal.of("submitted")} <= names
        assert len(names) <= len(journal.of("submitted")) + 1
        await check_folding(engine)


@needs_strace
async def test_nothing_is_acknowledged_that_the_disk_did_not_take(sqlite_url: str) -> None:
    """A flush that fails is an error for whoever waits for it, and work goes on with the next."""
    inject = ("strace", "-f", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO:when=6+7")
    journal = Journal()
    with run(WRITER, sqlite_url, "20", under=inject) as writer:
        journal.hear(await asyncio.to_thread(writer.read_rest))
        assert writer.wait() == 0
    assert len(journal.words) == 20, "each was answered"
    assert journal.of("refused"), "not every flush was taken"
    async with app.open(sqlite_url, keeps=False) as engine:
        names = [each.name for each in await engine.list_runs(limit=1000)]
        assert sorted(names) == sorted(name for _, name in journal.of("submitted"))
        await check_folding(engine)


# workers


async def hold(program: Program) -> tuple[str, int]:
    task_id, epoch = (await program.hear()).split()
    return task_id, int(epoch)


async def take_over(engine: Engine, task_id: str) -> tuple[Worker, int]:
    """Somebody else gets the task once its lease has expired, which takes as long as the lease and the sweep."""
    worker = await engine.register_worker("heir", lease_seconds=60)
    (claim,) = await asyncio.wait_for(engine.claim_tasks(worker.id, wait_seconds=20), 25)
    assert claim.task_id == task_id
    return worker, claim.epoch


async def test_the_task_of_a_killed_worker_is_claimable_again(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        await submit(engine, NewTask(name="a"))
        with run(HOLDER, database_url) as holder:
            task_id, epoch = await hold(holder)
            holder.kill()
        _, again = await take_over(engine, task_id)
        assert (epoch, again) == (1, 2)
        await engine.complete_task(task_id, again)
        assert (await engine.get_task(task_id)).state == "SUCCEEDED"


async def test_a_worker_that_is_alive_keeps_its_task(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        await submit(engine, NewTask(name="a"))
        with run(HOLDER, database_url) as holder:
            task_id, _ = await hold(holder)
            worker = await engine.register_worker("heir")
            assert await engine.claim_tasks(worker.id, wait_seconds=3) == [], "three leases long"
            holder.tell()
            assert await holder.hear() == "completed"
        assert (await engine.get_task(task_id)).state == "SUCCEEDED"


@pytest.mark.parametrize("meanwhile", ["swept", "held", "completed"])
async def test_a_zombie_is_refused_and_changes_nothing(database_url: str, meanwhile: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        run_ = await submit(engine, NewTask(name="a"))
        with run(HOLDER, database_url) as zombie:
            task_id, _ = await hold(zombie)
            zombie.stop()
            if meanwhile == "swept":
                for _ in range(500):
                    await engine.tend()
                    if await state_of(engine, run_, "a") == "QUEUED":
                        break
                    await asyncio.sleep(0.05)
            else:
                _, epoch = await take_over(engine, task_id)
                if meanwhile == "completed":
                    await engine.complete_task(task_id, epoch, AttemptReport(output="of the heir"))
            before = await engine.get_task(task_id), await path_of(engine, task_id), await engine.list_attempts(task_id)
            zombie.tell()
            zombie.wake()
            assert await zombie.hear() == "LeaseLost"
            assert await zombie.hear() == "lost 1"
        after = await engine.get_task(task_id), await path_of(engine, task_id), await engine.list_attempts(task_id)
        assert after == before
