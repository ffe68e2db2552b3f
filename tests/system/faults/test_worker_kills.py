"""Whoever runs a flow is killed, again and again at any moment: what was done stays done, and the rest is done in the end."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.system.faults.inquest import check_effects, check_everything, find_inhabitants
from tests.system.faults.project import PATIENCE_SECONDS, Command, Project, find_work

from pointsman.engine.engine import Engine
from pointsman.store.rows import Run, Task

KILLS = 40
"""In all; `make campaign` kills as many workers as you like."""
ROUNDS = 2
FLOWS = ("one", "two")
"""At the same time, on one database and in one project."""
DANGER = 2
"""Interruptions of one task: after one more than three it would be taken for one that kills its workers."""

FLOW = """
name: {name}
defaults: {{retries: 3, backoff: 0.01}}
tasks:
  first:  {{run: "{effect}"}}
  flaky:  {{run: "{effect}; test $POINTSMAN_ATTEMPT -gt 1", needs: [first]}}
  fan:    {{run: "{effect}", foreach: [1, 2, 3], needs: [first]}}
  looked: {{run: "{effect}", checks: [{{run: sleep 0.02}}], needs: [first]}}
  never:  {{run: "{effect}", when: "false", needs: [fan]}}
  middle: {{run: "{effect}", needs: [fan, flaky, looked]}}
  last:   {{run: "{effect}", needs: [middle]}}
"""
EFFECT = (
    "mkdir -p effects/$POINTSMAN_RUN_ID; mine=effects/$POINTSMAN_RUN_ID/$POINTSMAN_TASK_NAME; "
    "exec 9>$mine.lock; flock -n 9 || echo $mine $POINTSMAN_EPOCH >> overlaps.txt; "
    "sleep 0.02; echo $POINTSMAN_EPOCH >> $mine.txt; sleep 0.02"
)
"""Once for each attempt that gets there; two attempts at the same time are noted."""


class Harassed:
    """One flow, whose process is killed until it has had enough."""

    def __init__(self, project: Project, name: str, chance: Random) -> None:
        self._project = project
        self._name = name
        self._chance = chance
        self.kills = 0
        self.runs: list[Run] = []

    async def suffer(self, kills: int) -> None:
        """Run it, however many runs it takes until it has been killed so often, and let the last one finish."""
        while self.kills < kills or not self.runs or self.runs[-1].outcome is None:
            run, tasks = await self._look()
            spared = {task.id for task in tasks if task.reclaim_count >= DANGER and task.outcome is None}
            command = ("run", f"{self._name}.yaml") if run is None or run.outcome else ("resume", run.id)
            async with self._project.start(*command, "--json") as started:
                if self.kills < kills:
                    await self._kill_at_some_moment(started, spared)
                else:
                    assert await started.wait() == 0, started.said
            await self._look()

    async def _look(self) -> tuple[Run | None, list[Task]]:
        async with self._project.engine() as engine:
            self.runs = [run for run in reversed(await engine.list_runs(limit=1000)) if run.name == self._name]
            return (self.runs[-1], await engine.list_tasks(self.runs[-1].id)) if self.runs else (None, [])

    async def _kill_at_some_moment(self, command: Command, spared: set[str]) -> None:
        """While it starts, or some events later: by what it says and not by the clock, for machines are not equally quick."""
        if self._chance.random() < 0.2 and not spared:
            await asyncio.sleep(self._chance.uniform(0, 0.5))
        else:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._wait_for_events(command, self._chance.randint(1, 10), spared)
            await asyncio.sleep(self._chance.uniform(0, 0.05))
        await command.kill()
        if command.process.returncode == -signal.SIGKILL:
            self.kills += 1
        else:
            assert command.process.returncode == 0, command.said

    async def _wait_for_events(self, command: Command, count: int, spared: set[str]) -> None:
        async for event in command.events():
            if event["to_state"] in ("SUCCEEDED", "FAILED"):
                spared.discard(event["entity_id"])
            if not spared:
                count -= 1
            if count <= 0:
                return


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_flow_that_is_killed_at_any_moment_is_finished_and_nothing_is_done_twice(
    database_url: str, tmp_path: Path, number: int
) -> None:
    chance = Random(f"{database_url.partition(':')[0]} {number} {KILLS}")
    project = Project(tmp_path, database_url)
    (tmp_path / "pointsman.toml").touch()
    harassed = []
    for name in FLOWS:
        project.write_flow(FLOW.format(name=name, effect=EFFECT), f"{name}.yaml")
        harassed.append(Harassed(project, name, Random(chance.random())))
    share = -(-KILLS // (2 * ROUNDS * len(FLOWS)))
    await asyncio.gather(*(each.suffer(share) for each in harassed))
    interrupted = 0
    async with project.engine() as engine:
        for each in harassed:
            for run in each.runs:
                assert run.state == "SUCCEEDED"
                interrupted += len(await check_effects(engine, run.id, tmp_path / "effects" / run.id))
    assert not (tmp_path / "overlaps.txt").exists(), "what a killed worker has left is ended before it is done again"
    assert interrupted, "some were killed in the middle of something"
    await check_everything(project)


LEFT = """
name: left
tasks:
  left: {run: "{effect}; if [ $POINTSMAN_EPOCH = 1 ]; then setsid sleep 1000 & touch began; sleep 1000; fi"}
""".replace("{effect}", EFFECT)


async def test_what_a_killed_worker_has_left_running_is_ended_before_it_is_done_again(
    database_url: str, tmp_path: Path
) -> None:
    project = Project(tmp_path, database_url)
    project.write_flow(LEFT)
    async with project.start("run", "flow.yaml") as command:
        await command.until((tmp_path / "began").exists)
        await command.kill()
    async with project.engine() as engine:
        (run,) = await engine.list_runs()
    assert len(find_work(run)) >= 2, "nobody was there to end it"
    code, said = await project.call("resume")
    assert code == 0, said
    assert not (tmp_path / "overlaps.txt").exists()
    async with project.engine() as engine:
        assert len(await check_effects(engine, run.id, tmp_path / "effects" / run.id)) == 1
    await check_everything(project)


SLOW = "name: slow\ntasks:\n  slow: {run: touch began; test $POINTSMAN_EPOCH = 2 || sleep 1000}\n"


async def test_an_interrupted_attempt_took_the_same_time_whenever_it_is_shown(sqlite_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, sqlite_url)
    project.write_flow(SLOW)
    async with project.start("run", "flow.yaml") as command:
        await command.until((tmp_path / "began").exists)
        await command.kill()
    before, shown = await _ask(project, "history", "latest", "slow", "--json"), await project.show("history", "latest", "slow")
    status = await _ask(project, "status", "latest", "--json")
    (task,) = status["tasks"]
    took = before["attempts"][0]["took_seconds"]
    assert task["took_seconds"] == task["attempt_seconds"]["1"] == took
    assert "interrupted" in shown
    assert "still running" not in shown
    assert (await project.call("resume"))[0] == 0
    after, status = (
        await _ask(project, "history", "latest", "slow", "--json"),
        await _ask(project, "status", "latest", "--json"),
    )
    assert [attempt["ended_by"] for attempt in after["attempts"]] == ["lease_lost", "complete"]
    assert after["attempts"][0]["took_seconds"] == took, "the time without a worker is not counted"
    assert status["tasks"][0]["took_seconds"] == sum(attempt["took_seconds"] for attempt in after["attempts"])


async def _ask(project: Project, *arguments: str) -> Any:
    return json.loads(await project.show(*arguments))


async def test_what_a_worker_that_was_killed_beside_another_one_has_left_is_ended_before_it_is_done_again(
    database_url: str, tmp_path: Path
) -> None:
    """The other one looks for dead colleagues: it does not wait for the lease, and there is no overlap."""
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(LEFT))
    async with project.start("worker", lease_seconds=PATIENCE_SECONDS) as killed:
        await killed.until((tmp_path / "began").exists)
        async with project.start("worker", lease_seconds=3) as other:
            await project.until(_has_two_workers)
            await killed.kill()
            await project.until(lambda engine: _has_succeeded(engine, run_id))
            other.send(signal.SIGTERM)
            assert await other.wait() == 0, other.said
    assert not (tmp_path / "overlaps.txt").exists()
    await check_everything(project)


async def _has_two_workers(engine: Engine) -> bool:
    return len(await engine.list_workers()) == 2


async def _has_succeeded(engine: Engine, run_id: str) -> bool:
    return (await engine.get_run(run_id)).state == "SUCCEEDED"


async def test_resume_ends_what_a_killed_worker_has_left_although_the_run_has_ended(database_url: str, tmp_path: Path) -> None:
    """A worker on another machine has finished it meanwhile."""
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(LEFT))
    async with project.start("worker") as killed:
        await killed.until((tmp_path / "began").exists)
        await killed.kill()
    async with project.engine() as engine:
        (dead,) = await engine.list_workers()
        await engine.signal_worker(dead.id, "terminate", ended=True, reason="it is gone")
        worker = await engine.register_worker("elsewhere")
        (claim,) = await engine.claim_tasks(worker.id)
        await engine.complete_task(claim.task_id, claim.epoch)
        await engine.signal_worker(worker.id, "terminate", ended=True, reason="it leaves")
    assert len(find_work(run_id)) >= 2, "nobody was there to end it"
    code, said = await project.call("resume")
    assert code == 0, said
    assert not find_work(run_id)


ESCAPE = """
import os
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.execve("/bin/sh", ["sh", "-c", "echo $$ > escaped; exec sleep 1000"], {})
"""


async def test_a_daemon_that_has_thrown_away_its_environment_does_not_outlive_a_killed_worker(
    database_url: str, tmp_path: Path
) -> None:
    """It has no parent, no session and no name of ours; `workers` says what finds it all the same."""
    project = Project(tmp_path, database_url)
    (tmp_path / "escape.py").write_text(ESCAPE)
    project.write_flow("name: escape\ntasks: {a: {run: 'test -e escaped || { python3 escape.py; sleep 1000; }'}}")
    async with project.start("run", "flow.yaml") as command:
        await command.until(lambda: (tmp_path / "escaped").exists() and (tmp_path / "escaped").read_text())
        async with project.start("workers", "--json") as workers:
            told, _ = await workers.process.communicate()
        await command.kill()
    assert json.loads(told)[0]["protection"] in ("cgroup", "mark")
    assert len(find_inhabitants(tmp_path)) >= 2, "nobody was there to end it"
    code, said = await project.call("resume")
    assert code == 0, said
    await check_everything(project)
