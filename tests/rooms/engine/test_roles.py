"""The roles for PostgreSQL: an engine does all of its work with the rights of pointsman_app, and nobody does more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from tests.rooms.engine.harness import claim_one, register, submit

from pointsman import app
from pointsman.cli import main
from pointsman.engine.submit import NewTask
from pointsman.errors import StoreUnusable
from pointsman.store.postgres.roles import read_roles

REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.RaiseException)


@pytest.fixture
def owned_url(postgres_url: str) -> str:
    """A database whose owner has granted the roles, twice, because that must be harmless."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(read_roles().encode())
    return postgres_url


@contextmanager
def member_of(url: str, role: str) -> Iterator[str]:
    """The URL of a user that is a member of a role, and nothing else."""
    user = f"{role}_user_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} IN ROLE {role}".encode())
        try:
            parts = urlsplit(url)
            query = f"{parts.query}&" if parts.query else ""
            yield urlunsplit(parts._replace(query=f"{query}options={quote(f'-crole={user}')}"))
        finally:
            connection.execute(f"DROP ROLE {user}".encode())


async def test_an_engine_works_with_the_rights_of_the_app(owned_url: str) -> None:
    with member_of(owned_url, "pointsman_app") as url:
        async with app.open(url, keeps=False) as engine:
            run = await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)), NewTask(name="c"))
            await engine.declare_tool("curl", max_concurrent=1)
            worker = await register(engine)
            for _ in range(3):
                claim = await claim_one(engine, worker)
                reply = await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])
                assert reply.lost == ()
                await engine.complete_task(claim.task_id, claim.epoch)
            assert (await engine.get_run(run.id)).outcome == "success"
            assert len(await engine.list_attempts(claim.task_id)) == 1
            created = await engine.create_key("ci", ("read",))
            rotated = await engine.rotate_key(created.key.id, 60.0, 60.0)
            assert rotated.text
            assert (await engine.authenticate(rotated.text)).key_id == created.key.id
            await engine.revoke_key(created.key.id)
            for text in ("name: a", "name: b"):
                await engine.store_template("nightly", text)
            await engine.tend()
            await engine.repair()
            assert await engine.seal()
            assert (await engine.audit()).findings == []
            assert await engine.list_transitions(limit=5)


async def test_the_owner_migrates_first(empty_postgres_url: str, owned_url: str) -> None:
    """Roles are of the whole server; in this database nobody has granted them anything."""
    del owned_url
    with member_of(empty_postgres_url, "pointsman_app") as url, pytest.raises(StoreUnusable, match="owner"):
        async with app.open(url):
            pass


WRITES = {
    "run": "UPDATE run SET state = 'RUNNING'",
    "audit trail": "INSERT INTO transition (tenant, kind, entity_id, revision, machine_id, to_state, trigger, severity, at) "
    "VALUES ('default', 'run', 'x', 0, 1, 'PENDING', 'create', 'info', now())",
    "a line of the trail": "INSERT INTO trail (at, number, kind, revision) VALUES (now(), 1000, 0, 0)",
    "audit trail, changed": "UPDATE trail SET actor = 'mallory'",
    "audit trail, deleted": "DELETE FROM trail",
    "attempts": "DELETE FROM attempt",
    "machines": "DELETE FROM machine",
    "rules": "UPDATE rule SET to_state = from_state",
    "dependencies": "DELETE FROM dependency",
    "seals": "DELETE FROM seal",
    "seals, changed": "UPDATE seal SET digest = ''",
    "API keys": "DELETE FROM api_key",
    "scopes of API keys": "UPDATE api_key SET scopes = '[\"admin\"]'",
    "tenants of API keys": "UPDATE api_key SET tenant = 'other'",
    "tombstones": "DELETE FROM tombstone",
    "a table": "DROP TABLE notice",
    "a trigger": "ALTER TABLE run DISABLE TRIGGER USER",
    "everything": "TRUNCATE task_state CASCADE",
    "what was asked for": "UPDATE task_spec SET payload = 'null'",
    "a switch": "SET session_replication_role = replica",
    "a migration": "INSERT INTO migration VALUES (99, 'x', now())",
}


def test_the_app_writes_no_more_than_it_has_to(owned_url: str) -> None:
    with member_of(owned_url, "pointsman_app") as url, closing(psycopg.connect(url, autocommit=True)) as session:
        for what, statement in WRITES.items():
            if what != "run":
                with pytest.raises(REFUSED):
                    session.execute(statement.encode())


def test_a_reader_reads_everything_and_writes_nothing(owned_url: str) -> None:
    with member_of(owned_url, "pointsman_read") as url, closing(psycopg.connect(url, autocommit=True)) as session:
        tables = session.execute(b"SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            session.execute(f"SELECT count(*) FROM {table}".encode())
        with pytest.raises(REFUSED):
            session.execute(b"SELECT secret_hash FROM api_key")
        session.execute(b"SELECT stream_end()")
        for statement in WRITES.values():
            with pytest.raises(REFUSED):
                session.execute(statement.encode())


async def test_a_reader_audits_what_is_not_sealed_yet(owned_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with app.open(owned_url, keeps=False) as engine:
        await submit(engine, NewTask(name="a"))
    with member_of(owned_url, "pointsman_read") as url:
        assert await asyncio.to_thread(main, ["doctor", "--audit", "--store", url]) == 0
    said = capsys.readouterr()
    assert said.out == "the audit trail is unchanged\n"
    assert said.err.startswith("The last transitions are not sealed yet.")
