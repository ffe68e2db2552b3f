"""A forecast says of every signal that a person may send what the engine then does."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.rooms.views.stories import STORIES, Story, act, describe, split, states_of

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.people import PEOPLE
from pointsman.errors import RequestInvalid, TransitionRefused
from pointsman.kernel.machine import Kind
from pointsman.lifecycles import SHIPPED
from pointsman.store.rows import Run, Task
from pointsman.views.forecast import Forecast
from pointsman.views.sources import RunRecords, load_run
from pointsman.world import SystemClock


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_what_is_foreseen_is_what_happens(tmp_path: Path, lifecycle: str) -> None:
    seen: set[str] = set()
    visited: dict[Kind, set[str]] = {Kind.RUN: set(), Kind.TASK: set()}
    for number, story in enumerate(story for story in STORIES if story.lifecycle == lifecycle):
        await walk(story, tmp_path / f"{number}.db", seen, visited)
    assert {kind: visited[kind] for kind in states_of(lifecycle)} == states_of(lifecycle), "stories must visit every state"


async def walk(story: Story, file: Path, seen: set[str], visited: dict[Kind, set[str]]) -> None:
    async with app.open(f"sqlite:///{file}", keeps=False) as engine:
        run = await engine.submit_run(story.new_run)
        for action in ("", *split(story.actions)):
            await act(engine, run, action) if action else None
            for move in await engine.list_transitions(run_id=run.id):
                visited.setdefault(Kind(move.kind), set()).add(move.to_state)
            situation = await describe(engine, run)
            if situation not in seen:
                seen.add(situation)
                await compare(engine, run, file, f"{story}, after {action!r}: {situation}")


async def compare(engine: Engine, run: Run, file: Path, where: str) -> None:
    """Every signal that the machines know here, on a copy of the database each."""
    records = await load_run(engine, await engine.get_run(run.id))
    for task in (None, *records.tasks):
        for signal in PEOPLE[Kind.TASK if task else Kind.RUN]:
            if records.takes(task or records.run, signal):
                foreseen = foresee(records, task, signal)
                copy = file.with_name("copy.db")
                copy.unlink(missing_ok=True)
                apsw.Connection(str(file)).execute("VACUUM INTO ?", (str(copy),))
                happened = await send(f"sqlite:///{copy}", run, task, signal)
                assert foreseen == happened, f"{signal} to {task.name if task else 'the run'}: {where}"


def foresee(records: RunRecords, task: Task | None, signal: str) -> tuple[str, str | None] | None:
    """The states of the run and the task afterwards; None where it is refused."""
    forecast = Forecast(records, SystemClock().now())
    accepted = forecast.signal_task(task, signal) if task else forecast.signal_run(signal)
    return (forecast.run.name, forecast.state(task).name if task else None) if accepted else None


async def send(url: str, run: Run, task: Task | None, signal: str) -> tuple[str, str | None] | None:
    async with app.open(url, keeps=False) as engine:
        try:
            if task:
                await engine.signal_task(task.id, signal, answer="yes" if signal == "answer" else None)
            else:
                await engine.signal_run(run.id, signal)
        except (TransitionRefused, RequestInvalid):
            return None
        return (await engine.get_run(run.id)).state, (await engine.get_task(task.id)).state if task else None
