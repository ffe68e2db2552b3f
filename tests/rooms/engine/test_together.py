"""Work for a thread that is shared: together where callers meet, and alone where it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.rooms.engine.harness import ManualClock, open_engine

from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.together import MOST_TOGETHER, Together
from pointsman.errors import NotFound


async def test_what_arrives_while_the_thread_works_is_done_together_next() -> None:
    began, go_on = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def work(asked: Sequence[int]) -> list[int]:
        batches.append(list(asked))
        began.set()
        go_on.wait(20)
        return [each * 2 for each in asked]

    together = Together(work)
    first = together.ask(0)
    await asyncio.to_thread(began.wait, 20)
    others = [together.ask(number) for number in range(1, MOST_TOGETHER + 2)]
    go_on.set()
    assert await asyncio.gather(first, *others) == [number * 2 for number in range(MOST_TOGETHER + 2)]
    assert [len(batch) for batch in batches] == [1, MOST_TOGETHER, 1]


async def test_an_error_reaches_whom_it_is_about_and_the_thread_goes_on() -> None:
    def work(asked: Sequence[int]) -> list[object]:
        if 13 in asked:
            raise ZeroDivisionError
        return [ValueError(each) if each < 0 else each for each in asked]

    together = Together(work)
    answers = await asyncio.gather(together.ask(-1), together.ask(7), return_exceptions=True)
    assert isinstance(answers[0], ValueError)
    assert answers[1] == 7
    with pytest.raises(ZeroDivisionError):
        await together.ask(13)
    assert await together.ask(8) == 8


async def test_who_no_longer_waits_keeps_nobody_from_an_answer() -> None:
    together = Together(lambda asked: asked)
    gone, stays = together.ask(1), together.ask(2)
    gone.cancel()
    assert await stays == 2


async def test_rows_that_are_read_together_are_each_of_who_asked(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        runs = [await engine.submit_run(NewRun(name=f"r{number}", tasks=[NewTask(name="a")])) for number in range(5)]
        other = engine.for_tenant("other")
        asked = [engine.get_run(run.id) for run in runs] + [other.get_run(runs[0].id), engine.get_run("run_none")]
        *found, foreign, unknown = await asyncio.gather(*asked, return_exceptions=True)
        assert [run.name for run in found if not isinstance(run, BaseException)] == [run.name for run in runs]
        assert isinstance(foreign, NotFound)
        assert isinstance(unknown, NotFound)
