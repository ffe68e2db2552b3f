"""Each reason for waiting is named by `run`, `worker`, `watch` and `status`, in the same words."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.system.faults.project import Command, Project

from pointsman.engine.engine import Engine

TOOLS = """
[tools.shaky]
command = ["sh"]
[tools.shaky.breaker]
failure_threshold = 1
cooldown = "10m"
[tools.single]
command = ["sh"]
max_concurrent = 1
[tools.slow]
command = ["sh"]
rate = "1/10m"
"""
SLEEP = "sleep 60"


@dataclass(frozen=True)
class Reason:
    flow: str
    words: str
    then: str = ""
    """What makes it wait, when the run has begun."""


REASONS = {
    "circuit_open": Reason(
        "{name: f, tasks: {a: {tool: shaky, command: [fail.sh], retries: 1, backoff: 0s}}}", "shaky circuit is open, retry in "
    ),
    "tool_limit": Reason(
        "{name: f, tasks: {a: {tool: single, command: [sleep.sh]}, b: {tool: single, command: [sleep.sh]}}}",
        "single is at its limit of 1 at once",
    ),
    "rate_limit": Reason(
        "{name: f, tasks: {a: {tool: slow, command: [sleep.sh]}, b: {tool: slow, command: [sleep.sh]}}}",
        "slow is at its limit of 1 in 10m, retry in ",
    ),
    "capability": Reason("{name: f, tasks: {a: {run: 'true', needs_capabilities: [gpu]}}}", "no worker has the capability gpu"),
    "budget": Reason(
        "{name: f, budget_usd: 10, tasks: {a: {run: sleep 60, budget_usd: 8}, b: {run: sleep 60, budget_usd: 8}}}",
        "the budget of the run has no room: 0 of 10 USD spent, 8 reserved",
    ),
    "run_paused": Reason("{name: f, tasks: {a: {run: sleep 60}, b: {run: 'true'}}}", "he run is PAUSED", then="pause"),
}


@pytest.mark.parametrize("kind", REASONS)
async def test_a_reason_is_named_by_every_command(tmp_path: Path, kind: str) -> None:
    reason = REASONS[kind]
    (tmp_path / "pointsman.toml").write_text(TOOLS)
    (tmp_path / "sleep.sh").write_text(SLEEP)
    (tmp_path / "fail.sh").write_text("exit 1")
    project = Project(tmp_path)
    project.write_flow(reason.flow)
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(project.start("run", "flow.yaml", slots=1 if reason.then == "pause" else 2))
        await project.until(has_run)
        worker = await stack.enter_async_context(project.start("worker"))
        if reason.then:
            assert (await project.call(reason.then, "latest"))[0] == 0
        watch = await stack.enter_async_context(project.start("watch", "latest"))
        await asyncio.gather(*(says(command, reason.words) for command in (run, worker, watch)))
        async with project.start("status", "latest") as status:
            out, _ = await status.process.communicate()
        assert reason.words in out.decode()
        for command in (worker, run):
            command.send(signal.SIGTERM)
            await command.until(lambda command=command: "unning tasks." in command.said or "The worker stops." in command.said)  # type: ignore[misc]
            if command.process.returncode is None:
                command.send(signal.SIGTERM)  # the second one kills what runs
            await command.wait()


async def has_run(engine: Engine) -> bool:
    return bool(await engine.list_runs())


async def says(command: Command, words: str) -> None:
    await command.until(lambda: words in command.said)


async def test_a_lost_worker_is_named_until_another_one_notices(tmp_path: Path) -> None:
    """A worker of the same project ends what is left and releases the task; then it waits for what no other worker has."""
    project = Project(tmp_path)
    await project.submit(project.write_flow("{name: f, tasks: {a: {run: sleep 60, needs_capabilities: [gpu]}}}"))
    async with project.start("worker", "--name", "gone", "--capability", "gpu", lease_seconds=600) as gone:
        await gone.until(lambda: "a  " in gone.said)
        await gone.kill()
    async with project.start("watch", "latest") as watch:
        await says(watch, "its worker gone was killed")
        async with project.start("status", "latest") as status:
            out, _ = await status.process.communicate()
        assert "its worker gone was killed" in out.decode()
        async with project.start("worker") as worker:
            await asyncio.gather(*(says(command, "no worker has the capability gpu") for command in (worker, watch)))
            worker.send(signal.SIGTERM)
            assert await worker.wait() == 0, worker.said
