"""Operations on API keys. The text of a key is in the answer that makes it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from pointsman.engine.fields import KeyId, Name, Seconds
from pointsman.engine.key_text import ID_PREFIX, KeyText, make_key
from pointsman.engine.operation import DEFAULT_TENANT, Recorded
from pointsman.engine.work import Work
from pointsman.errors import AlreadyExists, KeyEnded, NotFound, Problem
from pointsman.store.contract import Wakeup
from pointsman.store.rows import ApiKey, Notice, StoredKey

Scope = Literal["read", "submit", "operate", "approve", "worker", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


class IssuedKey(Struct, frozen=True, kw_only=True):
    """A key, and its text with the secret; None where a request is repeated, because the secret is not stored."""

    key: ApiKey
    text: str | None

    def __repr__(self) -> str:
        """Without the text, which has no place in a log."""
        return f"IssuedKey({self.key.id!r})"


class _Issuing(Recorded[IssuedKey], frozen=True):
    """An operation that makes a secret."""

    def redact(self, answer: IssuedKey) -> IssuedKey:
        return replace(answer, text=None)


class CreateKey(_Issuing, frozen=True):
    """Create an API key of the tenant. The answer has its text, once: a repeated request gets the key without it."""

    name: Annotated[Name, "What the key is for; no other key of the tenant that is not revoked has this name."]
    scopes: Annotated[tuple[Scope, ...], "What the key allows; at least one."]
    expires_seconds: Annotated[Seconds | None, "In how many seconds it expires; null for never."] = None

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and not self.scopes:
            yield Problem("scopes", f"A key without a scope allows nothing. Name at least one: {', '.join(SCOPES)}.")

    def decide(self, work: Work) -> Callable[[], IssuedKey]:
        if self.tenant == DEFAULT_TENANT:
            work.ensure_tenant(self.tenant)
        elif work.transaction.find_tenant(self.tenant) is None:
            raise NotFound("tenant", self.tenant)
        if twin := work.transaction.find_key_by_name(self.tenant, self.name):
            raise AlreadyExists("key", self.name, f"Rotate or revoke {twin.id}, or choose another name.")
        scopes = sorted(set(self.scopes))
        text = make_key(work.world.ids.short(ID_PREFIX), work.world.chance)
        key = ApiKey(
            id=text.key_id,
            tenant=self.tenant,
            name=self.name,
            scopes=msgspec.json.encode(scopes).decode(),
            created_at=work.now,
            created_by=self.caller.actor,
            expires_at=_after(work.now, self.expires_seconds),
        )
        work.transaction.insert_key(StoredKey(**asdict(key), secret_hash=text.secret_hash))
        _note(work, key, self.cause.sign(f"The key '{key.name}' was created. It allows: {', '.join(scopes)}."))
        return _answer(key, text)


class RotateKey(_Issuing, frozen=True):
    """Give an API key a new secret. The answer has its text, once. Of the older secrets only the last can stay valid."""

    key_id: Annotated[KeyId, "The key."]
    grace_seconds: Annotated[Seconds | None, "How long the present secret stays valid; null for not at all."] = None
    expires_seconds: Annotated[Seconds | None, "In how many seconds the key expires; null for when it would anyway."] = None

    def decide(self, work: Work) -> Callable[[], IssuedKey]:
        before = _find(work, self.tenant, self.key_id)
        if before.revoked_at:
            raise KeyEnded(f"The key '{before.name}' is revoked. Create a new one.")
        expires_at = _after(work.now, self.expires_seconds) or before.expires_at
        if expires_at and expires_at <= work.now:
            raise KeyEnded(f"The key '{before.name}' has expired. Say how long it is to live from now on, or create a new one.")
        graces = [each for each in (_after(work.now, self.grace_seconds), before.expires_at) if each]
        keeps = self.grace_seconds is not None and min(graces) > work.now
        key = replace(before, expires_at=expires_at, previous_expires_at=min(graces) if keeps else None)
        text = make_key(key.id, work.world.chance)
        work.transaction.rotate_key(key, text.secret_hash)
        work.wakeups |= Wakeup.KEYS
        _note(work, key, self.cause.sign(f"The key '{key.name}' has a new secret."))
        return _answer(key, text)


class RevokeKey(Recorded[ApiKey], frozen=True):
    """Revoke an API key for good. One that is revoked already stays as it is."""

    key_id: Annotated[KeyId, "The key."]

    def decide(self, work: Work) -> Callable[[], ApiKey]:
        key = _find(work, self.tenant, self.key_id)
        if key.revoked_at is None:
            key = replace(key, revoked_at=max(work.now, key.created_at))
            work.transaction.revoke_key(key.tenant, key.id, max(work.now, key.created_at))
            work.wakeups |= Wakeup.KEYS
            _note(work, key, self.cause.sign(f"The key '{key.name}' was revoked."))
        return lambda: key


def _find(work: Work, tenant: str, key_id: str) -> ApiKey:
    key = work.transaction.find_key(tenant, key_id)
    if key is None:
        raise NotFound("key", key_id)
    return key


def _after(now: datetime, seconds: float | None) -> datetime | None:
    """Later in any case: the shortest times round to nothing."""
    return None if seconds is None else now + max(timedelta(seconds=seconds), timedelta.resolution)


def _answer(key: ApiKey, text: KeyText) -> Callable[[], IssuedKey]:
    issued = IssuedKey(key=key, text=text.write())
    return lambda: issued


def _note(work: Work, key: ApiKey, message: str) -> None:
    work.notices.append(
        Notice(tenant=key.tenant, kind="key", entity_id=key.id, run_id=None, subject="key", message=message, at=work.now)
    )
