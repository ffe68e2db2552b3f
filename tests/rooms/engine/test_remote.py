"""Requests of servers: an idempotency key counts for its route, and stands for what was sent. Templates, and deleted tasks."""

from __future__ import annotations

import asyncio

import pytest
from tests.rooms.engine.harness import ManualClock, open_engine

from pointsman.engine.filters import TaskFilter
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import KeyReused, NotFound, TransitionRefused

RUN = NewRun(name="nightly", tasks=(NewTask(name="a"),))
OTHER = NewRun(name="other", tasks=(NewTask(name="b"),))


async def test_a_key_stands_for_what_was_sent_whatever_the_server_makes_of_it(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        first, receipt = engine.for_request("default", "ada", "POST /runs", "hash")
        run = await first.submit_run(RUN, request_id="k")
        assert not receipt.is_repeated
        again, receipt = engine.for_request("default", "ada", "POST /runs", "hash")
        assert await again.submit_run(OTHER, request_id="k") == run
        assert receipt.is_repeated
        changed, _ = engine.for_request("default", "ada", "POST /runs", "another hash")
        with pytest.raises(KeyReused):
            await changed.submit_run(RUN, request_id="k")
        elsewhere, receipt = engine.for_request("default", "ada", "POST /elsewhere", "hash")
        assert (await elsewhere.submit_run(RUN, request_id="k")).id != run.id
        assert not receipt.is_repeated


async def test_of_two_equal_requests_at_once_one_is_a_repetition(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        asked = [engine.for_request("default", "ada", "POST /runs", "hash") for _ in range(5)]
        runs = await asyncio.gather(*(each.submit_run(RUN, request_id="k") for each, _ in asked))
        assert len({run.id for run in runs}) == 1
        assert sorted(receipt.is_repeated for _, receipt in asked) == [False, True, True, True, True]


async def test_a_task_in_the_queue_is_not_deleted_and_one_that_waits_takes_its_run_along(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        queued = await engine.submit_run(NewRun(name="a", tasks=(NewTask(name="a"),)))
        (task,) = await engine.list_tasks(queued.id)
        with pytest.raises(TransitionRefused, match="'delete' is not allowed from here"):
            await engine.delete_task(task.id)
        held = await engine.submit_run(NewRun(name="b", lifecycle="agent", autostart=False, tasks=(NewTask(name="b"),)))
        (task,) = await engine.list_tasks(held.id)
        await engine.delete_task(task.id, reason="not needed")
        assert await engine.is_deleted(task.id)
        assert (await engine.get_run(held.id)).outcome == "canceled"
        with pytest.raises(NotFound):
            await engine.delete_task(task.id)
        assert await engine.search_tasks(TaskFilter(lifecycle="agent")) == []
        assert (await engine.list_history(task.id))[-1].to_state == (await engine.get_task(task.id)).state
