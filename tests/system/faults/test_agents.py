"""Workers that run coding agents are killed: sessions go on, answers are given once, and no session is used twice at a time."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest
from tests.rooms.worker.stand_in import Claude, StandIn, err, message, out
from tests.system.faults.inquest import check_everything
from tests.system.faults.project import Project, find_work, tasks_of

from pointsman.engine.engine import Engine

SAYS = Claude()
NAMES = ("works", "deaf", "begins", "hears")
FLOW = "name: f\ntasks:\n" + "".join(f"  {name}: {{agent: claude, prompt: Do it}}\n" for name in NAMES)
INTERRUPTED = "Your previous execution was interrupted. Please continue where you left off."
ANSWER = "--east 'or' \"west\"\n"


async def test_who_is_killed_beside_agents_loses_no_session_no_cost_and_no_answer(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose worker dies before it said anything may not have heard the answer, and is told again; later it is not.

    Real agents print the id of their session and warnings before they store what they were told.
    """
    claude = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{claude.bin}:/usr/bin:/bin")
    hear, begin, done = ("hear", 0), out(*SAYS.begin("s-1")), out(*SAYS.succeed("done", 0.25))
    asks = [hear, begin, ("write", ("POINTSMAN_QUESTION", "Where?")), out(*SAYS.succeed("?"))]
    waits = [("run", "setsid sleep 1000 &"), ("pause", 1000)]
    claude.plan_each(
        works=[[hear, begin, out(*SAYS.succeed("not yet", 0.5)), *waits], [hear, begin, done]],
        deaf=[asks, [hear, *waits], [hear, begin, done]],
        begins=[asks, [hear, err("a warning\n"), begin, *waits], [hear, begin, done]],
        hears=[asks, [hear, begin, out(SAYS.say("West it is.")), *waits], [hear, begin, done]],
    )
    project = Project(tmp_path, database_url)
    project.write_flow(FLOW)
    async with project.start("run", "flow.yaml", slots=4) as command:
        await project.until(_have_asked)
        await command.kill()
    await asyncio.gather(*(project.show("answer", "latest", name, "--", ANSWER) for name in ("deaf", "begins", "hears")))
    async with project.start("resume", slots=4) as command:
        begun, hears = (next((tmp_path / ".pointsman/logs").glob(f"*/{name}")) / "2.log" for name in ("begins", "hears"))
        await command.until(lambda: len(claude.calls_of("deaf")) == 2 and begun.exists() and b"s-1" in begun.read_bytes())
        await command.until(lambda: hears.exists() and b"West" in hears.read_bytes())
        await command.until(lambda: "works  SUCCEEDED" in command.said)
        await command.kill()
    code, said = await project.call("resume", slots=4)
    assert code == 0, said
    calls = {name: claude.calls_of(name) for name in NAMES}
    assert {name: [message(call) for call in each] for name, each in calls.items()} == {
        "works": ["Do it", INTERRUPTED],
        "deaf": ["Do it", ANSWER, ANSWER],
        "begins": ["Do it", ANSWER, f"{INTERRUPTED}\n\nIf you have not read this yet:\n\n{ANSWER}"],
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
    return bool(tasks and all(tasks[name].question for name in NAMES[1:]) and tasks["works"].cost_usd)
