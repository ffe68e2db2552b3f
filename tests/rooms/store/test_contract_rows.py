"""One contract, one suite: every column of every row is read back as it was stored."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.rooms.store.store_fixture import (
    ACME,
    AT,
    GLOBEX,
    JSON,
    SECOND,
    WORDS,
    StoreFixture,
    attempt_of,
    find,
    move,
    update,
)

from pointsman.store.rows import Account, Attempt, Task
from pointsman.store.rows import Transition as Event

CENTS = Decimal("0.000001")
FORTUNE = Decimal("1234567.654321")
MANY = 2**40


def each_column_varies(*versions: msgspec.Struct, but: Iterable[str] = ()) -> bool:
    """Whether the versions differ in every column, so that a forgotten column would fail."""
    stuck = {name for name in versions[0].__struct_fields__ if len({repr(getattr(row, name)) for row in versions}) == 1}
    return stuck == set(but)


def test_a_run_comes_back_as_it_was_stored(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    plain = db.run()
    full = db.run(
        "orchestrated.workstream",
        tenant=GLOBEX,
        reason=WORDS,
        actor=WORDS,
        metadata=JSON,
        created_at=AT - SECOND,
        started_at=AT,
        name=WORDS,
        parent_run_id=plain.id,
        depth=1,
        worker_count=10,
        allocates=True,
        missing_tasks=3,
        has_checks=True,
        final_task=JSON,
        retry_count=1,
        max_retries=2,
        policy=JSON,
        budget_usd=FORTUNE,
        spent_usd=CENTS,
        promised_usd=FORTUNE,
        reserved_usd=FORTUNE - CENTS,
        tokens_in=MANY,
        tokens_out=1,
        cost_is_estimated=True,
        error=WORDS,
        tags='["t"]',
        payload=JSON,
        output=JSON,
    )
    with db.transaction() as begun:
        begun.insert_runs([plain, full])
    changes: dict[str, Any] = {
        "reason": "enough",
        "actor": "eve",
        "metadata": None,
        "missing_tasks": 0,
        "retry_count": 2,
        "error": None,
    }
    money: dict[str, Any] = {"budget_usd": None, "spent_usd": FORTUNE, "promised_usd": CENTS, "reserved_usd": Decimal(0)}
    moved = db.moved(full, "cancelled", **changes, **money, output=None)
    updated = replace(moved, error=WORDS, missing_tasks=1, retry_count=0, budget_usd=CENTS, spent_usd=CENTS)
    assert [find(db.store, row) for row in (plain, full)] == [plain, full]
    with db.transaction() as begun:
        move(begun, moved)
        assert begun.lock_runs([moved.id]) == [moved]
    assert find(db.store, moved) == moved
    with db.transaction() as begun:
        update(begun, updated)
    assert find(db.store, updated) == updated
    assert each_column_varies(plain, full, moved, updated)


def test_a_task_comes_back_as_it_was_stored(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run = db.put(db.run())
    worker = db.put(db.worker(tenant=GLOBEX))
    plain = db.task(db.put(db.run()), is_gate=True, open_dependencies=2)
    full = db.task(
        run,
        "approval.step",
        tenant=GLOBEX,
        reason=WORDS,
        metadata=JSON,
        created_at=AT - SECOND,
        parent_task_id=plain.id,
        depth=1,
        position=7,
        name=WORDS,
        lane_id=db.lane("gpu", tenant=GLOBEX),
        priority=-3,
        critical=False,
        review_wanted=True,
        has_checks=True,
        has_subtasks=True,
        allocated=True,
        run_open=True,
        available_at=AT + SECOND,
        attempt_count=1,
        max_attempts=5,
        retry_count=1,
        max_retries=2,
        reclaim_count=1,
        max_reclaims=4,
        policy=JSON,
        budget_usd=FORTUNE,
        cost_usd=CENTS,
        tokens_in=MANY,
        tokens_out=1,
        cost_is_estimated=True,
        session_id=WORDS,
        keep_session=True,
        attempt_started_at=AT - SECOND,
        attempt_resumed=True,
        attempt_cost_usd=FORTUNE,
        attempt_tokens_in=MANY,
        attempt_tokens_out=1,
        attempt_cost_is_estimated=True,
        attempt_error=WORDS,
        attempt_exit_code=-9,
        attempt_log_path=WORDS,
        question=WORDS,
        answer=WORDS,
        comment=WORDS,
        error=WORDS,
        cancel_requested_at=AT,
        payload=JSON,
    )
    with db.transaction() as begun:
        begun.insert_tasks([plain, full])
    texts = dict.fromkeys(("session_id", "question", "answer", "comment", "error", "cancel_requested_at", "metadata"))
    counts: dict[str, Any] = {
        "retry_count": 2,
        "reclaim_count": 4,
        "keep_session": False,
        "cost_usd": FORTUNE,
    }
    claimed = db.moved(full, "RUNNING", worker_id=worker.id, reserved_usd=CENTS, reason="free", **texts, **counts)
    lost = replace(claimed, lease_expired=True, cost_usd=FORTUNE + CENTS, error="lost", question="?", answer="!", comment="…")
    lost = replace(lost, attempt_cost_usd=CENTS, attempt_error="lost", attempt_exit_code=1, attempt_log_path="log")
    ended = db.moved(lost, "SUCCEEDED", actor=WORDS, output=WORDS)
    assert find(db.store, plain) == plain
    assert find(db.store, full) == full
    with db.transaction() as begun:
        move(begun, claimed)
    assert find(db.store, claimed) == claimed
    with db.transaction() as begun:
        update(begun, lost)
        assert begun.find_task(GLOBEX, lost.id) == lost
        move(begun, ended)
    assert find(db.store, ended) == ended
    assert each_column_varies(plain, full, claimed, lost, ended)


def test_a_worker_comes_back_as_it_was_stored(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run = db.put(db.run())
    plain = db.worker()
    full = db.worker(
        "supervised.worker",
        tenant=GLOBEX,
        reason=WORDS,
        actor=WORDS,
        metadata=JSON,
        created_at=AT - SECOND,
        started_at=AT,
        name=WORDS,
        serves='["ü", "acme"]',
        last_tenant=WORDS,
        capabilities='["ü", "gpu"]',
        max_concurrent_tasks=4,
        lease_seconds=12.5,
        heartbeat_at=AT + SECOND,
        missing=True,
        run_id=run.id,
        only_run_id=run.id,
        worker_metadata=JSON,
        key_id=WORDS,
        drain_wanted=True,
        pause_wanted=True,
        terminate_wanted=True,
        error=WORDS,
    )
    with db.transaction() as begun:
        begun.insert_workers([plain, full])
    flags: dict[str, Any] = dict.fromkeys(("missing", "drain_wanted", "pause_wanted", "terminate_wanted"), False)
    moved = db.moved(
        full,
        "TERMINATED",
        reason="enough",
        metadata=None,
        run_id=None,
        error=None,
        capabilities="[]",
        heartbeat_at=AT + 5 * SECOND,
        **flags,
    )
    updated = replace(moved, error="late", **dict.fromkeys(flags, True))
    assert [find(db.store, row) for row in (plain, full)] == [plain, full]
    with db.transaction() as begun:
        move(begun, moved)
        assert begun.lock_workers([moved.id]) == [moved]
        update(begun, updated)
    assert find(db.store, updated) == updated
    busy = db.bring(plain, "BUSY")
    assert find(db.store, busy) == busy
    assert each_column_varies(plain, full, moved, updated, busy)


def test_a_breaker_comes_back_as_it_was_stored(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    probe = db.put_task()
    plain = db.breaker(tool="git")
    full = db.breaker(
        "pipeline.breaker",
        tenant=GLOBEX,
        reason=WORDS,
        actor=WORDS,
        metadata=JSON,
        created_at=AT - SECOND,
        started_at=AT,
        tool=WORDS,
        failure_count=3,
        failure_threshold=4,
        success_count=1,
        success_threshold=2,
        cooldown_seconds=0.25,
        retry_at=AT + SECOND,
        max_concurrent=5,
        rate_count=6,
        rate_seconds=0.75,
        begun="[[1,2]]",
        limited_until=AT + SECOND,
    )
    with db.transaction() as begun:
        begun.insert_breakers([plain, full])
    opened = db.moved(full, "OPEN", reason="enough", failure_count=4, success_count=0, retry_at=None, failure_threshold=9)
    probed = db.moved(opened, "HALF_OPEN", probe_task_id=probe.id, cooldown_seconds=1.5, success_threshold=3, metadata=None)
    updated = replace(probed, success_count=2, failure_count=0, retry_at=AT)
    assert [find(db.store, row) for row in (plain, full)] == [plain, full]
    with db.transaction() as begun:
        move(begun, opened)
        move(begun, probed)
        assert begun.lock_breakers(GLOBEX, [WORDS]) == [probed]
        update(begun, updated)
    assert find(db.store, updated) == updated
    assert each_column_varies(plain, full, opened, probed, updated, but=["outcome", "completed_at"])


def test_an_attempt_has_what_its_task_knew_about_it(db: StoreFixture) -> None:
    """From the columns of the task while it is current, and from the row that the law wrote when it has ended."""
    db.tenant(GLOBEX)
    worker, another = db.put(db.worker()), db.put(db.worker(tenant=GLOBEX))
    full: dict[str, Any] = {
        "session_id": WORDS,
        "attempt_resumed": True,
        "attempt_cost_usd": FORTUNE,
        "attempt_tokens_in": MANY,
        "attempt_tokens_out": 1,
        "attempt_cost_is_estimated": True,
        "attempt_error": WORDS,
        "attempt_exit_code": -9,
        "attempt_log_path": WORDS,
    }
    begun_first = db.bring(db.put_task(tenant=GLOBEX), "RUNNING", worker_id=another.id, **full)
    first = attempt_of(begun_first)
    assert attempts_of(db, begun_first) == [first]
    again = db.move(begun_first, "QUEUED")
    first = replace(first, ended_at=again.entered_at, ended_by="lease_lost")
    waiting = Attempt(task_id=again.id, epoch=2, tenant=GLOBEX, session_id=WORDS)
    assert attempts_of(db, again) == [first, waiting], "the next one has a record before a worker begins it"
    begun_second = db.move(replace(again, session_id=None), "RUNNING", worker_id=another.id)
    second = Attempt(task_id=begun_second.id, epoch=2, tenant=GLOBEX, worker_id=another.id, started_at=begun_second.entered_at)
    assert attempts_of(db, begun_second) == [first, second]
    with db.store.read() as reader:
        (times,) = reader.list_attempt_times(GLOBEX, again.run_id)
    assert (times.task_id, times.epoch, times.worker_id, times.has_log) == (again.id, 1, another.id, True)
    assert (times.started_at, times.ended_at) == (first.started_at, first.ended_at)
    elsewhere = db.bring(db.put_task(), "RUNNING", worker_id=worker.id)
    assert attempts_of(db, elsewhere) == [attempt_of(elsewhere)]
    assert each_column_varies(first, second, attempt_of(elsewhere))


def attempts_of(db: StoreFixture, task: Task) -> list[Attempt]:
    with db.store.read() as reader:
        return reader.list_attempts(task.tenant, task.id)


def test_what_tenants_spend_is_added_up_and_leaves_their_budgets(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    spent = Account(tenant=GLOBEX, spent_usd=CENTS, tokens_in=MANY, tokens_out=1, cost_is_estimated=True)
    with db.transaction() as begun:
        assert begun.find_account(GLOBEX) is None
        begun.add_spending([Account(tenant=ACME, tokens_out=5), spent])
        begun.set_account_budgets([Account(tenant=GLOBEX, budget_usd=FORTUNE)])
        begun.add_spending([replace(spent, budget_usd=CENTS, cost_is_estimated=False)])
        begun.add_spending([])
    with db.store.read() as reader:
        ours, theirs = reader.find_account(ACME), reader.find_account(GLOBEX)
    assert ours == Account(tenant=ACME, tokens_out=5)
    assert theirs == replace(spent, budget_usd=FORTUNE, spent_usd=2 * CENTS, tokens_in=2 * MANY, tokens_out=2)
    assert each_column_varies(ours, theirs)
    with db.transaction() as begun:
        begun.set_account_budgets([Account(tenant=GLOBEX)])
        assert begun.find_account(GLOBEX) == replace(theirs, budget_usd=None)


def test_an_event_has_every_column_of_the_move(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run = db.put(db.run(tenant=GLOBEX, reason="because", actor="eve", metadata='{"n": 1}'))
    task = db.put_task(run, tenant=GLOBEX, state="RUNNING")
    failed = db.move(
        task, "FAILED", trigger="fail", reason=WORDS, actor=WORDS, metadata=JSON, entered_at=task.entered_at + SECOND / 4
    )
    breaker = db.put(db.breaker())
    history: list[Event] = []
    with db.store.read() as reader:
        for row in (run, failed, breaker):
            history += reader.list_history(row.tenant, row.id)
    began, *_, last, of_breaker = history
    assert began == Event(
        position=began.position,
        tenant=GLOBEX,
        kind="run",
        entity_id=run.id,
        revision=0,
        run_id=run.id,
        machine_id=run.machine_id,
        from_state=None,
        to_state="PENDING",
        trigger="create",
        severity="info",
        reason="because",
        actor="eve",
        metadata='{"n": 1}',
        at=AT,
        seconds_in_state=None,
    )
    assert last == Event(
        position=last.position,
        tenant=GLOBEX,
        kind="task",
        entity_id=task.id,
        revision=3,
        run_id=run.id,
        machine_id=task.machine_id,
        from_state="RUNNING",
        to_state="FAILED",
        trigger="fail",
        severity="error",
        reason=WORDS,
        actor=WORDS,
        metadata=JSON,
        at=failed.entered_at,
        seconds_in_state=0.25,
    )
    assert (of_breaker.kind, of_breaker.run_id, of_breaker.tenant) == ("breaker", None, ACME)
    assert len({event.position for event in history}) == len(history)
    assert each_column_varies(*history)


def test_large_texts_come_back_whole(db: StoreFixture) -> None:
    text = WORDS * 20_000
    task = db.put_task(payload=text)
    with db.transaction() as begun:
        assert [row.payload for row in begun.select_to_claim([task.id])] == [text]
