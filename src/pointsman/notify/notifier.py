"""The notifier of a process: fills the outbox from the event stream, and delivers what is due. Each target has its own duty.

    event stream ── fill (one duty) ──▶ outbox ─┬─ notify-ops ──▶ command or webhook
                                                ├─ notify-chat ─▶ …
                                                └─ notify-flows ▶ the targets that flows declare

Any number of processes do this on one database. A process fills the outbox for the targets of its own settings, and for flows.
A slow receiver delays its own target only. What a process cannot deliver before it ends, the next one delivers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from pointsman.engine.duties import Duty
from pointsman.engine.engine import Engine
from pointsman.engine.outbox import FLOWS
from pointsman.engine.queries import HELD_BACK_SECONDS, LONGEST_PAUSE_SECONDS
from pointsman.errors import DeliveryFailed, NotFound
from pointsman.notify.delivery import Delivery, deliver, find_environment
from pointsman.notify.event import BREAKER_OPENED, Commands, Message, Occurrence, describe, list_occurrences, write_body
from pointsman.notify.target import list_flow_targets, wants
from pointsman.settings import LONGEST_DELIVERY_SECONDS, NotifyTarget, Settings
from pointsman.store.contract import Wakeup
from pointsman.store.rows import OutboxCursor, OutboxEntry, OutboxScope, Run
from pointsman.world import World

PAGE = 500
REST_SECONDS = 0.2
UNSTORED = 1000
"""A cursor that has passed nothing worth a notification is stored after so many positions: each store is a commit."""
AT_ONCE = 8
"""How many notifications of a target are delivered at the same time."""
LEASE_MARGIN_SECONDS = 15.0
FIRST_DELAY_SECONDS = 5.0
DELAY_FACTOR = 3.0
LONGEST_DELAY_SECONDS = 4 * 3600.0
JITTER = 0.2
FLUSH_SECONDS = 5.0
LOOK_SECONDS = 0.05
ALL_RUNS = "*"

log = logging.getLogger(__name__)


class Notifier:
    """Notifications for the targets of some settings, and of flows."""

    def __init__(self, engine: Engine, settings: Settings, world: World, commands: Commands) -> None:
        self._engine, self._settings, self._world, self._commands = engine, settings, world, commands
        self._flows = OutboxScope(flows_of=engine.tenant)
        self._passed: dict[int, int] = {}
        """By the position of a stored cursor: the position up to which this process has found nothing more."""
        self._delivering = 0

    async def open(self) -> None:
        """Let the outbox have everything from now on."""
        await self._engine.outbox.open(self._settings.notify.keys())

    def start(self, *, commands_of: str) -> None:
        """Perform the duties, until the engine is closed. Flows may run commands here for this run, or for `ALL_RUNS`."""
        self.allow_commands(commands_of)
        self._engine.start_duty(
            Duty(
                name="notify-fill",
                perform=self.fill,
                interval_seconds=LONGEST_PAUSE_SECONDS,
                full_batch=PAGE,
                rest_seconds=REST_SECONDS,
                wakes_on=Wakeup.EVENTS,
            )
        )
        for name, scope, lease_seconds in self._scopes():
            self._engine.start_duty(self._delivery_duty(name, scope, lease_seconds))

    def allow_commands(self, run_id: str) -> None:
        """Let the flow of this run, or of `ALL_RUNS`, run commands in this process."""
        self._flows = OutboxScope(flows_of=self._engine.tenant, commands_of=run_id)

    def _delivery_duty(self, name: str, scope: OutboxScope, lease_seconds: float) -> Duty:
        return Duty(
            name=name,
            perform=lambda: self._deliver_due(scope, lease_seconds),
            interval_seconds=LONGEST_PAUSE_SECONDS,
            full_batch=AT_ONCE,
            next_due=lambda: self._engine.outbox.seconds_until_due(scope),
            wakes_on=Wakeup.OUTBOX,
        )

    def _scopes(self) -> Iterator[tuple[str, OutboxScope, float]]:
        """For each target: the name of its duty, its notifications, and how long one try may hold one of them."""
        for target in self._settings.notify.values():
            scope = OutboxScope(targets=(target.name,))
            yield f"notify-{target.name}", scope, target.timeout_seconds + LEASE_MARGIN_SECONDS
        yield "notify-flows", self._flows, LONGEST_DELIVERY_SECONDS + LEASE_MARGIN_SECONDS

    @property
    def scope(self) -> OutboxScope:
        """Everything that this process may deliver."""
        flows = self._flows
        return OutboxScope(targets=tuple(self._settings.notify), flows_of=flows.flows_of, commands_of=flows.commands_of)

    async def flush(self, seconds: float = FLUSH_SECONDS) -> int:
        """Deliver what is due, but for no longer than this; how many are left for other processes, or a later time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.fill()
                while await self._deliver_all() or self._delivering:
                    await self._world.sleep(LOOK_SECONDS)
        return await self._engine.outbox.count_undelivered(self.scope)

    async def _deliver_all(self) -> int:
        return sum(await asyncio.gather(*(self._deliver_due(scope, lease) for _, scope, lease in self._scopes())))

    # From the event stream to the outbox.

    async def fill(self) -> int:
        """Add everything that has happened; how many notifications that were."""
        added = await self._fill_all()
        while await self._engine.is_held_back():  # no wake-up tells when the transactions that hold it back have ended
            await self._world.sleep(HELD_BACK_SECONDS)
            added += await self._fill_all()
        return added

    async def _fill_all(self) -> int:
        wanted = {FLOWS, *(("settings", name) for name in self._settings.notify)}
        cursors = [each for each in await self._engine.outbox.list_cursors() if (each.origin, each.target) in wanted]
        cursors.sort(key=attrgetter("position"))
        self._passed = {each.position: self._passed.get(each.position, each.position) for each in cursors}
        added = 0
        for position, group in groupby(cursors, key=attrgetter("position")):
            added += await self._fill_some(tuple(group), position)
        return added

    async def _fill_some(self, cursors: tuple[OutboxCursor, ...], stored: int) -> int:
        """For targets whose cursors are at the same position."""
        outbox, added = self._engine.outbox, 0
        while True:
            after = self._passed.pop(stored, stored)
            page, position = await outbox.read(after, PAGE)
            entries = [
                entry for each in await list_occurrences(self._engine, page) for entry in await self._write(each, cursors)
            ]
            if not entries and position < stored + UNSTORED:
                self._passed[stored] = position
            else:
                added += await outbox.fill(cursors, position, entries)
                cursors = tuple(OutboxCursor(origin=each.origin, target=each.target, position=position) for each in cursors)
                stored = position
            if len(page) < PAGE:
                return added

    async def _write(self, occurrence: Occurrence, cursors: Iterable[OutboxCursor]) -> list[OutboxEntry]:
        """The notifications about an event, for the targets that these cursors belong to."""
        engine = self._engine.for_tenant(occurrence.tenant)
        run = await engine.get_run(occurrence.run_id) if occurrence.run_id is not None else None
        told = [target for target in self._list_targets(cursors, run) if wants(target[1], occurrence.event, occurrence.outcome)]
        message = await describe(engine, occurrence, run, self._commands) if told else None
        return [self._write_one(occurrence, message, origin, target) for origin, target in told] if message else []

    def _list_targets(self, cursors: Iterable[OutboxCursor], run: Run | None) -> Iterator[tuple[str, NotifyTarget]]:
        for cursor in cursors:
            if (cursor.origin, cursor.target) != FLOWS:
                yield cursor.origin, self._settings.notify[cursor.target]
            elif run is not None:
                yield from ((cursor.origin, target) for target in list_flow_targets(run).values())

    def _write_one(self, occurrence: Occurrence, message: Message, origin: str, target: NotifyTarget) -> OutboxEntry:
        move = occurrence.transition
        data = {"directory": str(self._settings.directory), **message.data}
        return OutboxEntry(
            id=self._world.ids.new("msg", move.at),
            position=int(move.position),
            origin=origin,
            target=target.name,
            method=target.method,
            tenant=occurrence.tenant,
            run_id=None if occurrence.event == BREAKER_OPENED else occurrence.run_id,
            event=occurrence.event,
            subject=message.subject,
            body=write_body(occurrence.event, move.at, occurrence.tenant, data),
            created_at=move.at,
            due_at=move.at,
        )

    # From the outbox to the targets.

    async def _deliver_due(self, scope: OutboxScope, lease_seconds: float) -> int:
        """Claim what is due and try each once; how many that were."""
        if await self._engine.outbox.seconds_until_due(scope) > 0:
            return 0
        claimed = await self._engine.outbox.claim(scope, AT_ONCE, lease_seconds)
        self._delivering += len(claimed)
        try:
            await asyncio.gather(*map(self._deliver, claimed))
        finally:
            self._delivering -= len(claimed)
        return len(claimed)

    async def _deliver(self, entry: OutboxEntry) -> None:
        target = None
        try:
            target = await self._find_target(entry)
            await self._try(entry, target)
        except DeliveryFailed as failure:
            is_over = failure.is_final or target is None or entry.tries >= target.tries
            if await self._engine.outbox.settle(entry, str(failure), None if is_over else self._delay(entry.tries)) and is_over:
                log.warning("notification %s for %s is not delivered: %s", entry.id, entry.target, failure)
        else:
            await self._engine.outbox.settle(entry)

    async def _try(self, entry: OutboxEntry, target: NotifyTarget) -> None:
        if entry.tries > target.tries:  # the process that made the last try ended before it could store the result
            raise DeliveryFailed("The process that made the last try ended before the receiver answered.", is_final=True)
        environ = find_environment(target, self._settings.pass_env, is_trusted=entry.origin == "settings")
        delivery = Delivery(entry.id, entry.event, entry.subject, entry.body)
        await deliver(delivery, target, directory=self._settings.directory, environ=environ, world=self._world)

    async def _find_target(self, entry: OutboxEntry) -> NotifyTarget:
        if entry.origin == "settings":
            return self._settings.notify[entry.target]
        assert entry.run_id is not None
        try:
            return list_flow_targets(await self._engine.for_tenant(entry.tenant).get_run(entry.run_id))[entry.target]
        except (KeyError, NotFound):
            raise DeliveryFailed(f"The flow of its run has no target '{entry.target}'.", is_final=True) from None

    def _delay(self, tries: int) -> float:
        """Longer after each try, and never the same: receivers that are down get no crowd when they are back."""
        delay = min(FIRST_DELAY_SECONDS * DELAY_FACTOR ** (tries - 1), LONGEST_DELAY_SECONDS)
        return delay * self._world.chance.uniform(1 - JITTER, 1 + JITTER)
