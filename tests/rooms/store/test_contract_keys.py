"""Tenants and their API keys: what is stored of a key, who reads it, and what nobody can change."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace
from tests.rooms.store.outsider import Outsider, Refused
from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, SECOND, WORDS, StoreFixture

from pointsman.errors import Conflict
from pointsman.store.rows import ApiKey, StoredKey, Tenant

HASHES = tuple(digit * 64 for digit in "abcdef")


def stored(name: str = "ci", secret_hash: str = HASHES[0], **columns: Any) -> StoredKey:
    made: dict[str, Any] = {"id": f"key_{name}", "tenant": ACME, "name": name, "scopes": '["read"]', "created_at": AT}
    return StoredKey(**made | {"created_by": "ada", "secret_hash": secret_hash} | columns)


def brief(key: StoredKey) -> ApiKey:
    return ApiKey(**{name: value for name, value in asdict(key).items() if name in ApiKey.__struct_fields__})


def add(db: StoreFixture, *keys: StoredKey) -> None:
    with db.transaction() as begun:
        for key in keys:
            begun.insert_key(key)


def find(db: StoreFixture, key: ApiKey) -> StoredKey:
    with db.store.read() as reader:
        found = reader.find_stored_key(key.id)
    assert found
    return found


def test_tenants_are_listed_by_their_names(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    with db.transaction() as begun:
        begun.ensure_tenant("aardvark", AT + SECOND)
        begun.ensure_tenant(ACME, AT + SECOND)
    with db.store.read() as reader:
        assert reader.find_tenant(ACME) == Tenant(id=ACME, created_at=AT)
        assert reader.find_tenant("unknown") is None
        listed = [(tenant.id, tenant.created_at) for tenant in reader.list_tenants()]
    assert listed == [("aardvark", AT + SECOND), (ACME, AT), (GLOBEX, AT)]


def test_a_key_has_every_column_and_belongs_to_its_tenant(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    plain = stored()
    full = stored(
        WORDS,
        HASHES[1],
        id="key_full",
        scopes='["admin","approve","operate","read","submit","worker"]',
        expires_at=AT + 9 * SECOND,
        revoked_at=AT,
        last_used_at=AT,
        previous_expires_at=AT + SECOND,
        previous_hash=HASHES[2],
    )
    theirs = stored(tenant=GLOBEX, id="key_theirs")
    add(db, plain, full, theirs)
    assert [find(db, each) for each in (plain, full, theirs)] == [plain, full, theirs]
    with db.store.read() as reader:
        assert reader.find_stored_key("unknown") is None
        assert reader.find_key(ACME, plain.id) == brief(plain)
        assert reader.find_key(ACME, theirs.id) is None
        assert reader.find_key_by_name(ACME, "ci") == brief(plain)
        assert reader.find_key_by_name(ACME, full.name) is None, "it is revoked"
        assert reader.list_keys(ACME) == [brief(full), brief(plain)]
        assert reader.list_all_keys() == [brief(full), brief(plain), brief(theirs)]
        assert reader.list_keys("unknown") == []


def test_a_name_is_free_again_when_its_key_is_revoked(db: StoreFixture) -> None:
    first = stored()
    add(db, first)
    second = replace(first, id="key_second", secret_hash=HASHES[1])
    with pytest.raises(Conflict):
        add(db, second)
    with db.transaction() as begun:
        begun.revoke_key(GLOBEX, first.id, AT + SECOND)
    assert find(db, first) == first, "another tenant does not revoke it"
    for at in (AT + SECOND, AT + 2 * SECOND):
        with db.transaction() as begun:
            begun.revoke_key(ACME, first.id, at)
    assert find(db, first) == replace(first, revoked_at=AT + SECOND), "the first time counts"
    add(db, second)
    assert find(db, second) == second


def test_a_key_that_is_rotated_may_keep_the_secret_before(db: StoreFixture) -> None:
    key = stored()
    add(db, key)
    ends = {"expires_at": AT + 99 * SECOND, "previous_expires_at": AT + 9 * SECOND}
    with db.transaction() as begun:
        begun.rotate_key(replace(brief(key), **ends), HASHES[1])
    assert find(db, key) == replace(key, secret_hash=HASHES[1], previous_hash=HASHES[0], **ends)
    with db.transaction() as begun:
        begun.rotate_key(brief(key), HASHES[2])
    assert find(db, key) == replace(key, secret_hash=HASHES[2])
    with db.transaction() as begun:
        begun.revoke_key(ACME, key.id, AT)
    with pytest.raises(Conflict), db.transaction() as begun:
        begun.rotate_key(brief(key), HASHES[3])
    with pytest.raises(Conflict), db.transaction() as begun:
        begun.rotate_key(replace(brief(key), id="unknown"), HASHES[3])


def test_the_use_of_a_key_is_noted_once_in_a_while(db: StoreFixture) -> None:
    key = stored()
    add(db, key)
    for seconds, noted in ((-1, None), (0, 0), (59, 0), (60, 60), (30, 60)):
        now = AT + seconds * SECOND
        with db.transaction() as begun:
            begun.note_key_use(key.id, now, now - 60 * SECOND)
        assert find(db, key).last_used_at == (None if noted is None else AT + noted * SECOND), seconds


KEPT = {
    "its id": "id = 'key_other'",
    "its tenant": "tenant = 'globex'",
    "its name": "name = 'other'",
    "its scopes": "scopes = '[\"admin\"]'",
    "who created it": "created_by = 'mallory'",
    "its expiry": "expires_at = NULL",
    "the expiry of its previous secret": "previous_expires_at = expires_at",
}


@pytest.mark.parametrize("what", KEPT)
def test_a_key_keeps(db: StoreFixture, prompt: Outsider, what: str) -> None:
    db.tenant(GLOBEX)
    key = stored(expires_at=AT + 99 * SECOND, previous_expires_at=AT + 9 * SECOND, previous_hash=HASHES[1])
    add(db, key)
    with pytest.raises(Refused, match="pointsman: "):
        prompt.ask(f"UPDATE api_key SET {KEPT[what]}")
    assert find(db, key) == key


@pytest.mark.parametrize(
    "change", ["revoked_at = NULL", "secret_hash = previous_hash, previous_hash = NULL, previous_expires_at = NULL"]
)
def test_a_revoked_key_stays_revoked(db: StoreFixture, prompt: Outsider, change: str) -> None:
    key = stored(revoked_at=AT, previous_hash=HASHES[1], previous_expires_at=AT + SECOND)
    add(db, key)
    with pytest.raises(Refused, match="stays revoked"):
        prompt.ask(f"UPDATE api_key SET {change}")
    assert find(db, key) == key


def test_no_key_is_deleted_or_replaced(db: StoreFixture, prompt: Outsider) -> None:
    key = stored()
    add(db, key)
    with pytest.raises(Refused, match="cannot be deleted"):
        prompt.ask("DELETE FROM api_key")
    if prompt.dialect == "sqlite":
        columns = ", ".join(StoredKey.__struct_fields__)
        chosen = columns.replace("created_by", "'mallory'")
        with pytest.raises(Refused, match="cannot be replaced"):
            prompt.ask(f"INSERT OR REPLACE INTO api_key ({columns}) SELECT {chosen} FROM api_key")
    assert find(db, key) == key
