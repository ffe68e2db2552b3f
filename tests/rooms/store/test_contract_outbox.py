"""The outbox: notifications of transitions, each delivered by one process at a time, and the cursors of their targets."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, SECOND, WORDS, StoreFixture

from pointsman.store.rows import OutboxCursor, OutboxEntry, OutboxScope

HOOK = OutboxScope(targets=("hook",))
FLOWS = OutboxScope(flows_of=ACME)


def entry(position: int, target: str = "hook", **columns: Any) -> OutboxEntry:
    made: dict[str, Any] = {
        "id": f"msg_{position}_{target}",
        "position": position,
        "origin": "settings",
        "target": target,
        "method": "webhook",
        "tenant": ACME,
        "run_id": "run_1",
        "event": "run_ended",
        "subject": WORDS,
        "body": '{"type":"run_ended"}',
        "created_at": AT,
        "due_at": AT + position * SECOND,
    }
    return OutboxEntry(**made | columns)


def add(db: StoreFixture, *entries: OutboxEntry) -> list[OutboxEntry]:
    with db.transaction() as begun:
        for each in entries:
            begun.insert_outbox(each)
    return list(entries)


def find(db: StoreFixture, wanted: OutboxEntry) -> OutboxEntry:
    with db.store.read() as reader:
        (found,) = reader.find_outbox(wanted.tenant, [wanted.id, "unknown"])
    return found


def claim(db: StoreFixture, wanted: OutboxEntry, process: str) -> OutboxEntry:
    until = AT + 99 * SECOND
    with db.transaction() as begun:
        begun.claim_outbox(wanted.id, process, until)
    return replace(wanted, claimed_by=process, due_at=until, tries=wanted.tries + 1)


def test_only_one_process_advances_a_cursor(db: StoreFixture) -> None:
    hook, flows = (
        OutboxCursor(origin=origin, target=name, position=5) for origin, name in (("settings", "hook"), ("flow", ""))
    )
    with db.transaction() as begun:
        begun.open_outbox_cursor(hook)
        begun.open_outbox_cursor(flows)
        begun.open_outbox_cursor(replace(hook, position=1))  # another process has begun
    with db.transaction() as begun:
        assert begun.advance_outbox_cursor(hook, 8)
        assert not begun.advance_outbox_cursor(hook, 7), "it is not at 5 any more"
        assert not begun.advance_outbox_cursor(replace(hook, target="other"), 8)
    with db.store.read() as reader:
        assert reader.list_outbox_cursors() == [flows, replace(hook, position=8)]


def test_a_transition_is_noted_once_for_each_target(db: StoreFixture) -> None:
    first, other = add(db, entry(1), entry(1, "pager", run_id=None, method="command"))
    add(db, replace(entry(1), id="msg_again"))
    with db.store.read() as reader:
        assert reader.find_outbox(ACME, ["msg_again"]) == []
        assert reader.find_outbox(ACME, [first.id, other.id]) == [first, other]
        assert reader.find_outbox(GLOBEX, [first.id]) == []


def test_a_process_delivers_for_its_targets_and_the_flows_that_it_knows(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    first, second, _ = add(db, entry(1), entry(2), entry(3, "pager"))
    posted, ran, _ = add(
        db,
        entry(4, origin="flow"),
        entry(5, origin="flow", method="command"),
        entry(6, origin="flow", tenant=GLOBEX),
    )
    now = AT + 9 * SECOND
    with db.transaction() as begun:
        assert begun.select_due_outbox(HOOK, now, 9) == [first, second]
        assert begun.select_due_outbox(HOOK, now, 1) == [first]
        assert begun.select_due_outbox(HOOK, AT + SECOND, 9) == [first]
        assert begun.select_due_outbox(FLOWS, now, 9) == [posted], "a command runs only where its flow does"
        assert begun.select_due_outbox(replace(FLOWS, commands_of="run_1"), now, 9) == [posted, ran]
        assert begun.select_due_outbox(replace(FLOWS, commands_of="run_2"), now, 9) == [posted]
        assert begun.select_due_outbox(replace(FLOWS, commands_of="*"), now, 9) == [posted, ran]
    with db.store.read() as reader:
        assert (reader.count_outbox(HOOK), reader.next_due_outbox(HOOK)) == (2, first.due_at)
        assert (reader.count_outbox(FLOWS), reader.next_due_outbox(FLOWS)) == (1, posted.due_at)
        assert (reader.count_outbox(OutboxScope()), reader.next_due_outbox(OutboxScope())) == (0, None)


def test_only_the_last_process_that_claimed_a_notification_settles_it(db: StoreFixture) -> None:
    (noted,) = add(db, entry(1))
    late = claim(db, noted, "first")
    claimed = claim(db, late, "second")
    assert find(db, noted) == claimed
    delivered = replace(claimed, due_at=None, delivered_at=AT + 9 * SECOND)
    with db.transaction() as begun:
        assert not begun.settle_outbox(replace(late, due_at=None, delivered_at=AT))
        assert begun.settle_outbox(delivered)
    assert find(db, noted) == replace(delivered, claimed_by=None)
    with db.store.read() as reader:
        assert reader.count_outbox(HOOK) == 0


def test_dead_and_waiting_notifications_are_listed_and_tried_again(db: StoreFixture) -> None:
    dead, due, busy, done = add(db, entry(1), entry(2), entry(3), entry(4))
    failed = replace(claim(db, dead, "p"), due_at=None, dead_at=AT + SECOND, error=WORDS)
    posted = replace(claim(db, done, "p"), due_at=None, delivered_at=AT + SECOND)
    with db.transaction() as begun:
        assert begun.settle_outbox(failed)
        assert begun.settle_outbox(posted)
    busy = claim(db, busy, "p")
    with db.store.read() as reader:
        listed = {
            delivery: {each.id for each in reader.list_outbox(ACME, delivery=delivery, limit=9)}
            for delivery in (None, "due", "dead", "delivered")
        }
        assert listed.pop(None) == {each.id for each in (dead, due, busy, done)}
        assert listed == {"due": {due.id, busy.id}, "dead": {dead.id}, "delivered": {done.id}}
        (first,) = reader.list_outbox(ACME, limit=1)
        assert first.id == done.id, "the newest first"
        behind = reader.list_outbox(ACME, after=(first.created_at, first.id), limit=9)
        assert [each.id for each in behind] == [each.id for each in reader.list_outbox(ACME, limit=9)[1:]]
        assert reader.list_outbox(GLOBEX, limit=9) == []
    now = AT + 50 * SECOND
    with db.transaction() as begun:
        assert begun.retry_outbox(GLOBEX, [dead.id], now) == []
        assert begun.retry_outbox(ACME, [dead.id, busy.id, done.id], now) == [dead.id], "not one that is being delivered"
    assert find(db, dead) == replace(dead, due_at=now, error=WORDS)


def test_what_was_delivered_long_ago_is_forgotten(db: StoreFixture) -> None:
    entries = add(db, entry(1), entry(2), entry(3))
    for number, each in enumerate(entries[:2]):
        settled = replace(claim(db, each, "p"), due_at=None, delivered_at=AT + number * SECOND)
        with db.transaction() as begun:
            assert begun.settle_outbox(settled)
    with db.transaction() as begun:
        begun.purge_outbox(AT + SECOND, 9)
    with db.store.read() as reader:
        assert [each.id for each in reader.list_outbox(ACME, limit=9)] == [entries[2].id, entries[1].id]


def test_the_ends_of_runs_waiting_tasks_and_open_breakers_are_noteworthy(db: StoreFixture) -> None:
    run = db.put(db.run())
    task = db.bring(db.put_task(run), "WAITING_APPROVAL")
    breaker = db.bring(db.put(db.breaker()), "OPEN")
    db.bring(db.put(db.worker()), "IDLE")
    db.bring(run, "CANCELED")
    with db.store.read() as reader:
        moves = reader.list_noteworthy_transitions(0, 10**9, 99)
        found = [(move.entity_id, move.to_state) for move in moves]
        assert (task.id, "WAITING_APPROVAL") in found
        assert (breaker.id, "OPEN") in found
        assert found[-1] == (run.id, "CANCELED")
        assert {move.kind for move in moves} == {"task", "breaker", "run"}
        assert reader.list_noteworthy_transitions(int(moves[-1].position), 10**9, 99) == []
        assert reader.list_noteworthy_transitions(0, 10**9, 1) == moves[:1]
