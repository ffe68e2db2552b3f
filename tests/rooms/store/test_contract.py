"""One contract, one suite for every database. Here: the store as a whole."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace as with_fields
from datetime import timedelta
from pathlib import Path
from queue import Empty, Queue
from random import Random

import pytest
from msgspec.structs import replace
from tests.databases import open_store
from tests.rooms.store.store_fixture import (
    ACME,
    AT,
    GLOBEX,
    MACHINES,
    SECOND,
    WORDS,
    StoreFixture,
    find,
    hand_of,
    ids,
    insert,
    move,
    response,
    timer,
    transaction,
    update,
)

from pointsman.errors import Conflict, LawBroken
from pointsman.store.contract import Reader, Store, Transaction, Wakeup
from pointsman.store.law import rule_rows
from pointsman.store.rows import Dependency, MachineRow, Run


def nothing(*found: object) -> bool:
    return not any(found)


# The contract itself.


@pytest.mark.parametrize("protocol", [Store, Transaction, Reader])
def test_every_method_of_the_contract_is_exercised_here(protocol: type) -> None:
    suite = "\n".join(file.read_text("utf-8") for file in Path(__file__).parent.glob("test_contract*.py"))
    methods = [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert methods
    assert [name for name in methods if f".{name}(" not in suite] == []


# Machines, lanes, tenants.


def test_a_machine_is_kept_with_its_definition_and_every_version_beside_the_others(db: StoreFixture) -> None:
    newer = with_fields(MACHINES["standard.run"], version=99)
    with db.transaction() as begun:
        before = begun.list_machines()
        row = begun.insert_machine(newer, fingerprint="sha-2", definition=WORDS)
    assert row == MachineRow(
        id=row.id, name="standard.run", version=99, kind="run", fingerprint="sha-2", lifecycle="standard", definition=WORDS
    )
    with db.transaction() as begun:
        assert begun.list_machines() == [*before, row]
    assert [machine.name for machine in before] == list(MACHINES)
    assert [machine.id for machine in before] == sorted({machine.id for machine in before})


def test_the_moves_of_a_machine_that_was_stored_without_its_guards_are_guarded_later(db: StoreFixture) -> None:
    machine = with_fields(MACHINES["orchestrated.workstream"], version=99)
    unguarded = with_fields(machine, transitions=tuple(with_fields(move, guards=()) for move in machine.transitions))
    with db.transaction() as begun:
        row = begun.insert_machine(unguarded, fingerprint="sha-2", definition=WORDS)
    with db.transaction() as begun:
        assert row in begun.list_unguarded_machines()
        begun.guard_rules(row.id, machine)
        assert row not in begun.list_unguarded_machines()
    with db.store.read() as reader:
        guarded = [rule for rule in reader.list_rules() if rule.machine_id == row.id and rule.needs_dependencies]
    assert len(guarded) == sum(rule.needs_dependencies for rule in rule_rows(row.id, machine))


def test_a_version_of_a_machine_is_stored_once(db: StoreFixture) -> None:
    with pytest.raises(LawBroken), db.transaction() as begun:
        begun.insert_machine(MACHINES["standard.run"], fingerprint="other", definition="other")


def test_a_lane_is_created_once(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    wanted: list[tuple[str, str | None, str, bool]] = [
        (ACME, "git", "[]", False),
        (ACME, "git", "[]", True),
        (ACME, "git", '["gpu"]', False),
        (ACME, None, '["gpu"]', False),
        (ACME, WORDS, '["ü"]', False),
        (GLOBEX, "git", "[]", False),
    ]
    with db.transaction() as begun:
        (own,) = begun.list_lanes()
        lanes = [begun.insert_lane(tenant, tool, words, fails_fast=fast) for tenant, tool, words, fast in wanted]
    with db.transaction() as begun:
        assert [begun.insert_lane(tenant, tool, words, fails_fast=fast) for tenant, tool, words, fast in wanted] == lanes
        assert [(lane.tenant, lane.tool, lane.capabilities, lane.fails_fast) for lane in lanes] == wanted
        assert len({lane.id for lane in lanes}) == len(wanted)
        assert sorted(begun.list_lanes(), key=lambda lane: lane.id) == [own, *lanes], "of all tenants"
        assert [begun.find_tool(lane.id) for lane in lanes] == [lane.tool for lane in lanes]


def test_lanes_are_counted_when_they_are_created(db: StoreFixture) -> None:
    """Of all tenants, with those that the transaction itself has added; a known lane is not counted again."""
    db.tenant(GLOBEX)
    begun = db.store.begin()
    assert begun.count_lanes() == 1
    for tenant, expected in ((ACME, 2), (ACME, 2), (GLOBEX, 3), (GLOBEX, 3)):
        begun.insert_lane(tenant, "git", "[]", fails_fast=False)
        assert begun.count_lanes() == expected == len(begun.list_lanes())
    begun.rollback()
    with db.transaction() as begun:
        assert begun.count_lanes() == 1
        begun.insert_lane(GLOBEX, "git", "[]", fails_fast=True)
    with closing(open_store(db.url)) as other, transaction(other) as begun:
        assert begun.count_lanes() == 2
        begun.insert_lane(GLOBEX, "git", "[]", fails_fast=True)
        assert begun.count_lanes() == 2


def test_a_tenant_is_created_once_and_rows_need_an_existing_tenant(db: StoreFixture) -> None:
    stranger = db.run(tenant=GLOBEX)
    with pytest.raises(LawBroken):
        db.put(stranger)
    for at in (AT, AT + SECOND):
        with db.transaction() as begun:
            begun.ensure_tenant(GLOBEX, at)
    assert find(db.store, db.put(stranger)).tenant == GLOBEX


# Unknown names and empty batches.


def test_nothing_is_found_under_an_unknown_name(db: StoreFixture) -> None:
    with db.store.read() as reader:
        assert reader.find_run(ACME, "unknown") is None
        assert reader.find_task(ACME, "unknown") is None
        assert reader.find_worker(ACME, "unknown") is None
        assert reader.find_breaker(ACME, "unknown") is None
        assert reader.find_tool(999_999) is None
        assert nothing(reader.list_tasks(ACME, "unknown"), reader.list_attempts(ACME, "unknown"))
        assert nothing(reader.list_dependencies(ACME, "unknown"), reader.list_history(ACME, "unknown"))
        assert reader.list_runs("unknown", phase=None, after=None, limit=9) == []
        assert reader.next_due() is reader.next_silence() is None
    with db.transaction() as begun:
        assert begun.find_response(ACME, "nowhere", "nothing") is None
        assert nothing(begun.lock_runs(["unknown"]), begun.lock_workers(["unknown"]), begun.lock_breakers(ACME, ["unknown"]))
        assert nothing(begun.select_tasks(["unknown"]), begun.find_dependents(["unknown"]), begun.assess_subtasks(["unknown"]))
        assert nothing(
            begun.release_dependents(["unknown"]), begun.find_run_workers(["unknown"]), begun.find_held_tasks(["unknown"])
        )
        assert nothing(begun.select_to_claim(["unknown"]), begun.find_task_names("unknown"), begun.count_held(["unknown"]))
        assert nothing(begun.lock_runs([], of_tasks=["unknown"]))


def test_an_empty_batch_does_nothing(db: StoreFixture) -> None:
    run = db.put(db.run())
    with db.store.read() as reader:
        position = reader.last_position()
    with db.transaction() as begun:
        begun.insert_runs([])
        begun.insert_tasks([])
        begun.insert_workers([])
        begun.insert_breakers([])
        begun.move([], Run.CHANGING)
        begun.update([], Run.CHANGING)
        begun.insert_dependencies([])
        begun.insert_notices([])
        begun.set_timers([])
        begun.drop_timers([])
        begun.recount_dependencies([])
        begun.open_runs([], is_open=True)
        assert nothing(begun.take_timers([]), begun.release_dependents([]), begun.find_dependents([]))
        assert nothing(begun.assess_runs([]), begun.assess_subtasks([]), begun.lock_runs([]), begun.lock_workers([]))
        assert nothing(begun.lock_breakers(ACME, []), begun.select_tasks([]), begun.select_run_tasks(run.id, []))
        assert nothing(begun.select_claimable([], 9), begun.select_reclaimable([], 9))
        assert nothing(begun.find_claimable_runs([], 9), begun.select_allocated(run.id, [], 9))
        assert nothing(begun.select_claimable_of_run(run.id, [], 9))
        assert nothing(begun.find_held_tasks([]), begun.find_run_workers([]), begun.count_overstayed(AT, []))
        assert nothing(begun.select_to_claim([]), begun.count_held([]), begun.end_plain_tasks(ACME, [], [], AT))
        assert nothing(begun.begin_plain_tasks(db.worker(), ACME, [], 9, [], AT))
        assert begun.last_position() == position


def test_tenants_see_nothing_of_each_other(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run = db.put(db.run(tenant=GLOBEX))
    first, second = (db.put(db.task(run, tenant=GLOBEX, run_open=True)) for _ in range(2))
    task = db.bring(first, "RUNNING")
    worker = db.bring(db.put(db.worker(tenant=GLOBEX)), "IDLE")
    mine = db.put(db.worker())
    breaker = db.bring(db.put(db.breaker(tenant=GLOBEX, tool="git")), "OPEN")
    db.put(db.breaker(tool="git"))
    db.bring(second, "QUEUED")
    behind = db.put(db.task(run, tenant=GLOBEX, open_dependencies=1))
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(behind.id, first.id)])
        begun.set_timers([timer(run, tenant=GLOBEX)])
        begun.insert_response(response(tenant=GLOBEX))
    assert find(db.store, breaker) == breaker
    with db.transaction() as begun:
        assert nothing(begun.find_run(ACME, run.id), begun.find_task(ACME, task.id), begun.find_worker(ACME, worker.id))
        found = begun.find_breaker(ACME, "git")
        assert found is not None
        assert found.tenant == ACME
        assert nothing(begun.list_runs(ACME, phase=None, after=None, limit=9), begun.list_tasks(ACME, run.id))
        assert ids(begun.list_workers(ACME)) == [mine.id]
        assert ids(begun.list_workers(GLOBEX)) == [worker.id, hand_of(GLOBEX)]
        assert [row.tenant for row in begun.list_breakers(ACME)] == [ACME]
        assert begun.list_attempt_times(ACME, run.id) == []
        assert nothing(begun.list_attempts(ACME, task.id), begun.list_dependencies(ACME, run.id), begun.list_timers(ACME))
        assert nothing(begun.list_history(ACME, run.id), begun.list_transitions(ACME, after=None, limit=99, run_id=run.id))
        assert {event.entity_id for event in begun.list_transitions(ACME, after=None, limit=99, run_id=None)} == {
            mine.id,
            found.id,
        }
        assert not [name for name, *_ in begun.measure_transitions(ACME) if name == "standard.run"]
        assert nothing(begun.select_claimable([db.lane_id], 9), begun.find_claimable_runs([db.lane_id], 9))
        assert ids(begun.select_claimable([second.lane_id], 9)) == [second.id]
        assert nothing(begun.find_free_workers(ACME, 9), begun.list_guarded_breakers(ACME))
        assert begun.find_free_workers(GLOBEX, 9) == [worker.id]
        assert [row.tool for row in begun.list_guarded_breakers(GLOBEX)] == ["git"]
        assert [row.tenant for row in begun.lock_breakers(ACME, ["git"])] == [ACME]
        assert begun.find_response(ACME, "POST /runs", "key") is None


# Transactions.


def test_a_rollback_leaves_nothing_behind(db: StoreFixture) -> None:
    run = db.put(db.run())
    with db.store.read() as reader:
        position = reader.last_position()
    begun = db.store.begin()
    db.move_in(begun, run, "RUNNING")
    insert(
        begun,
        other := db.run(),
        first := db.task(other),
        second := db.task(other, open_dependencies=1),
        db.worker(),
        db.breaker(),
    )
    begun.insert_dependencies([Dependency(second.id, first.id)])
    begun.set_timers([timer(run)])
    begun.insert_response(response())
    begun.insert_lane(ACME, "git", "[]", fails_fast=True)
    begun.insert_machine(with_fields(MACHINES["standard.run"], version=99), fingerprint="2", definition="2")
    begun.ensure_tenant(GLOBEX, AT)
    begun.rollback()
    assert find(db.store, run) == run
    with db.transaction() as begun:
        assert ids(begun.list_runs(ACME, phase=None, after=None, limit=9)) == [run.id]
        assert nothing(begun.list_tasks(ACME, other.id), begun.list_dependencies(ACME, other.id), begun.list_timers(ACME))
        assert nothing(begun.list_workers(ACME), begun.list_breakers(ACME))
        assert begun.find_response(ACME, "POST /runs", "key") is None
        assert len(begun.list_lanes()) == 1
        assert len(begun.list_machines()) == len(MACHINES)
        assert begun.last_position() == position
        assert len(begun.list_history(ACME, run.id)) == 1


def test_uncommitted_changes_are_invisible(db: StoreFixture) -> None:
    run = db.run()
    begun = db.store.begin()
    begun.insert_runs([run])
    assert begun.find_run(ACME, run.id) == run
    with db.store.read() as reader:
        assert reader.find_run(ACME, run.id) is None
    begun.commit()
    with db.store.read() as reader:
        assert reader.find_run(ACME, run.id) == run


def test_any_number_of_threads_may_read_while_one_writes(db: StoreFixture) -> None:
    """Each of them sees whole commits only."""
    written = threading.Event()

    def read_until_all_is_written() -> set[int]:
        seen = set()
        while not written.is_set():
            with db.store.read() as reader:
                runs = reader.list_runs(ACME, phase=None, after=None, limit=1)
                seen |= {len(reader.list_tasks(ACME, run.id)) for run in runs}
        return seen

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_until_all_is_written) for _ in range(4)]
        try:
            for _ in range(30):
                with db.transaction() as begun:
                    insert(begun, run := db.run())
                    insert(begun, *(db.task(run) for _ in range(3)))
        finally:
            written.set()
        assert all(reader.result() <= {3} for reader in readers)


def test_a_transaction_has_one_time_and_time_never_goes_back(db: StoreFixture) -> None:
    instants = []
    for _ in range(3):
        with db.transaction() as begun:
            instants.append(begun.now())
            insert(begun, db.run())
            assert begun.now() == instants[-1]
    assert instants == sorted(instants)
    assert all(instant.utcoffset() == timedelta(0) for instant in instants)


def test_a_correction_of_the_clock_changes_the_time_of_all_that_follows(db: StoreFixture) -> None:
    with db.transaction() as begun:
        time = begun.time()
        begun.correct_clock(time.correct(3600.0))
        assert begun.now() == time.now - timedelta(hours=1)
    with db.store.read() as reader:
        corrected = reader.time()
        assert (corrected.revision, corrected.offset_seconds, corrected.corrected_at) == (time.revision + 1, -3600.0, time.wall)
    with db.transaction() as begun:
        assert begun.time().revision == time.revision + 1
        begun.correct_clock(begun.time().correct(-1.0))
        assert begun.time().offset_seconds == pytest.approx(-3599, abs=1)


def test_two_processes_do_not_correct_the_same_step(db: StoreFixture) -> None:
    with db.transaction() as begun:
        seen_by_both = begun.time()
        begun.correct_clock(seen_by_both.correct(3600.0))
    with db.transaction() as begun:
        with pytest.raises(Conflict):
            begun.correct_clock(seen_by_both.correct(3600.0))
        begun.correct_clock(begun.time().correct(-3600.0))


def test_committed_rows_outlive_the_store(db: StoreFixture) -> None:
    run = db.put(db.run())
    url = db.store.url
    db.store.close()
    with closing(open_store(db.url)) as store:
        assert find(store, run) == run
        assert store.url == url


@pytest.mark.parametrize(
    ("machine", "to_state"),
    [("standard.run", "RUNNING"), ("standard.task", "QUEUED"), ("standard.worker", "IDLE"), ("standard.breaker", "OPEN")],
)
def test_the_second_writer_of_a_row_gets_a_conflict(db: StoreFixture, machine: str, to_state: str) -> None:
    row, bystander = db.put(db.entity(machine)), db.put(db.entity(machine))
    after = db.moved(bystander, to_state)
    moved = db.move(row, to_state)
    for stale in (db.moved(row, to_state), replace(moved, revision=9), replace(moved, id="unknown")):
        with pytest.raises(Conflict), db.transaction() as begun:
            move(begun, after, stale)
    for stale in (row, replace(moved, revision=9), replace(moved, id="unknown")):
        with pytest.raises(Conflict), db.transaction() as begun:
            update(begun, bystander, stale)
    assert find(db.store, row) == moved
    assert find(db.store, bystander) == bystander


def test_only_the_columns_that_are_named_are_stored(db: StoreFixture) -> None:
    """So a batch writes only what has changed."""
    run, bystander = db.put(db.run(error="old")), db.put(db.run())
    moved = db.moved(run, "CANCELED", reason="enough")
    columns = ["state", "phase", "outcome", "revision", "trigger", "completed_at"]
    with db.transaction() as begun:
        begun.move([replace(moved, error="new", missing_tasks=5)], columns)
    stored = replace(run, **{column: getattr(moved, column) for column in columns})
    assert find(db.store, run) == stored
    with db.transaction() as begun:
        begun.update([replace(stored, error="newer", missing_tasks=5), replace(bystander, error="newer")], ["error"])
    assert find(db.store, run) == replace(stored, error="newer")
    assert find(db.store, bystander) == replace(bystander, error="newer")


def test_rows_of_a_batch_may_differ_in_every_column(db: StoreFixture) -> None:
    """PostgreSQL gets a value that all rows share once, and other values row by row."""
    runs = [db.put(db.run()) for _ in range(4)]
    texts = (None, "null", WORDS, "")
    moved = [
        db.moved(run, "PAUSED", reason=text, missing_tasks=number, spent_usd=number, entered_at=AT + number * SECOND)
        for number, (run, text) in enumerate(zip(runs, texts, strict=True))
    ]
    with db.transaction() as begun:
        begun.move(moved, Run.CHANGING)
        assert begun.lock_runs(ids(runs)) == moved
        changed = [replace(run, error=text, spent_usd=run.spent_usd + 1) for run, text in zip(moved, texts[::-1], strict=True)]
        begun.update(changed, ["error", "spent_usd"])
    assert [find(db.store, run) for run in runs] == changed


def test_the_store_works_after_a_refused_change(db: StoreFixture) -> None:
    run = db.put(db.run())
    with pytest.raises(LawBroken), db.transaction() as begun:
        begun.insert_runs([db.run(), replace(db.run(), state="SUCCEEDED", phase="done")])
    assert db.move(run, "RUNNING") == find(db.store, run)
    with db.store.read() as reader:
        assert ids(reader.list_runs(ACME, phase=None, after=None, limit=9)) == [run.id]


# Wake-ups.


def listening(store: Store) -> tuple[Queue[Wakeup], Callable[[], None]]:
    heard: Queue[Wakeup] = Queue()
    return heard, store.listen(heard.put)


def test_every_listener_hears_of_a_commit(db: StoreFixture) -> None:
    """A commit without a wake-up and a rollback are not heard."""
    with closing(open_store(db.url)) as other:
        (there, _), (here, _) = listening(other), listening(db.store)
        for wakeup in (Wakeup.TASKS, Wakeup.TIMERS | Wakeup.EVENTS, Wakeup.TASKS | Wakeup.TIMERS | Wakeup.EVENTS):
            with db.transaction():
                pass
            db.store.begin().rollback()
            with db.transaction(wakeup) as begun:
                insert(begun, db.run())
            assert there.get(timeout=10) == wakeup
            assert here.get(timeout=10) == wakeup
        with transaction(other, Wakeup.TIMERS):
            pass
        assert here.get(timeout=10) == Wakeup.TIMERS


def test_a_commit_is_visible_when_its_wakeup_is_heard(db: StoreFixture) -> None:
    with closing(open_store(db.url)) as other:
        there, _ = listening(other)
        run = db.run()
        with db.transaction(Wakeup.EVENTS) as begun:
            begun.insert_runs([run])
        there.get(timeout=10)
        assert find(other, run) == run


def test_a_listener_that_stops_hears_no_more(db: StoreFixture) -> None:
    with closing(open_store(db.url)) as other:
        (deaf, stop), (there, _) = listening(other), listening(other)
        stop()
        stop()
        with db.transaction(Wakeup.TASKS):
            pass
        there.get(timeout=10)
        with pytest.raises(Empty):
            deaf.get_nowait()


def test_a_closed_store_does_not_disturb_others(db: StoreFixture) -> None:
    other = open_store(db.url)
    listening(other)
    other.close()
    heard, _ = listening(db.store)
    with db.transaction(Wakeup.EVENTS):
        pass
    assert heard.get(timeout=10) == Wakeup.EVENTS


def test_whoever_looks_when_it_is_woken_misses_no_commit(db: StoreFixture) -> None:
    """However the commits are spread in time: some come at once, some just when an announcement was made."""
    chance = Random(1)
    with closing(open_store(db.url)) as other, looking(other) as there, looking(db.store) as here:
        for _ in range(40):
            for _ in range(chance.randrange(1, 4)):
                run = db.run()
                with db.transaction(chance.choice((Wakeup.EVENTS, Wakeup.EVENTS, Wakeup.EVENTS | Wakeup.TASKS))) as begun:
                    begun.insert_runs([run])
                threading.Event().wait(chance.choice((0.0, 0.0, chance.uniform(0.0, 0.06))))
            for seen in (there, here):
                while seen.get(timeout=10) != run.id:
                    pass


@contextmanager
def looking(store: Store) -> Iterator[Queue[str]]:
    """The latest run, whenever a wake-up says that there are events."""
    seen: Queue[str] = Queue()
    heard, stop = listening(store)

    def look() -> None:
        while wakeup := heard.get():
            if Wakeup.EVENTS in wakeup:
                with store.read() as reader:
                    seen.put(reader.list_runs(ACME, phase=None, after=None, limit=1)[0].id)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop()
        heard.put(Wakeup.NOTHING)
        thread.join()
