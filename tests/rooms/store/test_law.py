"""The database keeps the law: every change of a state follows a declared transition and is audited, whoever makes it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace as with_fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.rooms.store.outsider import Outsider, Refused, kind_of, type_columns, type_row, type_values
from tests.rooms.store.store_fixture import (
    ACME,
    AT,
    HAND,
    MACHINES,
    SECOND,
    StoreFixture,
    attempt_of,
    find,
    ids,
    insert,
    move,
    route,
    update,
)

from pointsman.errors import Conflict, LawBroken
from pointsman.kernel.machine import Kind, Machine, Phase
from pointsman.store.contract import Transaction
from pointsman.store.rows import ZERO_USD, Attempt, Dependency, Entity, Task, Transition

HOUR = timedelta(hours=1)
OF_EACH_KIND = ("standard.run", "standard.task", "standard.worker", "standard.breaker")


@pytest.fixture
def db(shared_db: StoreFixture) -> StoreFixture:
    return shared_db


def history_of(db: StoreFixture, row: Entity) -> list[Transition]:
    with db.store.read() as reader:
        return reader.list_history(row.tenant, row.id)


def attempts_of(db: StoreFixture, row: Entity) -> list[Attempt]:
    """Those that have begun."""
    with db.store.read() as reader:
        return [attempt for attempt in reader.list_attempts(row.tenant, row.id) if attempt.started_at]


# Every move that can be typed at a prompt.


def stand_everywhere(db: StoreFixture, machine: Machine) -> dict[tuple[str, str], Entity]:
    """For each pair of states an entity in the first; tasks have a session, in case the second state needs one."""
    placed: dict[tuple[str, str], Entity] = {}
    with db.transaction() as begun:
        for before in machine.states:
            for after in machine.states:
                insert(begun, row := new_entity(db, begun, machine))
                placed[before.name, after.name] = db.bring_in(begun, row, before.name, reason="engine")
    return placed


def new_entity(db: StoreFixture, begun: Transaction, machine: Machine) -> Entity:
    if machine.kind != Kind.TASK:
        return db.entity(machine.name)
    insert(begun, run := db.run())
    return db.task(run, machine.name, session_id="session")


def may_be_typed(machine: Machine, before: str, after: str) -> bool:
    """An UPDATE cannot create an attempt, so no task becomes active by hand."""
    starts_work = machine.kind == Kind.TASK and machine.state(after).phase == Phase.ACTIVE
    return machine.may(before, after) and not starts_work


@pytest.mark.parametrize("name", MACHINES)
def test_a_typed_state_is_audited_where_a_rule_allows_it_and_refused_everywhere_else(
    db: StoreFixture, prompt: Outsider, name: str
) -> None:
    machine = MACHINES[name]
    placed = stand_everywhere(db, machine)
    began = datetime.now(UTC)
    for (before, after), row in placed.items():
        if before == after or may_be_typed(machine, before, after):
            type_columns(prompt, row, state=after)
        else:
            with pytest.raises(Refused, match="." if machine.may(before, after) else "pointsman: no rule"):
                type_columns(prompt, row, state=after)
    ended = datetime.now(UTC)
    for (before, after), row in placed.items():
        *_, last = history = history_of(db, row)
        assert_fold(machine, history, find(db.store, row))
        if before == after or not may_be_typed(machine, before, after):
            assert find(db.store, row) == row
            assert len(history) == row.revision + 1
        else:
            assert_audited(machine, row, last)
            assert began - SECOND <= last.at <= ended + SECOND
            assert find(db.store, row) == typed(machine, row, last)
            assert_attempt_ended(db, row, last)
    with db.store.read() as reader:
        assert {name for _, name, _ in reader.list_disagreements()}.isdisjoint(row.id for row in placed.values())


def assert_audited(machine: Machine, row: Entity, last: Transition) -> None:
    rules = [rule for rule in machine.between(row.state, last.to_state) if rule.trigger == last.trigger]
    assert last == Transition(
        position=last.position,
        tenant=row.tenant,
        kind=machine.kind.value,
        entity_id=row.id,
        revision=row.revision + 1,
        run_id={"run": row.id, "task": getattr(row, "run_id", None)}.get(machine.kind.value),
        machine_id=row.machine_id,
        from_state=row.state,
        to_state=last.to_state,
        trigger=last.trigger,
        severity=last.severity,
        reason=None,
        actor="sql",
        metadata=None,
        at=last.at,
        seconds_in_state=last.seconds_in_state,
    )
    assert last.seconds_in_state == pytest.approx((last.at - row.entered_at).total_seconds())
    assert last.severity in [rule.severity for rule in rules]


def typed(machine: Machine, row: Entity, last: Transition) -> Entity:
    """The row after its state was typed by hand, with everything that follows from the state."""
    state = machine.state(last.to_state)
    freed = {"current_attempt": None, "worker_id": None} if isinstance(row, Task) else {}
    return replace(
        row,
        state=state.name,
        phase=state.phase.value,
        outcome=state.outcome and state.outcome.value,
        revision=row.revision + 1,
        trigger=last.trigger,
        reason=None,
        actor="sql",
        metadata=None,
        entered_at=last.at,
        started_at=row.started_at or last.at if state.phase == Phase.ACTIVE else row.started_at,
        completed_at=last.at if state.phase == Phase.DONE else None,
        **freed,
    )


def assert_attempt_ended(db: StoreFixture, row: Entity, last: Transition) -> None:
    if isinstance(row, Task) and row.current_attempt:
        assert attempts_of(db, row)[-1] == attempt_of(row, ended_at=last.at, ended_by=last.trigger)


def assert_fold(machine: Machine, history: list[Transition], row: Entity) -> None:
    """Each move starts where the one before ended, the first in the initial state; the last one leads to the row as it is."""
    states = [None, *(event.to_state for event in history)]
    assert [event.from_state for event in history] == states[:-1]
    assert states[1] == machine.initial.name
    assert states[-1] == row.state
    assert [event.revision for event in history] == list(range(row.revision + 1))
    assert all(event.from_state is None or machine.may(event.from_state, event.to_state) for event in history)


@pytest.mark.parametrize("seed", range(3))
def test_the_audit_trail_explains_every_state_after_random_changes(db: StoreFixture, prompt: Outsider, seed: int) -> None:
    """The engine and a person at a prompt take turns to move the same rows at random."""
    chance = Random(seed)
    rows = [db.put(db.entity(name)) for name in MACHINES]
    for _ in range(150):
        row = find(db.store, chance.choice(rows))
        machine = db.machine_of(row)
        to_state = chance.choice([*machine.states, *(machine.state(name) for name in machine.allowed(row.state) * 3)]).name
        with suppress(Refused):
            if chance.random() < 0.5:
                type_columns(prompt, row, state=to_state)
            elif machine.may(row.state, to_state):
                db.move(row, to_state)
    for row in rows:
        found = find(db.store, row)
        assert_fold(db.machine_of(row), history_of(db, row), found)
        if isinstance(found, Task):
            assert [attempt.epoch for attempt in attempts_of(db, found)] == list(range(1, found.epoch + 1))
    with db.store.read() as reader:
        assert {name for _, name, _ in reader.list_disagreements()}.isdisjoint(ids(rows))


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_state_that_the_machine_does_not_have_is_refused(db: StoreFixture, prompt: Outsider, name: str) -> None:
    row = db.put(db.entity(name))
    for state in ("DANCING", "", row.state.lower()):
        with pytest.raises(Refused, match="pointsman"):
            type_columns(prompt, row, state=state)
    assert find(db.store, row) == row


# Changes by hand, in detail.


def test_metadata_that_looks_like_that_of_a_claim_is_kept(db: StoreFixture) -> None:
    """The trail leaves out only what follows from a claim."""
    task = db.put_task(state="RUNNING")
    held = f'{{"worker_id":"{task.attempt_worker_id}","epoch":{task.epoch}}}'
    canceled = db.move(task, "CANCELED", actor=task.attempt_worker_id, metadata=held)
    assert history_of(db, canceled)[-1].metadata == held
    with db.store.read() as reader:
        assert reader.list_broken_trails() == []


def test_a_reason_that_is_typed_with_the_state_is_kept(db: StoreFixture, prompt: Outsider) -> None:
    run = db.bring(db.put(db.run()), "RUNNING", reason="old news", metadata='{"old": 1}')
    type_columns(prompt, run, state="PAUSED", reason="the mayor visits: 転轍手")
    type_columns(prompt, run, state="RUNNING")
    paused, resumed = history_of(db, run)[-2:]
    assert (paused.reason, paused.metadata) == ("the mayor visits: 転轍手", None)
    assert (resumed.reason, resumed.metadata) == (None, None)


def test_other_columns_may_be_typed_together_with_the_state(db: StoreFixture, prompt: Outsider) -> None:
    task = db.put_task(state="QUEUED")
    type_columns(prompt, task, state="SKIPPED", comment="not today", output='"nothing"')
    found = find(db.store, task)
    assert (found.outcome, found.comment, found.output) == ("success", "not today", '"nothing"')


def test_a_typed_batch_is_audited_row_by_row(db: StoreFixture, prompt: Outsider) -> None:
    run = db.put(db.run())
    tasks = [db.put_task(run, state=state) for state in ("PENDING", "QUEUED", "RUNNING", "VALIDATING", "READY")]
    bystander = db.put_task(state="QUEUED")
    prompt.ask("UPDATE task SET state = 'CANCELED' WHERE run_id = :id", id=run.id)
    for task in tasks:
        last = history_of(db, task)[-1]
        assert (last.from_state, last.to_state, last.actor) == (task.state, "CANCELED", "sql")
        assert find(db.store, task) == typed(MACHINES["standard.task"], task, last)
        assert_attempt_ended(db, task, last)
    assert find(db.store, bystander) == bystander


def test_a_typed_batch_with_one_illegal_move_changes_nothing(db: StoreFixture, prompt: Outsider) -> None:
    run = db.put(db.run())
    tasks = [db.put_task(run, state=state) for state in ("PENDING", "SUCCEEDED", "QUEUED")]
    with pytest.raises(Refused, match="pointsman"):
        prompt.ask("UPDATE task SET state = 'CANCELED' WHERE run_id = :id", id=run.id)
    assert [find(db.store, task) for task in tasks] == tasks
    assert [history_of(db, task)[-1].actor for task in tasks] == [None, "engine", "engine"]


def test_time_does_not_run_backwards_for_a_typed_move(db: StoreFixture, prompt: Outsider) -> None:
    """The clocks of two machines may disagree, but no move is earlier than the one before."""
    ahead = datetime.now(UTC) + HOUR
    run = db.put(db.run(entered_at=ahead, created_at=ahead))
    type_columns(prompt, run, state="RUNNING")
    last = history_of(db, run)[-1]
    assert (last.at, last.seconds_in_state) == (ahead, 0)
    assert find(db.store, run).started_at == ahead


def test_a_writer_that_read_a_row_before_a_typed_move_gets_a_conflict(db: StoreFixture, prompt: Outsider) -> None:
    """Otherwise a timer of the old state would still fire, and a stale row would overwrite the new one."""
    for name, state in zip(OF_EACH_KIND, ("RUNNING", "QUEUED", "IDLE", "OPEN"), strict=True):
        row = db.put(db.entity(name))
        type_columns(prompt, row, state=state)
        with pytest.raises(Conflict), db.transaction() as begun:
            move(begun, db.moved(row, state))
        assert find(db.store, row).revision == row.revision + 1


def test_the_engine_continues_after_a_typed_move(db: StoreFixture, prompt: Outsider) -> None:
    task = db.put_task()
    type_columns(prompt, task, state="QUEUED")
    task = db.bring(find(db.store, task), "SUCCEEDED", entered_at=datetime.now(UTC) + HOUR)
    assert find(db.store, task) == task
    assert [event.actor for event in history_of(db, task)] == [None, "sql", HAND, "engine"]


def test_a_typed_move_clears_the_columns_that_its_state_cannot_have(db: StoreFixture, prompt: Outsider) -> None:
    run = db.put(db.run())
    task = db.bring(db.put_task(run), "RUNNING", reserved_usd=Decimal(1))
    waiting = db.put_task(run, state="QUEUED", available_at=AT)
    worker = db.bring(db.put(db.worker(run_id=run.id)), "IDLE")
    breaker = db.bring(db.put(db.breaker()), "HALF_OPEN", probe_task_id=task.id)
    for row, state in ((task, "FAILED"), (waiting, "SKIPPED"), (worker, "PAUSED"), (breaker, "OPEN")):
        type_columns(prompt, row, state=state)
    found = find(db.store, task)
    assert (found.current_attempt, found.worker_id, found.lease_expired, found.reserved_usd) == (None, None, False, ZERO_USD)
    assert find(db.store, waiting).available_at is None
    assert find(db.store, breaker).probe_task_id is None
    assert find(db.store, worker).run_id == run.id, "a paused worker still belongs to its run"
    type_columns(prompt, worker, state="TERMINATED")
    assert find(db.store, worker).run_id is None


def test_a_task_that_waits_for_others_is_not_queued_by_hand_where_its_machine_forbids_it(
    db: StoreFixture, prompt: Outsider
) -> None:
    waiting = db.put_task(machine="orchestrated.task", open_dependencies=1)
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, waiting, state="queued")
    free = db.put_task(machine="orchestrated.task")
    type_columns(prompt, free, state="queued")
    assert (find(db.store, waiting).state, find(db.store, free).state) == ("pending", "queued")


def test_a_task_without_a_session_is_not_blocked_by_hand_where_its_machine_wants_one(
    db: StoreFixture, prompt: Outsider
) -> None:
    task = db.put_task(machine="agent.task", state="RUNNING")
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, task, state="BLOCKED")
    assert find(db.store, task) == task
    type_columns(prompt, task, session_id="s")
    type_columns(prompt, task, state="BLOCKED")


# Creation.


@pytest.mark.parametrize("name", MACHINES)
def test_every_entity_is_created_in_the_initial_state_of_a_machine_of_its_kind(db: StoreFixture, name: str) -> None:
    machine = MACHINES[name]
    with db.transaction() as begun:
        hand = db.hand_in(begun)
    row = db.entity(name)
    wrong: list[Entity] = [replace(row, revision=1), replace(row, machine_id=9999)]
    for state in machine.states:
        if not state.initial:
            done = {"outcome": state.outcome and state.outcome.value, "completed_at": AT if state.outcome else None}
            runs = machine.kind == Kind.TASK and state.phase == Phase.ACTIVE
            held = {"current_attempt": 1, "epoch": 1, "attempt_worker_id": hand, "attempt_started_at": AT} if runs else {}
            held |= {"worker_id": hand} if "worker" in state.needs else {}
            wrong.append(replace(row, state=state.name, phase=state.phase.value, **done, **held))
    wrong += [replace(row, epoch=1), replace(row, attempt_worker_id=hand)] if isinstance(row, Task) else []
    wrong += [replace(row, outcome=outcome) for outcome in ("success", "glory")]
    wrong += [replace(row, phase=phase) for phase in ("held", "queued") if phase != machine.initial.phase]
    for other in MACHINES.values():
        if other.kind != machine.kind:
            there = {"state": other.initial.name, "phase": other.initial.phase.value}
            wrong.append(replace(row, machine_id=db.machine_ids[other.name], **there))
    for each in wrong:
        with pytest.raises(LawBroken), db.transaction() as begun:
            insert(begun, each)
    assert history_of(db, row) == []
    assert find(db.store, db.put(row)) == row
    assert_fold(machine, history_of(db, row), row)


@pytest.mark.parametrize("name", [name for name in MACHINES if MACHINES[name].kind == Kind.TASK])
def test_a_task_that_waits_for_nothing_is_created_with_its_first_move(db: StoreFixture, name: str) -> None:
    """One INSERT, and two lines."""
    machine = MACHINES[name]
    created = db.entity(name)
    first = next(iter(machine.moves_on.get((machine.initial.name, "ready"), ())), None)
    if first is None:
        with pytest.raises(LawBroken), db.transaction() as begun:
            insert(begun, replace(created, revision=1, trigger="ready"))
        return
    ready = replace(db.moved(created, first.to_state, trigger=first.trigger), entered_at=AT, actor="ada")
    assert isinstance(ready, Task)
    initial, trigger = machine.initial.name, ready.trigger
    begun_so = {move.to_state for move in machine.transitions if (move.from_state, move.trigger) == (initial, trigger)}
    states = [state for state in machine.states if state.name not in begun_so]
    wrong = [replace(ready, state=state.name, phase=state.phase.value) for state in states]
    wrong += [replace(ready, revision=revision) for revision in (0, 2)]
    wrong += [replace(ready, trigger="shrug"), replace(ready, phase="active"), replace(ready, outcome="success")]
    wrong += [replace(ready, epoch=1), replace(ready, attempt_worker_id="bob"), replace(ready, open_dependencies=1)]
    wrong += [replace(ready, entered_at=AT + SECOND), replace(ready, machine_id=db.machine_ids["standard.run"])]
    for each in wrong:
        with pytest.raises(LawBroken), db.transaction() as begun:
            insert(begun, each)
    assert find(db.store, db.put(ready)) == ready
    history = history_of(db, ready)
    assert [(line.revision, line.trigger, line.actor) for line in history] == [(0, "create", "ada"), (1, first.trigger, "ada")]
    assert_fold(machine, history, ready)
    other = db.put_task(db.put(db.run()))
    with pytest.raises(LawBroken), db.transaction() as begun:
        begun.insert_dependencies([Dependency(ready.id, other.id)])


def test_nothing_is_created_twice(db: StoreFixture, prompt: Outsider) -> None:
    """REPLACE in SQLite deletes a row before it inserts another."""
    for row in (db.put(db.run()), db.bring(db.put(db.run()), "SUCCEEDED")):
        again = replace(row, state="PENDING", phase="queued", outcome=None, revision=0, completed_at=None)
        for insertion in ("INSERT", "INSERT OR REPLACE") if prompt.dialect == "sqlite" else ("INSERT",):
            with pytest.raises(Refused):
                type_row(prompt, again, insertion)
        assert find(db.store, row) == row


# What cannot be changed.


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_an_entity_keeps_its_id_its_machine_and_its_tenant(db: StoreFixture, prompt: Outsider, name: str) -> None:
    row = db.put(db.entity(name))
    db.tenant("globex")
    with db.transaction() as begun:
        newer = begun.insert_machine(with_fields(MACHINES[name], version=99), fingerprint="2", definition="2")
    for columns in ({"id": "other"}, {"machine_id": newer.id}, {"tenant": "globex"}):
        with pytest.raises(Refused, match="pointsman"):
            type_columns(prompt, row, **columns)
    assert find(db.store, row) == row


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_phase_follows_from_its_state_and_changes_with_nothing_else(db: StoreFixture, prompt: Outsider, name: str) -> None:
    row = db.put(db.entity(name))
    other = "queued" if row.phase == "held" else "held"
    over = {"phase": "done", "outcome": "success", "completed_at": row.created_at}
    for columns in ({"phase": other}, over, {**over, "revision": 1}, {"phase": other, "revision": 1, "actor": "sql"}):
        with pytest.raises(Refused):
            type_columns(prompt, row, **columns)
    assert find(db.store, row) == row


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_revision_counts_moves(db: StoreFixture, prompt: Outsider, name: str) -> None:
    row = db.put(db.entity(name))
    for revision in (-1, 1, 2):
        for actor in ("sql", "mallory", None):
            with pytest.raises(Refused, match="pointsman"):
                type_columns(prompt, row, revision=revision, actor=actor)
        with pytest.raises(Refused, match="pointsman"):
            type_columns(prompt, row, revision=revision)
    moved = db.bring(row, {"run": "RUNNING", "task": "RUNNING", "worker": "IDLE"}.get(kind_of(row), "OPEN"))
    history = history_of(db, row)
    for columns in (
        "revision = revision + 1, actor = 'sql'",
        "revision = revision + 1",
        "revision = revision - 1, actor = 'sql'",
    ):
        with pytest.raises(Refused, match="pointsman"):
            prompt.ask(f"UPDATE {kind_of(row)} SET {columns} WHERE id = :id", id=row.id)
    assert find(db.store, row) == moved
    assert history_of(db, row) == history


def test_the_audit_trail_cannot_be_changed(db: StoreFixture, prompt: Outsider) -> None:
    run = db.bring(db.put(db.run()), "SUCCEEDED")
    history = history_of(db, run)
    for statement in (
        "UPDATE transition SET actor = 'unknown'",
        "UPDATE transition SET to_state = 'FAILED' WHERE to_state = 'SUCCEEDED'",
        "DELETE FROM transition",
        "DELETE FROM transition WHERE to_state = 'SUCCEEDED'",
        "UPDATE trail SET actor = 'unknown'",
        "UPDATE trail SET rule_id = rule_id + 1 WHERE revision > 0",
        "DELETE FROM trail",
        "DELETE FROM trail WHERE revision > 0",
        *(["TRUNCATE trail"] if prompt.dialect == "postgres" else []),
    ):
        with pytest.raises(Refused, match="pointsman"):
            prompt.ask(statement)
    assert history_of(db, run) == history


def insertions(prompt: Outsider) -> tuple[str, ...]:
    """REPLACE in SQLite deletes a row before it inserts another."""
    return ("INSERT", "INSERT OR REPLACE", "REPLACE") if prompt.dialect == "sqlite" else ("INSERT",)


FORGERIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "at a position that is taken": lambda line: {"revision": line["revision"] + 1},
    "at a position and a revision that are taken": lambda _: {},
    "of a revision that has its line": lambda _: {"position": FAR},
    "of the first revision": lambda _: {"position": FAR, "revision": 0},
    "of the next revision": lambda line: {"position": FAR, "revision": line["revision"] + 1},
    "of a revision before the first": lambda _: {"position": FAR, "revision": -1},
    "of an unknown entity": lambda _: {"position": FAR, "number": FAR, "revision": 0},
    "of an unknown entity, at a position that is taken": lambda _: {"number": FAR, "revision": 0},
    "of an attempt": lambda line: {"position": FAR, "kind": 1, "epoch": 1, "started_at": line["at"], "worker_id": HAND},
    "of another kind": lambda _: {"position": FAR, "kind": 9},
}
FAR = 1_000_000_000


@pytest.mark.parametrize("name", OF_EACH_KIND)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_only_the_law_writes_the_audit_trail(db: StoreFixture, prompt: Outsider, name: str, forgery: str) -> None:
    row = db.put(db.entity(name))
    row = db.bring(row, db.machine_of(row).allowed(row.state)[0])
    history = history_of(db, row)
    whole = prompt.ask("SELECT count(*), max(position) FROM trail")
    names = ("position", "at", "number", "kind", "revision", "rule_id")
    (last,) = prompt.ask(f"SELECT {', '.join(names)} FROM trail WHERE position = {history[-1].position}")
    line = dict(zip(names, last, strict=True))
    forged = line | {"actor": "mallory"} | FORGERIES[forgery](line)
    for insertion in insertions(prompt):
        with pytest.raises(Refused, match="pointsman"):
            type_values(prompt, "trail", forged, insertion)
        with pytest.raises(Refused, match="pointsman"):
            type_row(prompt, replace(history[-1], actor="mallory"), insertion)
    assert history_of(db, row) == history
    assert prompt.ask("SELECT count(*), max(position) FROM trail") == whole


def test_the_audit_trail_cannot_be_copied_into_itself(db: StoreFixture, prompt: Outsider) -> None:
    run = db.bring(db.put(db.run()), "SUCCEEDED")
    history = history_of(db, run)
    columns = "at, number, kind, revision, rule_id, run_id, reason, metadata"
    for insertion in insertions(prompt):
        for line in (columns, f"position, {columns}") if prompt.dialect == "sqlite" else (columns,):
            with pytest.raises(Refused, match="pointsman"):
                prompt.ask(
                    f"{insertion} INTO trail ({line}, actor) SELECT {line}, 'mallory' FROM trail "
                    "WHERE kind = 0 AND number = (SELECT number FROM run WHERE id = :id)",
                    id=run.id,
                )
    assert history_of(db, run) == history


@pytest.mark.parametrize("table", ["run", "task", "task_spec", "task_state", "worker", "breaker", "attempt"])
def test_rows_under_the_law_cannot_be_deleted(db: StoreFixture, prompt: Outsider, table: str) -> None:
    task, ended = db.put_task(state="RUNNING"), db.move(db.put_task(state="RUNNING"), "FAILED")
    db.put(db.breaker())
    attempts = attempts_of(db, ended)
    truncates = prompt.dialect == "postgres" and table not in ("attempt", "task")  # which are views
    for statement in (f"DELETE FROM {table}", *([f"TRUNCATE {table} CASCADE"] if truncates else [])):
        with pytest.raises(Refused, match="pointsman"):
            prompt.ask(statement)
    assert find(db.store, task) == task
    assert attempts_of(db, ended) == attempts != []


LOOPHOLES = {
    "a rule is changed": "UPDATE rule SET to_state = 'PENDING' WHERE to_state = 'FAILED'",
    "a rule gets another trigger": "UPDATE rule SET trigger = 'whenever'",
    "a rule is deleted": "DELETE FROM rule WHERE to_state = 'CANCELED'",
    "a rule is added": "INSERT INTO rule (machine_id, from_state, to_state, trigger, severity, to_phase, to_outcome, "
    "needs_worker, needs_session, needs_dependencies) SELECT machine_id, to_state, from_state, 'undo', severity, to_phase, "
    "to_outcome, needs_worker, needs_session, needs_dependencies FROM rule WHERE from_state = 'PENDING' "
    "AND to_state = 'RUNNING'",
    "a state is changed": "UPDATE state SET phase = 'queued' WHERE phase = 'held'",
    "a state is written again": "UPDATE state SET initial = initial",
    "a state is deleted": "DELETE FROM state WHERE name = 'CANCELED'",
    "a state is added": "INSERT INTO state SELECT machine_id, 'LIMBO', phase, outcome, initial, kind FROM state "
    "WHERE name = 'PAUSED'",
    "a machine is changed": "UPDATE machine SET kind = 'task'",
    "a machine is deleted": "DELETE FROM machine WHERE name = 'standard.run'",
}


@pytest.mark.parametrize("loophole", LOOPHOLES)
def test_the_rules_of_a_loaded_machine_cannot_be_changed(fresh_db: StoreFixture, loophole: str) -> None:
    prompt = fresh_db.prompt
    written = [f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4" for table in ("machine", "state", "rule")]
    before = [prompt.ask(each) for each in written]
    with pytest.raises(Refused):
        prompt.ask(LOOPHOLES[loophole])
    assert [prompt.ask(each) for each in written] == before
    run = fresh_db.put(fresh_db.run())
    with pytest.raises(Refused):
        type_columns(prompt, run, state="SUCCEEDED")


def test_a_machine_is_not_replaced(fresh_db: StoreFixture) -> None:
    prompt = fresh_db.prompt
    replacing = "INSERT OR REPLACE" if prompt.dialect == "sqlite" else "INSERT"
    before = prompt.ask("SELECT * FROM machine ORDER BY id")
    for changed in ("id, name, version, 'worker'", "id + 1000, name, version, 'worker'", "id, 'x', version, 'worker'"):
        with pytest.raises(Refused):
            prompt.ask(
                f"{replacing} INTO machine (id, name, version, kind, fingerprint, lifecycle, definition) "
                f"SELECT {changed}, fingerprint, lifecycle, definition FROM machine WHERE id = :id",
                id=fresh_db.machine_ids["standard.run"],
            )
    assert prompt.ask("SELECT * FROM machine ORDER BY id") == before


# Attempts.


def test_an_epoch_is_used_once(db: StoreFixture, prompt: Outsider) -> None:
    """Only the move that begins an attempt uses an epoch, so every epoch before the last has its attempt."""
    waiting = db.move(db.put_task(state="RUNNING"), "QUEUED")
    running = db.put_task(state="RUNNING")
    for task in (waiting, running):
        for epoch in (0, 2, 9):
            held = {"current_attempt": epoch} if task.current_attempt else {}
            for columns in ({}, {"state": "CANCELED"}):
                with pytest.raises(Refused, match="pointsman"):
                    type_columns(prompt, task, epoch=epoch, **held, **columns)
            with pytest.raises(LawBroken), db.transaction() as begun:
                update(begun, replace(task, epoch=epoch, **held))
        assert find(db.store, task) == task


def test_every_attempt_has_an_epoch_of_its_own(db: StoreFixture) -> None:
    waiting = db.move(db.put_task(state="RUNNING"), "QUEUED")
    for epoch in (0, 1, 3):
        with pytest.raises(LawBroken):
            db.move(waiting, "RUNNING", epoch=epoch, current_attempt=epoch)
    with pytest.raises(LawBroken):
        db.move(waiting, "SKIPPED", epoch=2)
    lost = db.bring(db.put_task(machine="approval.step"), "RUNNING", lease_expired=True)
    with pytest.raises(LawBroken):
        db.move(lost, "RUNNING", epoch=3, current_attempt=3)
    assert [find(db.store, task) for task in (waiting, lost)] == [waiting, lost]
    assert [attempt.epoch for attempt in attempts_of(db, db.move(waiting, "RUNNING"))] == [1, 2]


def test_a_typed_move_ends_the_attempt_that_held_the_task(db: StoreFixture, prompt: Outsider) -> None:
    """The row of the attempt has everything that the task knew about it."""
    told: dict[str, Any] = {
        "session_id": "s",
        "attempt_resumed": True,
        "attempt_cost_usd": Decimal("0.25"),
        "attempt_error": "so far",
        "attempt_exit_code": 3,
        "attempt_log_path": "l",
    }
    task = db.bring(db.put_task(), "RUNNING", **told)
    type_columns(prompt, task, state="CANCELED", reason="enough")
    last = history_of(db, task)[-1]
    assert attempts_of(db, task) == [attempt_of(task, ended_at=last.at, ended_by="cancel")]


def test_a_refused_move_ends_no_attempt(db: StoreFixture, prompt: Outsider) -> None:
    task = db.put_task(state="RUNNING")
    with pytest.raises(Refused):
        type_columns(prompt, task, state="PENDING")
    assert attempts_of(db, task) == [attempt_of(task)]


def test_taking_over_a_task_in_place_ends_the_attempt_before(db: StoreFixture, prompt: Outsider) -> None:
    """Also at a prompt, for a writer that knows the law: the row of the attempt is what the task knew about it before."""
    told: dict[str, Any] = {
        "session_id": "s",
        "attempt_cost_usd": Decimal(2),
        "attempt_error": "silence",
        "attempt_log_path": "l",
    }
    task = db.bring(db.put_task(machine="approval.step"), "RUNNING", **told)
    other = db.put(db.worker())
    at = task.entered_at + SECOND
    knowing: dict[str, Any] = {"revision": task.revision + 1, "trigger": "reclaim", "actor": other.id, "entered_at": at}
    following: dict[str, Any] = {"epoch": 2, "current_attempt": 2, "worker_id": other.id, "attempt_worker_id": other.id}
    following["attempt_started_at"] = at
    fresh: dict[str, Any] = {"session_id": "t", "attempt_cost_usd": ZERO_USD, "attempt_error": None, "attempt_log_path": None}
    type_columns(prompt, task, **knowing, **following, **fresh)
    taken = replace(task, **knowing, **following, **fresh)
    assert find(db.store, task) == taken
    assert attempts_of(db, task) == [attempt_of(task, ended_at=at, ended_by="reclaim"), attempt_of(taken)]


def test_an_attempt_that_has_ended_cannot_be_changed(db: StoreFixture, prompt: Outsider) -> None:
    task = db.move(db.put_task(state="RUNNING"), "FAILED", trigger="fail")
    before = attempts_of(db, task)
    changes = ("ended_at = started_at", "cost_usd = 5", "error = 'none of mine'", "worker_id = worker_id", "epoch = 2")
    for columns in (*changes, "task_id = 'another'", "tenant = 'globex'"):
        with pytest.raises(Refused, match="pointsman"):
            prompt.ask(f"UPDATE attempt SET {columns} WHERE task_id = :id", id=task.id)
    with pytest.raises(Refused, match="pointsman"):
        prompt.ask("DELETE FROM attempt WHERE task_id = :id", id=task.id)
    assert attempts_of(db, task) == before


@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "RUNNING", "VALIDATING", "RETRYING", "FAILED"])
def test_only_the_law_writes_attempts(db: StoreFixture, prompt: Outsider, state: str, epoch: int) -> None:
    """Neither one that has ended, nor the current one, nor the next."""
    task = db.put_task(state=state)
    before = attempts_of(db, task)
    forged = Attempt(
        task_id=task.id, epoch=epoch, tenant=ACME, worker_id=HAND, started_at=AT, ended_at=AT + SECOND, ended_by="mallory"
    )
    for insertion in insertions(prompt):
        for twin in (forged, *(replace(each, ended_at=task.entered_at, ended_by="mallory") for each in before)):
            with pytest.raises(Refused, match="pointsman"):
                type_row(prompt, twin, insertion)
    with pytest.raises(Refused, match="pointsman"):
        type_row(prompt, replace(forged, task_id="unknown"))
    assert attempts_of(db, task) == before


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "VALIDATING", "RETRYING", "FAILED", "validating", "retrying"])
def test_only_a_move_gives_or_takes_a_worker_and_an_attempt(db: StoreFixture, prompt: Outsider, state: str) -> None:
    other = db.put(db.worker())
    task = db.put_task(machine="orchestrated.task" if state.islower() else "standard.task", state=state)
    assert task.worker_id in (None, task.attempt_worker_id)
    names = {other.id, HAND, None}
    wrong: list[dict[str, Any]] = [{"worker_id": name} for name in names - {task.worker_id}]
    wrong += [{"attempt_worker_id": name} for name in names - {task.attempt_worker_id}]
    wrong += [{"worker_id": other.id, "attempt_worker_id": other.id}]
    wrong += [{"current_attempt": epoch} for epoch in {0, 1, 2, None} - {task.current_attempt}]
    wrong += [{"epoch": epoch} for epoch in {0, 1, 2} - {task.epoch}]
    wrong += [{"current_attempt": 2, "epoch": 2}, {"worker_id": other.id, "attempt_worker_id": other.id, "current_attempt": 2}]
    for columns in wrong:
        with pytest.raises(Refused):
            type_columns(prompt, task, **columns)
        with pytest.raises(LawBroken), db.transaction() as begun:
            update(begun, replace(task, **columns))
    assert find(db.store, task) == task
    assert attempts_of(db, task) == ([attempt_of(task)] if task.current_attempt else attempts_of(db, task))


def test_a_worker_cannot_be_typed_together_with_a_state(db: StoreFixture, prompt: Outsider) -> None:
    """Columns that the law clears anyway may be typed."""
    task, other = db.put_task(state="RUNNING"), db.put(db.worker())
    for columns in ({"worker_id": other.id}, {"attempt_worker_id": other.id}, {"attempt_worker_id": None}):
        with suppress(Refused):
            type_columns(prompt, task, state="FAILED", **columns)
        found = find(db.store, task)
        assert (found.worker_id, found.attempt_worker_id) in ((HAND, HAND), (None, HAND))
    another = db.put_task(state="RUNNING")
    type_columns(prompt, another, state="FAILED", worker_id=None)
    last = history_of(db, another)[-1]
    assert (last.to_state, last.actor) == ("FAILED", "sql")
    assert attempts_of(db, another) == [attempt_of(another, ended_at=last.at, ended_by=last.trigger)]


@pytest.mark.parametrize("machine", ["standard.task", "approval.step", "orchestrated.task"])
def test_a_task_is_given_only_to_a_worker_of_its_tenant(db: StoreFixture, prompt: Outsider, machine: str) -> None:
    db.tenant("globex")
    theirs, mine = db.put(db.worker(tenant="globex")), db.put(db.worker())
    task, another = (db.put_task(machine=machine) for _ in range(2))
    to_state = "running" if machine == "orchestrated.task" else "RUNNING"
    way = route(MACHINES[machine], task.state, to_state)
    task, another = (db.bring(row, way[-2]) for row in (task, another))
    for worker_id in ("unknown", "", theirs.id):
        taken = db.moved(task, to_state, worker_id=worker_id)
        with pytest.raises(Refused, match="pointsman"):
            type_columns(prompt, task, **{column: getattr(taken, column) for column in Task.CHANGING})
        with pytest.raises(LawBroken):
            db.move(task, to_state, worker_id=worker_id)
        with pytest.raises(LawBroken), db.transaction() as begun:
            move(begun, db.moved(another, to_state, worker_id=mine.id), db.moved(task, to_state, worker_id=worker_id))
    assert [find(db.store, row) for row in (task, another)] == [task, another]
    held = db.move(task, to_state, worker_id=mine.id)
    for following in MACHINES[machine].allowed(to_state):
        moved = db.moved(held, following)
        if moved.current_attempt:
            for wrong in ({"worker_id": "unknown"}, {"attempt_worker_id": "unknown"}, {"attempt_worker_id": theirs.id}):
                with pytest.raises(LawBroken), db.transaction() as begun:
                    move(begun, replace(moved, **wrong))
    assert find(db.store, held) == held


@pytest.mark.parametrize("serves", ['["acme"]', '["acme","initech"]', '"all"'])
def test_a_task_is_given_to_a_worker_of_another_tenant_that_serves_its_own(
    db: StoreFixture, prompt: Outsider, serves: str
) -> None:
    db.tenant("globex")
    shared, narrow = (db.put(db.worker(tenant="globex", serves=each)) for each in (serves, '["acme2","all"]'))
    task = db.bring(db.put_task(), "QUEUED")
    stolen = db.moved(task, "RUNNING", worker_id=narrow.id)
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, task, **{column: getattr(stolen, column) for column in Task.CHANGING})
    with pytest.raises(LawBroken):
        db.move(task, "RUNNING", worker_id=narrow.id)
    held = db.move(task, "RUNNING", worker_id=shared.id)
    assert find(db.store, held) == held


def test_nobody_changes_which_tenants_a_worker_serves(db: StoreFixture, prompt: Outsider) -> None:
    worker = db.put(db.worker(serves='["globex"]'))
    for serves in ('"all"', "[]", '["initech"]'):
        with pytest.raises(Refused, match="keeps"):
            type_columns(prompt, worker, serves=serves)
    assert find(db.store, worker) == worker


# Moves of writers that know the law.


ILLEGAL_MOVES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    # the machine, the state of the row, the state it is moved to, and what is wrong with that
    "an unknown trigger": ("standard.run", "PENDING", "RUNNING", {"trigger": "whim"}),
    "the trigger of another rule": ("standard.run", "PENDING", "RUNNING", {"trigger": "proceed"}),
    "another phase": ("standard.run", "PENDING", "RUNNING", {"phase": "held"}),
    "another outcome": ("standard.run", "PENDING", "CANCELED", {"outcome": "failure"}),
    "an unknown state": ("standard.run", "PENDING", "RUNNING", {"state": "DANCING"}),
    "a worker for a task that does not run": ("standard.task", "QUEUED", "SKIPPED", {"worker_id": HAND}),
    "no worker for a state that needs one": ("standard.task", "QUEUED", "RUNNING", {"worker_id": None}),
    "a worker for a state that needs none": ("orchestrated.task", "running", "validating", {"worker_id": HAND}),
    "a worker of another attempt": ("standard.task", "QUEUED", "RUNNING", {"worker_id": "worker_other"}),
    "an attempt without a worker": ("standard.task", "QUEUED", "RUNNING", {"attempt_worker_id": None}),
    "an attempt that loses its worker": ("orchestrated.task", "running", "validating", {"attempt_worker_id": None}),
    "an attempt that ends without a worker": ("standard.task", "RUNNING", "FAILED", {"attempt_worker_id": None}),
    "an attempt without a start": ("standard.task", "QUEUED", "RUNNING", {"attempt_started_at": None}),
    "no session for a state that needs one": ("agent.task", "RUNNING", "BLOCKED", {"session_id": None}),
    "no attempt for an active state": ("standard.task", "QUEUED", "RUNNING", {"current_attempt": None}),
    "the attempt of another epoch": ("standard.task", "QUEUED", "RUNNING", {"epoch": 3}),
    "an attempt for a state that is not active": ("standard.task", "QUEUED", "SKIPPED", {"current_attempt": 0}),
    "a claim by somebody else": ("standard.task", "QUEUED", "RUNNING", {"actor": "mallory"}),
    "a claim by nobody": ("standard.task", "QUEUED", "RUNNING", {"actor": None}),
}


@pytest.mark.parametrize("what", ILLEGAL_MOVES)
def test_a_move_is_what_its_rule_says_and_nothing_else(db: StoreFixture, what: str) -> None:
    name, before, after, wrong = ILLEGAL_MOVES[what]
    row = db.bring(db.put(db.entity(name)), before)
    with db.transaction() as begun:
        db.hand_in(begun)
        if not begun.lock_workers(["worker_other"]):
            begun.insert_workers([db.worker(id="worker_other")])
    with pytest.raises(LawBroken), db.transaction() as begun:
        move(begun, replace(db.moved(row, after), **wrong))
    assert find(db.store, row) == row
    move_in_order = db.move(row, after)
    assert find(db.store, move_in_order) == move_in_order, "nothing else was wrong with it"


def test_a_task_is_not_queued_before_its_dependencies_where_its_machine_forbids_it(db: StoreFixture) -> None:
    task = db.put_task(machine="orchestrated.task", open_dependencies=1)
    with pytest.raises(LawBroken):
        db.move(task, "queued")
    assert find(db.store, task) == task


def test_a_row_makes_one_move_for_each_revision(db: StoreFixture) -> None:
    """Two legal moves in one are not a legal move."""
    run = db.put(db.run())
    skipping = replace(db.moved(run, "RUNNING"), state="PAUSED", phase="held", trigger="pause", revision=2)
    with pytest.raises((LawBroken, Conflict)), db.transaction() as begun:
        move(begun, skipping)
    stale = replace(run, state="SUCCEEDED", phase="done", outcome="success", completed_at=AT, trigger="complete")
    with pytest.raises(LawBroken), db.transaction() as begun:
        update(begun, stale)
    assert find(db.store, run) == run


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "RUNNING", "FAILED", "CANCELED", "BLOCKED"])
def test_a_run_succeeds_only_with_all_of_its_tasks(db: StoreFixture, prompt: Outsider, state: str) -> None:
    run = db.bring(db.put(db.run()), "RUNNING")
    db.put_task(run, state="SUCCEEDED")
    db.put_task(run, state="SKIPPED")
    task = db.put_task(run, state=state, critical=False)
    with pytest.raises(LawBroken):
        db.move(run, "SUCCEEDED")
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, run, state="SUCCEEDED")
    assert find(db.store, run) == run
    assert db.move(run, "FAILED").outcome == "failure", "it may fail with unfinished tasks"
    assert find(db.store, task) == task


def test_a_run_succeeds_when_all_of_its_tasks_have(db: StoreFixture) -> None:
    run = db.bring(db.put(db.run()), "RUNNING")
    for state in ("SUCCEEDED", "SKIPPED"):
        db.put_task(run, state=state)
    db.put_task(state="RUNNING")
    assert find(db.store, db.move(run, "SUCCEEDED")).outcome == "success"


# With the shells of the databases.


def shell(url: str, statement: str) -> subprocess.CompletedProcess[str]:
    """Run a statement with `sqlite3` or `psql`."""
    command = ["sqlite3", url.removeprefix("sqlite:///")] if url.startswith("sqlite") else ["psql", url, "-qAt", "-c"]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run([*command, statement], capture_output=True, text=True, check=False, timeout=60)


def test_a_legal_move_that_is_typed_into_a_shell_works_and_is_audited(db: StoreFixture) -> None:
    run = db.bring(db.put(db.run()), "RUNNING")
    result = shell(db.url, f"UPDATE run SET state = 'PAUSED', reason = 'lunch' WHERE id = '{run.id}'")
    assert (result.returncode, result.stderr) == (0, "")
    last = history_of(db, run)[-1]
    assert (last.from_state, last.to_state, last.trigger, last.actor, last.reason) == (
        "RUNNING",
        "PAUSED",
        "pause",
        "sql",
        "lunch",
    )
    assert find(db.store, run).phase == "held"
    audit = shell(db.url, f"SELECT to_state FROM transition WHERE entity_id = '{run.id}' ORDER BY position DESC LIMIT 1")
    assert audit.stdout.strip() == "PAUSED"


def test_an_illegal_move_that_is_typed_into_a_shell_is_refused_with_a_message(db: StoreFixture) -> None:
    run = db.put(db.run())
    result = shell(db.url, f"UPDATE run SET state = 'SUCCEEDED' WHERE id = '{run.id}'")
    assert result.returncode != 0
    assert "pointsman: no rule of" in result.stderr
    assert find(db.store, run) == run
    assert len(history_of(db, run)) == 1
