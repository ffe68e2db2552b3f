"""Clients that race: each is one coroutine with an engine of its own, played by a thread or by a process of its own.

A process takes its parts line by line, so that one that has been started can play in many scenes:

    {"url": …, "journal": …, "client": …, "actor": …, "arguments": {…}} ─▶ ready ─ go ─▶ done
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from tests.system.histories.recorder import Journal, Recorder

from pointsman import app
from pointsman.engine.submit import NewRun, NewTask
from pointsman.lifecycles import SHIPPED, load_lifecycle

BREATH_SECONDS = 0.01
WAITS = 3
"""How often somebody waits in vain before going home."""


class Part(Struct, frozen=True, kw_only=True):
    """Who plays what."""

    client: str
    actor: str
    arguments: dict[str, Any] = {}
    dies_after: int | None = None
    """The process that plays it is killed when its journal has that many lines."""


class Order(Struct, frozen=True, kw_only=True):
    url: str
    journal: str
    part: Part


# submitting


async def submit_twice(recorder: Recorder, *, count: int) -> None:
    """Everybody submits the same runs with the same keys; some ask for something else with a key that is taken."""
    for number in range(count):
        key = f"key {number}"
        await recorder.attempt("submit_run", run=new_run(f"run {number}"), request_id=key)
        if number % 3 == 0:
            await recorder.attempt("submit_run", run=new_run(f"another {recorder.client} {number}"), request_id=key)


def new_run(name: str, *names: str, **options: Any) -> NewRun:
    return NewRun(name=name, tasks=tuple(NewTask(name=each, **options) for each in names or ("a",)))


# working


async def work(
    recorder: Recorder, *, lease_seconds: float, rounds: int, naps: bool = False, holds_seconds: float = 0.0
) -> None:
    """Claim and complete; whoever naps sleeps through its lease now and then, and completes all the same."""
    chance = random.Random(recorder.client)
    worker = await recorder.ask("register_worker", name=recorder.client, lease_seconds=lease_seconds)
    patience = WAITS
    for _ in range(rounds):
        claims = await recorder.attempt("claim_tasks", worker_id=worker.id, limit=1, wait_seconds=0.15)
        patience = WAITS if claims else patience - 1
        if not patience:
            break
        for claim in claims or ():
            attempt = {"task_id": claim.task_id, "epoch": claim.epoch}
            await recorder.attempt("heartbeat", worker_id=worker.id, attempts=[(claim.task_id, claim.epoch)])
            await asyncio.sleep(lease_seconds * 1.5 if naps and chance.random() < 0.5 else holds_seconds)
            await recorder.attempt("complete_task", **attempt, output=[recorder.client, claim.epoch])


async def work_in_bulk(recorder: Recorder, *, size: int, lease_seconds: float, rounds: int) -> None:
    """Claim as much as there is, up to `size`, keep it for a moment, and complete it with one request."""
    worker = await recorder.ask("register_worker", name=recorder.client, lease_seconds=lease_seconds, max_concurrent_tasks=size)
    for _ in range(rounds):
        claims = await recorder.attempt("claim_tasks", worker_id=worker.id, limit=size, wait_seconds=lease_seconds / 4)
        await asyncio.sleep(BREATH_SECONDS)
        await recorder.complete_together([(claim.task_id, claim.epoch) for claim in claims or ()])


async def take_turns(recorder: Recorder, *, size: int, lease_seconds: float) -> None:
    """Complete what it holds, and claim the next tasks in the same commit, until there are none."""
    worker = await recorder.ask("register_worker", name=recorder.client, lease_seconds=lease_seconds, max_concurrent_tasks=size)
    patience, claims = WAITS, await recorder.ask("claim_tasks", worker_id=worker.id, limit=size)
    while patience:
        attempts = [(claim.task_id, claim.epoch) for claim in claims]
        claiming = recorder.attempt("claim_tasks", worker_id=worker.id, limit=size)
        if attempts:
            _, found = await asyncio.gather(recorder.complete_together(attempts), claiming)
        else:
            found = await claiming
        claims = found or []
        patience = WAITS if claims else patience - 1


async def lend_a_hand(recorder: Recorder, *, worker_id: str, rounds: int) -> None:
    """Be one of several that claim and complete for the same worker."""
    for _ in range(rounds):
        claims = await recorder.attempt("claim_tasks", worker_id=worker_id, limit=1)
        await asyncio.sleep(BREATH_SECONDS)
        for claim in claims or ():
            await recorder.attempt("complete_task", task_id=claim.task_id, epoch=claim.epoch)


async def haunt(recorder: Recorder, *, count: int, lease_seconds: float, rounds: int) -> None:
    """Claim everything, fall silent until the lease is nearly over, and go on as if nothing were the matter."""
    worker = await recorder.ask(
        "register_worker", name=recorder.client, lease_seconds=lease_seconds, max_concurrent_tasks=count
    )
    claims = await recorder.ask("claim_tasks", worker_id=worker.id, limit=count)
    attempts = [(claim.task_id, claim.epoch) for claim in claims]
    await asyncio.sleep(lease_seconds * 0.9)
    for number in range(rounds):
        for claim in claims:
            await recorder.attempt("complete_task", task_id=claim.task_id, epoch=claim.epoch, output=recorder.client)
            if number:  # a sign of life in the first round would renew the lease
                await recorder.attempt("heartbeat", worker_id=worker.id, attempts=attempts)
            await asyncio.sleep(BREATH_SECONDS)


async def haunt_in_bulk(recorder: Recorder, *, count: int, size: int, lease_seconds: float, rounds: int) -> None:
    """Claim a lot, and report so much of it at a time that the lease ends in between."""
    worker = await recorder.ask(
        "register_worker", name=recorder.client, lease_seconds=lease_seconds, max_concurrent_tasks=count
    )
    claims = await recorder.ask("claim_tasks", worker_id=worker.id, limit=count)
    attempts = [(claim.task_id, claim.epoch) for claim in claims]
    await asyncio.sleep(lease_seconds * 0.9)
    for _ in range(rounds):
        await complete_in_bulk(recorder, attempts=attempts, size=size, pause_seconds=BREATH_SECONDS)


async def forget(recorder: Recorder, *, count: int, lease_seconds: float) -> None:
    """Claim everything, and be alive without knowing of it."""
    worker = await recorder.ask(
        "register_worker", name=recorder.client, lease_seconds=lease_seconds, max_concurrent_tasks=count
    )
    await recorder.ask("claim_tasks", worker_id=worker.id, limit=count)
    for _ in range(int(lease_seconds * 1.5 / BREATH_SECONDS)):
        await recorder.attempt("heartbeat", worker_id=worker.id, attempts=[])
        await asyncio.sleep(BREATH_SECONDS)


async def complete_each(
    recorder: Recorder, *, attempts: list[tuple[str, int]], key: str | None = None, pause_seconds: float = 0.0
) -> None:
    """Complete attempts one after the other, whoever else may do so, too."""
    for task_id, epoch in attempts:
        await asyncio.sleep(pause_seconds)
        more = {"request_id": f"{key} {task_id}"} if key else {"output": recorder.client}
        await recorder.attempt("complete_task", task_id=task_id, epoch=epoch, **more)


async def complete_in_bulk(
    recorder: Recorder, *, attempts: list[tuple[str, int]], size: int, pause_seconds: float = 0.0
) -> None:
    """Complete attempts, `size` of them with each request, whoever else may do so, too."""
    for first in range(0, len(attempts), size):
        await asyncio.sleep(pause_seconds)
        await recorder.complete_together(attempts[first : first + size])


async def probe(recorder: Recorder, *, tool: str, rounds: int, lease_seconds: float) -> None:
    """Claim whatever a breaker lets through, look at the breaker, and report one thing or the other."""
    chance = random.Random(recorder.client)
    worker = await recorder.ask("register_worker", name=recorder.client, lease_seconds=lease_seconds)
    for _ in range(rounds):
        claims = await recorder.attempt("claim_tasks", worker_id=worker.id, limit=1, wait_seconds=0.1)
        await recorder.attempt("get_breaker", tool=tool)
        for claim in claims or ():
            if chance.random() < 0.3:
                await recorder.attempt("complete_task", task_id=claim.task_id, epoch=claim.epoch)
            else:
                await recorder.attempt("fail_task", task_id=claim.task_id, epoch=claim.epoch, error="no")


async def serve_jobs(recorder: Recorder, *, jobs: int, rounds: int, lease_seconds: float) -> None:
    """Be one of the workers that jobs compete for, submit some, and look at who belongs to whom."""
    worker = await recorder.ask("register_worker", name=recorder.client, lease_seconds=lease_seconds)
    for number in range(jobs):
        tasks = tuple(NewTask(name=name) for name in "ab")
        new = NewRun(name=f"{recorder.client} {number}", lifecycle="supervised", worker_count=2 + number % 2, tasks=tasks)
        await recorder.ask("submit_run", run=new)
    for _ in range(rounds):
        claims = await recorder.attempt("claim_tasks", worker_id=worker.id, limit=1, wait_seconds=0.05)
        await recorder.attempt("list_workers")
        for claim in claims or ():
            await recorder.attempt("complete_task", task_id=claim.task_id, epoch=claim.epoch)
            await recorder.attempt("get_run", run_id=claim.run_id)


# deciding


async def signal_each(recorder: Recorder, *, task_ids: list[str], signals: list[str], answer: str | None = None) -> None:
    """Say something to every task in turn."""
    for number, task_id in enumerate(task_ids):
        signal = signals[number % len(signals)]
        more = {"answer": answer} if signal == "answer" else {}
        await recorder.attempt("signal_task", task_id=task_id, signal=signal, actor=recorder.client, **more)


async def cancel_runs(recorder: Recorder, *, run_ids: list[str]) -> None:
    """One after the other, with so much time between that some of their tasks can be done."""
    for run_id in run_ids:
        await asyncio.sleep(BREATH_SECONDS)
        await recorder.attempt("signal_run", run_id=run_id, signal="cancel")


async def terminate_each(recorder: Recorder, *, worker_ids: list[str]) -> None:
    for worker_id in worker_ids:
        await recorder.attempt("signal_worker", worker_id=worker_id, signal="terminate", ended=True)


# looking


async def watch(recorder: Recorder, *, run_id: str, rounds: int) -> None:
    for _ in range(rounds):
        await recorder.attempt("list_tasks", run_id=run_id)
        await asyncio.sleep(BREATH_SECONDS)


ACTORS: dict[str, Callable[..., Awaitable[None]]] = {
    actor.__name__: actor
    for actor in (
        submit_twice,
        work,
        work_in_bulk,
        take_turns,
        lend_a_hand,
        haunt,
        haunt_in_bulk,
        complete_each,
        complete_in_bulk,
        probe,
        forget,
        serve_jobs,
        signal_each,
        cancel_runs,
        terminate_each,
        watch,
    )
}


async def play(order: Order, begin: Callable[[], None]) -> None:
    """Play one part: open an engine, wait until everybody is there, and write down what comes of it."""
    journal = Journal(Path(order.journal))
    async with app.open(order.url) as engine:
        recorder = Recorder(engine, order.part.client, journal)
        await asyncio.to_thread(begin)
        await ACTORS[order.part.actor](recorder, **order.part.arguments)
    journal.close()


def main() -> None:
    """Play the parts that come in, one after the other; what takes long to load is loaded before the first."""
    for name in SHIPPED:
        load_lifecycle(name)
    for line in sys.stdin:
        asyncio.run(play(msgspec.json.decode(line, type=Order), _wait_for_go))
        say("done")


def _wait_for_go() -> None:
    say("ready")
    sys.stdin.readline()


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()
