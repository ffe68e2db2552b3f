"""Scenes in which clients get in each other's way: what there is at first, who plays, and what is looked at in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from tests.system.histories.actors import Part, new_run
from tests.system.histories.record import Record
from tests.system.histories.recorder import Journal, Recorder, read_journals

from pointsman import app
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask

TASKS = 8
BULK = 12
"""More than it takes for tasks to go together, even when somebody takes one or two of them out."""
LEASE_SECONDS = 0.25
LONG_LEASE_SECONDS = 60.0
TOOL = "hammer"

Scene = Callable[[Recorder], Awaitable[list[Part]]]


class Cast(Protocol):
    def play(self, url: str, folder: Path, parts: list[Part]) -> None: ...


def perform(scene: Scene, cast: Cast, url: str, folder: Path) -> list[Record]:
    """Set a scene, let it be played, look at what has become of everything; all that anybody saw."""
    folder.mkdir()
    journal = Journal(folder / "director")
    parts = asyncio.run(_direct(url, journal, scene))
    cast.play(url, folder, parts)
    asyncio.run(_direct(url, journal, _look_at_everything))
    journal.close()
    return read_journals(folder)


async def _direct(url: str, journal: Journal, direct: Scene) -> list[Part]:
    async with app.open(url) as engine:
        return await direct(Recorder(engine, "director", journal))


async def _look_at_everything(director: Recorder) -> list[Part]:
    for run in await director.ask("list_runs"):
        await director.ask("list_tasks", run_id=run.id)
        await director.ask("get_run", run_id=run.id)
    for breaker in await director.ask("list_breakers"):
        await director.ask("get_breaker", tool=breaker.tool)
    await director.ask("list_workers")
    return []


# what there is at first


async def submit(director: Recorder, new: NewRun) -> tuple[str, list[str]]:
    run = await director.ask("submit_run", run=new)
    return run.id, [task.id for task in await director.ask("list_tasks", run_id=run.id)]


async def submit_tasks(director: Recorder, count: int = TASKS, **options: bool | int | str) -> tuple[str, list[str]]:
    return await submit(director, new_run("run", *(f"task {number}" for number in range(count)), **options))


async def hold(
    director: Recorder, lease_seconds: float, count: int = TASKS, **options: Any
) -> tuple[str, str, list[tuple[str, int]]]:
    """A worker with a task in every hand: the run, the worker, and what it holds."""
    run_id, _ = await submit_tasks(director, count, max_reclaims=100, **options)
    worker = await director.ask("register_worker", name="holder", lease_seconds=lease_seconds, max_concurrent_tasks=count)
    claims = await director.ask("claim_tasks", worker_id=worker.id, limit=count)
    return run_id, worker.id, [(claim.task_id, claim.epoch) for claim in claims]


def heirs(count: int, *, rounds: int = TASKS) -> list[Part]:
    """Workers that take what others have lost, and keep it for a moment; one of them dies on the way."""
    arguments = {"lease_seconds": LEASE_SECONDS * 2, "rounds": rounds, "holds_seconds": 0.03}
    return [
        Part(client=f"heir {number}", actor="work", arguments=arguments, dies_after=5 if number == 1 else None)
        for number in range(count)
    ]


def watcher(run_id: str) -> Part:
    return Part(client="watcher", actor="watch", arguments={"run_id": run_id, "rounds": 12})


# the scenes


async def idempotent_twins(director: Recorder) -> list[Part]:
    await director.ask("list_runs")
    return [
        Part(client=f"twin {number}", actor="submit_twice", arguments={"count": 12}, dies_after=9 if number == 2 else None)
        for number in range(4)
    ]


async def racing_reclaimers(director: Recorder) -> list[Part]:
    run_id, _ = await submit_tasks(director, max_reclaims=100)
    arguments = {"lease_seconds": LEASE_SECONDS, "rounds": 6, "naps": True}
    return [
        watcher(run_id),
        *(
            Part(client=f"napper {number}", actor="work", arguments=arguments, dies_after=6 if number == 2 else None)
            for number in range(3)
        ),
    ]


async def complete_against_cancel(director: Recorder) -> list[Part]:
    run_id, _, attempts = await hold(director, LONG_LEASE_SECONDS)
    task_ids = [task_id for task_id, _ in attempts]
    cancel = {"task_ids": task_ids, "signals": ["cancel"]}
    return [
        watcher(run_id),
        Part(client="worker", actor="complete_each", arguments={"attempts": attempts}),
        Part(client="ada", actor="signal_each", arguments=cancel),
        Part(client="bob", actor="signal_each", arguments=cancel | {"task_ids": task_ids[::-1]}, dies_after=7),
    ]


async def zombie_against_heir(director: Recorder) -> list[Part]:
    """The zombie's completions come before, at and after the end of its lease."""
    run_id, _ = await submit_tasks(director, max_reclaims=100)
    arguments = {"count": TASKS, "lease_seconds": LEASE_SECONDS, "rounds": 4}
    return [watcher(run_id), Part(client="zombie", actor="haunt", arguments=arguments), *heirs(2)]


async def release_against_complete(director: Recorder) -> list[Part]:
    run_id, task_ids = await submit_tasks(director, max_reclaims=100)
    workers, attempts = [], []
    for _ in task_ids:
        worker = await director.ask("register_worker", name="holder", lease_seconds=LONG_LEASE_SECONDS)
        (claim,) = await director.ask("claim_tasks", worker_id=worker.id)
        workers.append(worker.id)
        attempts.append((claim.task_id, claim.epoch))
    return [
        watcher(run_id),
        Part(client="worker", actor="complete_each", arguments={"attempts": attempts}),
        Part(client="supervisor", actor="terminate_each", arguments={"worker_ids": workers}),
        *heirs(2, rounds=4),
    ]


async def forgotten_claims(director: Recorder) -> list[Part]:
    """A worker that never heard of its claims lets go of them after a lease, while somebody reports them all the same."""
    run_id, task_ids = await submit_tasks(director, max_reclaims=100)
    slowly = {"attempts": [(task_id, 1) for task_id in task_ids], "pause_seconds": LEASE_SECONDS / 4}
    return [
        watcher(run_id),
        Part(client="forgetful", actor="forget", arguments={"count": TASKS, "lease_seconds": LEASE_SECONDS}),
        Part(client="worker", actor="complete_each", arguments=slowly),
        *heirs(1, rounds=4),
    ]


async def duplicate_completions(director: Recorder) -> list[Part]:
    run_id, _, attempts = await hold(director, LONG_LEASE_SECONDS)
    with_key = {"attempts": attempts, "key": "completion"}
    return [
        watcher(run_id),
        Part(client="one", actor="complete_each", arguments=with_key),
        Part(client="two", actor="complete_each", arguments=with_key, dies_after=7),
        Part(client="three", actor="complete_each", arguments={"attempts": attempts}),
    ]


async def two_probes(director: Recorder) -> list[Part]:
    """The breaker opens with the first failure, and soon lets a probe through, for which everybody waits.

    Each task has a run of its own, so that nobody has to wait for anything but the breaker.
    """
    await director.ask("declare_tool", tool=TOOL, failure_threshold=1, cooldown_seconds=LEASE_SECONDS / 2)
    steady = Backoff(base_seconds=0.01, jitter=0.0)
    task = NewTask(name="task", tool=TOOL, max_retries=50, max_reclaims=50, backoff=steady)
    for number in range(12):
        await submit(director, NewRun(name=f"run {number}", tasks=(task,)))
    worker = await director.ask("register_worker", name="first", lease_seconds=LONG_LEASE_SECONDS)
    (claim,) = await director.ask("claim_tasks", worker_id=worker.id)
    await director.ask("fail_task", task_id=claim.task_id, epoch=claim.epoch, error="no")
    arguments = {"tool": TOOL, "rounds": 8, "lease_seconds": LEASE_SECONDS * 2}
    return [
        Part(client=f"prober {number}", actor="probe", arguments=arguments, dies_after=6 if number == 2 else None)
        for number in range(4)
    ]


async def two_approvers(director: Recorder) -> list[Part]:
    """Some gates ask for two people, some expire meanwhile, some both."""
    tasks = [
        NewTask(
            name=f"gate {number}",
            gate=True,
            quorum=1 + number % 2,
            approval_seconds=(None, LEASE_SECONDS / 4)[number // 2 % 2],
            critical=False,  # the end of the run would decide the others
        )
        for number in range(TASKS * 2)
    ]
    run_id, task_ids = await submit(director, NewRun(name="run", tasks=tuple(tasks)))
    signals = {"ada": ["approve"], "bob": ["approve"] * 4 + ["reject"] * 4, "eve": ["approve", "reject", "cancel"]}
    return [
        watcher(run_id),
        *(
            Part(
                client=client,
                actor="signal_each",
                arguments={"task_ids": task_ids, "signals": said},
                dies_after=9 if client == "eve" else None,
            )
            for client, said in signals.items()
        ),
    ]


async def two_answers(director: Recorder) -> list[Part]:
    """Some of what is answered is canceled."""
    # None is critical: the end of the run would decide the others.
    run_id, _, attempts = await hold(director, LONG_LEASE_SECONDS, critical=False)
    for task_id, epoch in attempts:
        await director.ask("ask", task_id=task_id, epoch=epoch, question="which?", session_id="session")
    arguments = {"task_ids": [task_id for task_id, _ in attempts]}
    signals = {"ada": ["answer"], "bob": ["answer"], "eve": ["answer", "answer", "cancel"]}
    return [
        watcher(run_id),
        *(
            Part(
                client=client,
                actor="signal_each",
                arguments=arguments | {"signals": said, "answer": f"of {client}"},
                dies_after=7 if client == "eve" else None,
            )
            for client, said in signals.items()
        ),
        *heirs(1),
    ]


async def gangs_for_many_jobs(director: Recorder) -> list[Part]:
    await director.ask("list_workers")
    arguments = {"rounds": 8, "lease_seconds": LONG_LEASE_SECONDS}
    return [
        *(
            Part(client=f"hand {number}", actor="serve_jobs", arguments=arguments | {"jobs": 2 - number % 2})
            for number in range(3)
        ),
        Part(
            client="victim",
            actor="serve_jobs",
            arguments={"jobs": 0, "rounds": 8, "lease_seconds": LEASE_SECONDS},
            dies_after=9,
        ),
    ]


async def many_hands_of_one_worker(director: Recorder) -> list[Part]:
    """It holds a task all the time and has room for two more, and each of them claims whenever its own are empty."""
    for number in range(TASKS * 3):
        await submit(director, new_run(f"run {number}"))
    worker = await director.ask("register_worker", name="hands", lease_seconds=LONG_LEASE_SECONDS, max_concurrent_tasks=3)
    await director.ask("claim_tasks", worker_id=worker.id)
    return [
        Part(client=f"hand {number}", actor="lend_a_hand", arguments={"worker_id": worker.id, "rounds": TASKS})
        for number in range(4)
    ]


# several completions with one request


async def bulk_against_cancel(director: Recorder) -> list[Part]:
    """Somebody cancels one task of each request from the first on, somebody else another one from the last on."""
    run_id, _, attempts = await hold(director, LONG_LEASE_SECONDS, BULK * 5)
    first, second = ([task_id for task_id, _ in attempts[place::BULK]] for place in (1, 7))
    cancel = {"signals": ["cancel"]}
    return [
        watcher(run_id),
        Part(client="worker", actor="complete_in_bulk", arguments={"attempts": attempts, "size": BULK}),
        Part(client="ada", actor="signal_each", arguments=cancel | {"task_ids": first}),
        Part(client="bob", actor="signal_each", arguments=cancel | {"task_ids": second[::-1]}, dies_after=7),
    ]


async def bulk_against_reclaimer(director: Recorder) -> list[Part]:
    """The zombie's requests come before, at and after the end of its lease; the heirs have work of their own before."""
    run_id, _ = await submit_tasks(director, BULK * 5, max_reclaims=100)
    lost = {"count": BULK * 3, "size": BULK, "lease_seconds": LEASE_SECONDS, "rounds": 4}
    taken = {"size": BULK, "lease_seconds": LEASE_SECONDS * 2, "rounds": 6}
    return [
        watcher(run_id),
        Part(client="zombie", actor="haunt_in_bulk", arguments=lost),
        Part(client="heir", actor="work_in_bulk", arguments=taken),
        Part(client="another heir", actor="work_in_bulk", arguments=taken, dies_after=BULK),
    ]


async def bulk_against_bulk(director: Recorder) -> list[Part]:
    """The same attempts are reported by two, in portions of which the other has done half, and some by a third."""
    run_id, _, attempts = await hold(director, LONG_LEASE_SECONDS, BULK * 6)
    shifted = attempts[BULK:] + attempts[:BULK]
    return [
        watcher(run_id),
        Part(client="one", actor="complete_in_bulk", arguments={"attempts": attempts, "size": BULK * 2}),
        Part(client="two", actor="complete_in_bulk", arguments={"attempts": shifted, "size": BULK * 2}, dies_after=BULK * 3),
        Part(client="three", actor="complete_each", arguments={"attempts": attempts[:: BULK // 2]}),
    ]


async def bulk_against_cancelled_runs(director: Recorder) -> list[Part]:
    """Some requests speak of one run, some of two."""
    held = [await hold(director, LONG_LEASE_SECONDS, BULK * 3 // 2) for _ in range(6)]
    run_ids = [run_id for run_id, _, _ in held]
    attempts = [attempt for _, _, attempts in held for attempt in attempts]
    return [
        Part(client="worker", actor="complete_in_bulk", arguments={"attempts": attempts, "size": BULK}),
        Part(client="ada", actor="cancel_runs", arguments={"run_ids": run_ids[1:]}),
        Part(client="bob", actor="cancel_runs", arguments={"run_ids": run_ids[::-1]}, dies_after=3),
    ]


async def runs_that_several_end_together(director: Recorder) -> list[Part]:
    """Each has done a part of each run: whoever comes last ends it."""
    held = [await hold(director, LONG_LEASE_SECONDS, BULK * 4) for _ in range(5)]
    return [
        Part(
            client=f"worker {number}",
            actor="complete_in_bulk",
            arguments={"attempts": [attempt for _, _, attempts in held for attempt in attempts[number::4]], "size": BULK},
        )
        for number in range(4)
    ]


async def turns_side_by_side(director: Recorder) -> list[Part]:
    """Several workers take turns in the same runs. Many end in the turns of several of them, which go on with the next run."""
    for number in range(24):
        await submit(director, new_run(f"run {number}", *(f"task {task}" for task in range(BULK if number % 8 == 0 else 4))))
    return [
        Part(
            client=f"taker {number}",
            actor="take_turns",
            arguments={"size": 1 + number // 3, "lease_seconds": LONG_LEASE_SECONDS},
        )
        for number in range(4)
    ]


SCENES: list[Scene] = [
    idempotent_twins,
    racing_reclaimers,
    complete_against_cancel,
    zombie_against_heir,
    release_against_complete,
    forgotten_claims,
    duplicate_completions,
    two_probes,
    two_approvers,
    two_answers,
    gangs_for_many_jobs,
    many_hands_of_one_worker,
    bulk_against_cancel,
    bulk_against_reclaimer,
    bulk_against_bulk,
    bulk_against_cancelled_runs,
    runs_that_several_end_together,
    turns_side_by_side,
]
