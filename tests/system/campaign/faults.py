"""The faults of a campaign, each so often as was asked, while a fleet is at work."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from tests.system.campaign.fleet import LEASE_SECONDS, Fleet, Member
from tests.system.faults.project import PATIENCE_SECONDS
from tests.system.faults.proxy import Proxy
from tests.system.faults.server import Server

from pointsman.errors import StoreError

Fault = Callable[[Fleet, int], Awaitable[None]]
ZOMBIES_AT_ONCE = 3


async def kill_workers(fleet: Fleet, number: int) -> None:
    """SIGKILL, at any moment: mostly when it has begun to work, sometimes while it starts."""
    for _ in range(number):
        member = await fleet.pick()
        if fleet.chance.random() < 0.8:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await member.begun.get()
        await asyncio.sleep(fleet.chance.uniform(0.0, 0.3))
        while await fleet.is_precious(member):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.05)
        await member.kill()
        await fleet.replace(member)


async def freeze_workers(fleet: Fleet, number: int) -> None:
    """SIGSTOP right after a claim, until the lease has expired and another worker has begun the task; then SIGCONT."""
    left = iter(range(number))

    async def freeze_in_turn() -> None:
        for _ in left:
            await _freeze_one(fleet)

    await asyncio.gather(*(freeze_in_turn() for _ in range(ZOMBIES_AT_ONCE)))


async def _freeze_one(fleet: Fleet) -> None:
    member = await fleet.pick()
    member.is_spared = True
    try:
        while not member.begun.empty():
            member.begun.get_nowait()
        async with asyncio.timeout(PATIENCE_SECONDS):
            task_id, epoch = await _freeze_at_a_claim(fleet, member)
            await _wait_for_successor(fleet, task_id, epoch)
    finally:
        member.command.send(signal.SIGCONT)
        member.is_spared = False


async def _freeze_at_a_claim(fleet: Fleet, member: Member) -> tuple[str, int]:
    """Frozen first, so that no time passes after the claim; then, unless that would make a task fail, it stays frozen."""
    while True:
        begun = await member.begun.get()
        await fleet.project.freeze(member.command)
        if not await fleet.is_precious(member):
            return begun
        member.command.send(signal.SIGCONT)


async def _wait_for_successor(fleet: Fleet, task_id: str, epoch: int) -> None:
    """Until the attempt is over, be it by its own report just before, or by another worker that has begun the next."""
    await asyncio.sleep(LEASE_SECONDS)
    while True:
        task = await fleet.engine.get_task(task_id)
        if task.epoch > epoch or task.outcome is not None:
            return
        await asyncio.sleep(0.05)


def cut_connections(proxy: Proxy) -> Fault:
    """Reset a connection, at any moment of a transaction."""

    async def cut(fleet: Fleet, number: int) -> None:
        done = 0
        while done < number:
            await fleet.replace_ended()
            await asyncio.sleep(fleet.chance.uniform(0.0, 0.2))
            if any(not member.begun.empty() for member in fleet.members):  # a fleet that only starts would prove little
                done += proxy.cut(fleet.chance)

    return cut


def kill_postmaster(server: Server) -> Fault:
    """SIGKILL for the server; it recovers from its log."""

    async def kill(fleet: Fleet, number: int) -> None:
        for _ in range(number):
            await _wait_for_success(fleet)
            await asyncio.sleep(fleet.chance.uniform(0.0, 0.5))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    return kill


async def _wait_for_success(fleet: Fleet) -> None:
    """Until some work was done since: a server that is killed while it starts would prove nothing."""
    before: str | None = None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                position = await fleet.engine.last_position()
            except StoreError:
                position = None
            if before is not None and position not in (None, before):
                return
            before = before or position
            await asyncio.sleep(0.05)
