"""Workers that run coding agents are killed: sessions go on, answers are given once, and no session is used twice at a time."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest
from tests.rooms.worker.stand_in import Claude, StandIn, message, out
from tests.system.faults.inquest import check_everything
from tests.system.faults.project import Project, find_work, tasks_of

from pointsman.engine.engine import Engine

SAYS = Claude()
FLOW = "name: f\ntasks:\n" + "".join(f"  {name}: {{agent: claude, prompt: Do it}}\n" for name in ("works", "deaf", "hears"))
INTERRUPTED = "Your previous execution was interrupted. Please continue where you left off."
ANSWER = "--east 'or' \"west\"\n"


async def test_who_is_killed_beside_agents_loses_no_session_no_cost_and_no_answer(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose worker dies before it said anything may not have heard the answer, and is told again; later it is not."""
    claude = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{claude.bin}:/usr/bin:/bin")
    hear, begin, done = ("hear", 0), out(*SAYS.begin("s-1")), out(*SAYS.succeed("done", 0.25))
    asks = [hear, begin, ("write", ("POINTSMAN_QUESTION", "Where?")), out(*SAYS.succeed("?"))]
    waits = [("run", "setsid sleep 1000 &"), ("pause", 1000)]
    claude.plan_each(
        works=[[hear, begin, out(*SAYS.succeed("not yet", 0.5)), *waits], [hear, begin, done]],
        deaf=[asks, [hear, *waits], [hear, begin, done]],
        hears=[asks, [hear, begin, out(SAYS.say("West it is.")), *waits], [hear, begin, done]],
    )
    project = Project(tmp_path, database_url)
    project.write_flow(FLOW)
    async with project.start("run", "flow.yaml", slots=3) as command:
        await project.until(_have_asked)
        await command.kill()
    await asyncio.gather(*(project.show("answer", "latest", name, "--", ANSWER) for name in ("deaf", "hears")))
    async with project.start("resume", slots=3) as command:
        (log,) = [folder / "2.log" for folder in (tmp_path / ".pointsman/logs").glob("*/hears")]
        await command.until(lambda: len(claude.calls_of("deaf")) == 2 and log.exists() and b"West" in log.read_bytes())
        await command.until(lambda: "works  SUCCEEDED" in command.said)
        await command.kill()
    code, said = await project.call("resume", slots=3)
    assert code == 0, said
    calls = {name: claude.calls_of(name) for name in ("works", "deaf", "hears")}
    assert {name: [message(call) for call in each] for name, each in calls.items()} == {
        "works": ["Do it", INTERRUPTED],
        "deaf": ["Do it", ANSWER, ANSWER],
        "hears": ["Do it", ANSWER, INTERRUPTED],
    }
    assert all("--resume=s-1" in call.argv for each in calls.values() for call in each[1:])
    async with project.engine() as engine:
        (run,) = await engine.list_runs()
        tasks = await tasks_of(engine, run.id)
    assert tasks["works"].cost_usd == Decimal("0.75"), "what was reported before the kill is kept"
    assert not find_work(run)
    await check_everything(project)


async def _have_asked(engine: Engine) -> bool:
    runs = await engine.list_runs()
    tasks = await tasks_of(engine, runs[0].id) if runs else {}
    return bool(tasks and tasks["deaf"].question and tasks["hears"].question and tasks["works"].cost_usd)
