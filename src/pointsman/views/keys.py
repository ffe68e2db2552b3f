"""API keys: whose they are, what they allow, and whether they are still valid."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct

from pointsman.store.rows import ApiKey


class KeyState(StrEnum):
    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


class KeyView(Struct, frozen=True, kw_only=True):
    """An API key, without any secret."""

    id: str
    tenant: str
    name: str
    state: KeyState
    scopes: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""
    previous_expires_at: datetime | None
    """Until when the secret before the last rotation is valid as well."""


def make_key_view(key: ApiKey, now: datetime) -> KeyView:
    return KeyView(
        id=key.id,
        tenant=key.tenant,
        name=key.name,
        state=_find_state(key, now),
        scopes=msgspec.json.decode(key.scopes, type=list[str]),
        created_at=key.created_at,
        created_by=key.created_by,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
        previous_expires_at=key.previous_expires_at if key.previous_expires_at and key.previous_expires_at > now else None,
    )


def _find_state(key: ApiKey, now: datetime) -> KeyState:
    if key.revoked_at is not None:
        return KeyState.REVOKED
    return KeyState.EXPIRED if key.expires_at is not None and key.expires_at <= now else KeyState.VALID
