"""Quotas of tenants, and what counts towards them."""

from __future__ import annotations

from msgspec.structs import replace
from tests.rooms.store.store_fixture import ACME, GLOBEX, StoreFixture

from pointsman.store.rows import Quota, Use


def test_a_quota_is_stored_replaced_locked_and_dropped(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    quota = Quota(tenant=ACME, max_runs=1, max_tasks=0, max_bytes=10**12)
    with db.transaction() as begun:
        assert not begun.has_quotas
        begun.save_quota(quota)
    with db.transaction() as begun:
        assert begun.has_quotas
        assert begun.lock_quotas([GLOBEX, ACME, "unknown"]) == [quota]
        begun.save_quota(replace(quota, max_runs=None))
    with db.store.read() as reader:
        assert reader.find_quota(ACME) == replace(quota, max_runs=None)
        assert reader.find_quota(GLOBEX) is None
    with db.transaction() as begun:
        begun.drop_quota(ACME)
        begun.drop_quota(GLOBEX)
    with db.transaction() as begun:
        assert not begun.has_quotas
        assert begun.find_quota(ACME) is None


def test_a_quota_is_seen_beside_a_corrected_clock(db: StoreFixture) -> None:
    with db.transaction() as begun:
        begun.correct_clock(begun.time().correct(30.0))
        begun.save_quota(Quota(tenant=ACME, max_runs=1))
    with db.transaction() as begun:
        assert begun.has_quotas
        assert begun.time().revision == 1
    with db.store.read() as reader:
        assert reader.time().revision == 1


def test_only_unfinished_runs_and_tasks_of_the_tenant_are_measured(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    with db.store.read() as reader:
        assert reader.measure_use(ACME) == Use(runs=0, tasks=0, payload_bytes=0)
    run = db.put(db.run(payload='"ü"'))
    db.put_task(run, payload='"12345"')
    db.put_task(run, "SUCCEEDED", payload='"done"')
    db.bring(db.put(db.run()), "CANCELED")
    with db.store.read() as reader:
        assert reader.measure_use(ACME) == Use(runs=1, tasks=1, payload_bytes=4 + 7)
        assert reader.measure_use(GLOBEX) == Use(runs=0, tasks=0, payload_bytes=0)
