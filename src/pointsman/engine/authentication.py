"""Who presents an API key: the check of its secret, and how long an answer may be reused.

    text ── parse ──▶ known for seconds? ── no ──▶ the row of its id ──▶ compare hashes ──▶ KeyHolder | AuthenticationFailed

Whatever is wrong, the error is the same, and so are the query and the comparisons: an unknown id is compared as well. Only
valid keys are remembered, so a wrong secret takes as long for a key in use as for any other.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from pointsman.engine.key_text import KeyText, make_ticket, parse_key, parse_ticket
from pointsman.engine.operations.upkeep import NOTE_USE_SECONDS, NoteKeyUse
from pointsman.engine.queries import Core
from pointsman.errors import AuthenticationFailed
from pointsman.store.contract import Reader, Wakeup
from pointsman.store.rows import StoredKey

REMEMBER_SECONDS = 5.0
"""A revoked key works so much longer at most, in a process that its wake-up does not reach; otherwise for milliseconds."""
MOST_REMEMBERED = 10_000
TICKET_SECONDS = 30
FOR_EVER = datetime(9999, 12, 31, tzinfo=UTC)
_NO_HASH = "0" * 64
"""What the secret of an unknown id is compared with: the hash of no known text."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whose key it is, and what it allows."""

    key_id: str
    name: str
    tenant: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Stands for a key where none can be sent."""

    text: str
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class _Remembered:
    holder: KeyHolder
    until: float
    """On the boot clock, which also counts the time for which the machine sleeps."""


class Authentication:
    """Checks the keys that are presented to one engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._remembered: dict[tuple[str, str], _Remembered] = {}
        """By id and hash of the secret."""
        self._noted: dict[str, float] = {}
        """By key: when its use was last noted, on the boot clock."""
        self._redeemed: dict[int, datetime] = {}
        """Tickets that were used here and have not expired, by their nonces."""
        self._changes = 0
        core.wakeups.listen(Wakeup.KEYS, self._forget)

    async def authenticate(self, text: str) -> KeyHolder:
        presented = parse_key(text)
        secret_hash = presented.secret_hash
        asked = self._core.world.clock.boottime()
        known = self._remembered.get((presented.key_id, secret_hash))
        if known and asked < known.until:
            holder = known.holder
        else:
            holder = await self._look_up(presented, secret_hash, asked)
        self._note_use(holder.key_id, asked)
        return holder

    async def _look_up(self, presented: KeyText, secret_hash: str, asked: float) -> KeyHolder:
        changes = self._changes

        def look(reader: Reader) -> tuple[StoredKey | None, datetime]:
            return reader.find_stored_key(presented.key_id), reader.now()

        stored, now = await self._core.ask(look)
        ends = find_end(stored, secret_hash, now)
        if stored is None or ends is None or ends <= now:
            raise AuthenticationFailed
        holder = _make_holder(stored)
        if changes == self._changes:  # or the row may have been read before it was changed
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            lasts = min((ends - now).total_seconds(), REMEMBER_SECONDS)
            self._remembered[presented.key_id, secret_hash] = _Remembered(holder, asked + lasts)
        return holder

    async def issue_ticket(self, key_id: str) -> Ticket:
        """Signed with the hash of the secret: every process on the database can check it, and it ends with its key."""
        stored, now = await self._core.ask(lambda reader: (reader.find_stored_key(key_id), reader.now()))
        if stored is None or _has_ended(stored, now):
            raise AuthenticationFailed
        ends = now + timedelta(seconds=TICKET_SECONDS)
        return Ticket(make_ticket(key_id, ends, self._core.world.chance).write(stored.secret_hash), ends)

    async def redeem_ticket(self, text: str) -> KeyHolder:
        ticket = parse_ticket(text)
        stored, now = await self._core.ask(lambda reader: (reader.find_stored_key(ticket.key_id), reader.now()))
        is_signed = hmac.compare_digest(ticket.write(stored.secret_hash if stored else _NO_HASH), text)
        if stored is None or not is_signed or _has_ended(stored, now) or ticket.ends_at <= now:
            raise AuthenticationFailed
        self._redeemed = {nonce: ends for nonce, ends in self._redeemed.items() if ends > now}
        if ticket.nonce in self._redeemed:
            raise AuthenticationFailed
        self._redeemed[ticket.nonce] = ticket.ends_at
        return _make_holder(stored)

    def _forget(self) -> None:
        self._changes += 1
        self._remembered.clear()

    def _note_use(self, key_id: str, asked: float) -> None:
        """At most once a minute, and nobody waits for it."""
        if asked < self._noted.get(key_id, -NOTE_USE_SECONDS) + NOTE_USE_SECONDS:
            return
        if len(self._noted) >= MOST_REMEMBERED:
            self._noted.clear()
        self._noted[key_id] = asked
        self._core.writer.submit(NoteKeyUse(key_id=key_id)).add_done_callback(_log_failure)


def _make_holder(stored: StoredKey) -> KeyHolder:
    scopes = frozenset(msgspec.json.decode(stored.scopes, type=list[str]))
    return KeyHolder(stored.id, stored.name, stored.tenant, scopes)


def _has_ended(stored: StoredKey, now: datetime) -> bool:
    return stored.revoked_at is not None or (stored.expires_at or FOR_EVER) <= now


def find_end(stored: StoredKey | None, secret_hash: str, now: datetime) -> datetime | None:
    """Until when a secret is valid, or None. It always makes the same comparisons, in constant time."""
    current, previous = (stored.secret_hash, stored.previous_hash) if stored else (_NO_HASH, None)
    is_current = hmac.compare_digest(current, secret_hash)
    is_previous = hmac.compare_digest(previous or _NO_HASH, secret_hash)
    if stored is None or stored.revoked_at is not None or not (is_current or is_previous):
        return None
    ends = stored.expires_at or FOR_EVER
    return ends if is_current else min(ends, stored.previous_expires_at or now)


def _log_failure(noted: asyncio.Future[None]) -> None:
    if not noted.cancelled() and (error := noted.exception()):
        log.info("the use of an API key could not be noted: %s", error)
