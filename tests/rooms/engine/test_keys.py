"""Tenants and API keys: created once, shown once, checked in one way, rotated and revoked for every process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from hmac import compare_digest
from random import Random

import pytest
from msgspec.structs import replace
from tests.rooms.engine.harness import ManualClock, open_engine, submit
from tests.rooms.store.outsider import outsider

from pointsman.engine import authentication
from pointsman.engine.authentication import KeyHolder
from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.filters import NoticeFilter
from pointsman.engine.key_text import make_key, parse_key
from pointsman.engine.operation import read_operation
from pointsman.engine.operations.keys import SCOPES, CreateKey, IssuedKey
from pointsman.engine.submit import NewTask
from pointsman.errors import AlreadyExists, AuthenticationFailed, KeyEnded, KeyReused, NotFound, RequestInvalid
from pointsman.store.rows import ApiKey

DAY = 86_400.0


async def acme_of(engine: Engine) -> TenantEngine:
    acme = engine.for_tenant("acme", actor="ada")
    await acme.add_tenant()
    return acme


def text_of(issued: IssuedKey) -> str:
    assert issued.text is not None
    return issued.text


async def is_valid(engine: Engine, text: str) -> bool:
    try:
        await engine.authenticate(text)
    except AuthenticationFailed:
        return False
    return True


async def test_a_key_tells_whose_it_is(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = await acme_of(engine)
        issued = await acme.create_key("ci", ("submit", "read", "read"), DAY, reason="for the pipeline")
        key = issued.key
        assert (key.tenant, key.name, key.scopes, key.created_by) == ("acme", "ci", '["read","submit"]', "ada")
        assert key.expires_at == key.created_at + timedelta(seconds=DAY)
        assert await acme.list_keys() == [key]
        assert await engine.list_keys() == []
        assert await engine.list_all_keys() == [key]
        holder = await engine.authenticate(text_of(issued))
        assert holder == KeyHolder(key.id, "ci", "acme", frozenset({"read", "submit"}))
        (notice,) = await acme.list_notices(NoticeFilter(about=key.id))
        assert notice.message.endswith("By ada: for the pipeline")


async def test_neither_the_text_nor_the_secret_of_a_key_is_stored(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = await acme_of(engine)
        first = await acme.create_key("ci", ("read",), request_id="create")
        second = await acme.rotate_key(first.key.id, request_id="rotate")
        secrets = [parse_key(text_of(each)).secret for each in (first, second)]
        assert not any(secret in repr((first, second)) for secret in secrets)
    with outsider(database_url) as prompt:
        if prompt.dialect == "sqlite":
            tables = prompt.ask("SELECT name FROM sqlite_schema WHERE type = 'table'")
        else:
            tables = prompt.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        everything = "".join(str(prompt.ask(f"SELECT * FROM {table}")) for (table,) in tables)
    assert first.key.id in everything
    assert not any(secret in everything for secret in secrets)


async def test_a_repeated_request_makes_one_key_and_shows_its_text_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = await acme_of(engine)
        first = await acme.create_key("ci", ("read",), request_id="k")
        again = await acme.create_key("ci", ("read",), request_id="k")
        assert (again.key, again.text) == (first.key, None)
        assert await is_valid(engine, text_of(first))
        with pytest.raises(KeyReused):
            await acme.create_key("ci", ("admin",), request_id="k")
        rotated = await acme.rotate_key(first.key.id, request_id="k")
        assert (await acme.rotate_key(first.key.id, request_id="k")).text is None
        assert await is_valid(engine, text_of(rotated)), "the second request has not rotated it again"


async def test_whatever_is_wrong_with_a_key_is_refused_in_one_way(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def compare(one: str, other: str) -> bool:
        compared.append(len(one))
        return compare_digest(one, other)

    async with open_engine(database_url, clock) as engine:
        acme = await acme_of(engine)
        revoked = await acme.create_key("revoked", ("read",))
        expired, valid = [await acme.create_key(name, ("read",), DAY) for name in ("expired", "valid")]
        await acme.revoke_key(revoked.key.id)
        clock.advance(DAY / 2)
        valid = await acme.rotate_key(valid.key.id, expires_seconds=DAY)
        clock.advance(DAY / 2)
        assert await is_valid(engine, text_of(valid))
        wrong = {
            "revoked": text_of(revoked),
            "expired": text_of(expired),
            "unknown": make_key("key_0123456789ab", Random(1)).write(),
            "another secret": make_key(valid.key.id, Random(1)).write(),
        }
        monkeypatch.setattr("hmac.compare_digest", compare)
        messages, work = set(), set()
        for text in wrong.values():
            compared.clear()
            with pytest.raises(AuthenticationFailed) as refused:
                await engine.authenticate(text)
            messages.add(str(refused.value))
            work.add(tuple(compared))
        for text in ("", "pm_", text_of(valid)[:-1], f"{text_of(valid)} ", "é"):
            with pytest.raises(AuthenticationFailed) as refused:
                await engine.authenticate(text)
            messages.add(str(refused.value))
        assert len(messages) == 1
        assert work == {(64, 64)}, "an unknown id costs the same comparisons"


async def test_a_mistyped_key_is_refused_without_a_query(clock: ManualClock) -> None:
    async with open_engine("sqlite:///:memory:", clock) as engine:
        issued = await engine.create_key("ci", ("read",))
    for text in ("nonsense", text_of(issued)[:-1] + "!"):
        with pytest.raises(AuthenticationFailed):  # and not EngineClosed, as of a query
            await engine.authenticate(text)


async def test_a_revoked_key_ends_in_every_process_at_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as here, open_engine(database_url, clock, seed=2) as there:
        acme = await acme_of(here)
        text = text_of(issued := await acme.create_key("ci", ("read",)))
        assert await is_valid(here, text)
        assert await is_valid(there, text)
        revoked = await acme.revoke_key(issued.key.id)
        assert revoked.revoked_at
        await until_invalid(here, text)
        await until_invalid(there, text)
        clock.advance(60)
        again = await acme.revoke_key(issued.key.id)  # a use before the end may have been noted since
        assert replace(again, last_used_at=revoked.last_used_at) == revoked, "to revoke it again changes nothing"


async def until_invalid(engine: Engine, text: str) -> None:
    """The clock stands still: only the wake-up of the commit ends what the process remembers."""
    async with asyncio.timeout(30):
        while await is_valid(engine, text):  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


async def test_a_revoked_key_ends_soon_where_no_wakeup_arrives(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = await acme_of(engine)
        text = text_of(issued := await acme.create_key("ci", ("read",)))
        assert await is_valid(engine, text)
        await settle(engine)
        with outsider(database_url) as prompt:  # as another program would: it wakes nobody
            prompt.ask("UPDATE api_key SET revoked_at = :at WHERE id = :id", at=clock.now(), id=issued.key.id)
        assert await is_valid(engine, text), "it is remembered"
        clock.advance(authentication.REMEMBER_SECONDS)
        assert not await is_valid(engine, text)


async def settle(engine: Engine) -> None:
    """Until everything is written that was submitted before: the writer takes operations in their order."""
    await engine.declare_tool("any")


async def test_a_remembered_key_expires_on_time(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        text = text_of(await engine.create_key("ci", ("read",), 2.0))
        assert await is_valid(engine, text)
        clock.advance(1.9)
        assert await is_valid(engine, text)
        clock.advance(0.1)
        assert not await is_valid(engine, text)


async def test_a_key_may_live_for_less_than_the_clock_can_tell(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        issued = await engine.create_key("brief", ("read",), 5e-324)
        assert (issued.key.expires_at or clock.now()) > issued.key.created_at
        rotated = await engine.rotate_key(issued.key.id, 5e-324, 5e-324)
        assert (rotated.key.expires_at or clock.now()) > clock.now()


async def test_the_old_secret_stays_valid_for_the_grace(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        first = await engine.create_key("ci", ("read",))
        second = await engine.rotate_key(first.key.id, 3600.0)
        assert second.key.id == first.key.id
        assert [await is_valid(engine, text_of(each)) for each in (first, second)] == [True, True]
        clock.advance(3600)
        assert [await is_valid(engine, text_of(each)) for each in (first, second)] == [False, True]
        third = await engine.rotate_key(first.key.id)
        await until_invalid(engine, text_of(second))
        fourth = await engine.rotate_key(first.key.id, 3600.0)
        fifth = await engine.rotate_key(first.key.id, 3600.0)
        await until_invalid(engine, text_of(third))
        assert [await is_valid(engine, text_of(each)) for each in (third, fourth, fifth)] == [False, True, True]


async def test_a_rotation_prolongs_no_secret_but_the_new_one(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        first = await engine.create_key("ci", ("read",), DAY)
        kept = await engine.rotate_key(first.key.id)
        assert kept.key.expires_at == first.key.expires_at
        prolonged = await engine.rotate_key(first.key.id, 10 * DAY, 30 * DAY)
        assert prolonged.key.previous_expires_at == first.key.expires_at
        clock.advance(DAY)
        assert [await is_valid(engine, text_of(each)) for each in (kept, prolonged)] == [False, True]
        clock.advance(29 * DAY)
        with pytest.raises(KeyEnded, match="has expired"):
            await engine.rotate_key(first.key.id)
        renewed = await engine.rotate_key(first.key.id, DAY, DAY)
        assert renewed.key.previous_expires_at is None, "an expired secret gets no grace"
        assert [await is_valid(engine, text_of(each)) for each in (prolonged, renewed)] == [False, True]
        await engine.revoke_key(first.key.id)
        with pytest.raises(KeyEnded, match="is revoked"):
            await engine.rotate_key(first.key.id, expires_seconds=DAY)


async def last_use(engine: Engine) -> float | None:
    await settle(engine)
    (key,) = await engine.list_keys()
    return (key.last_used_at - key.created_at).total_seconds() if key.last_used_at else None


async def test_the_use_of_a_key_is_noted_once_a_minute_and_nobody_waits(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        text = text_of(await engine.create_key("ci", ("read",)))
        assert await last_use(engine) is None
        clock.advance(10)
        before = engine.commit_metrics.operations
        for _ in range(20):
            await engine.authenticate(text)
        assert await last_use(engine) == 10
        assert engine.commit_metrics.operations == before + 2, "one of them is that of the test"
        clock.advance(59)
        await engine.authenticate(text)
        assert await last_use(engine) == 10
        clock.advance(1)
        await engine.authenticate(text)
        assert await last_use(engine) == 70


async def test_a_key_that_is_refused_is_not_used(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        issued = await engine.create_key("ci", ("read",))
        assert not await is_valid(engine, make_key(issued.key.id, Random(7)).write())
        assert await last_use(engine) is None


async def test_a_use_that_cannot_be_noted_does_no_harm(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    async with open_engine("sqlite:///:memory:", clock) as engine:
        text = text_of(await engine.create_key("ci", ("read",)))
        engine._core.writer.max_queue = 0
        with caplog.at_level(logging.INFO, "pointsman.engine.authentication"):
            assert await is_valid(engine, text)
            await asyncio.sleep(0)
        assert "could not be noted" in caplog.text


async def test_the_keys_of_a_tenant_are_its_own(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = await acme_of(engine)
        issued = await acme.create_key("ci", ("read",))
        changes: list[Callable[[str], object]] = [engine.revoke_key, engine.rotate_key]
        for change in changes:
            messages = []
            for key_id in (issued.key.id, "key_unknown"):
                with pytest.raises(NotFound) as refused:
                    await change(key_id)  # type: ignore[misc]
                messages.append(str(refused.value).replace(key_id, "ID"))
            assert messages[0] == messages[1]
        assert await is_valid(engine, text_of(issued))


async def test_tenants_are_added_once_or_with_their_first_row(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = engine.for_tenant("acme", actor="ada")
        with pytest.raises(NotFound, match="no tenant 'acme'"):
            await acme.create_key("ci", ("read",))
        added = await acme.add_tenant(request_id="k", reason="a new customer")
        assert await acme.add_tenant(request_id="k", reason="a new customer") == added
        with pytest.raises(AlreadyExists, match="There is a tenant 'acme' already"):
            await acme.add_tenant()
        (notice,) = await acme.list_notices(NoticeFilter(about="acme"))
        assert (notice.subject, notice.message) == ("added", "The tenant was added. By ada: a new customer")
        await submit(engine, NewTask(name="a"))
        assert [tenant.id for tenant in await engine.list_tenants()] == ["acme", "default"]


async def test_a_name_belongs_to_one_key_that_is_not_revoked(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        first = await engine.create_key("ci", ("read",))
        with pytest.raises(AlreadyExists, match=f"Rotate or revoke {first.key.id}"):
            await engine.create_key("ci", ("read",))
        await engine.revoke_key(first.key.id)
        second = await engine.create_key("ci", ("read",))
        assert second.key.id != first.key.id


async def test_processes_that_create_a_key_of_one_name_together_make_one(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as one, open_engine(database_url, clock, seed=2) as other:
        answers = await asyncio.gather(
            *(engine.create_key("ci", ("read",)) for engine in (one, other) * 5), return_exceptions=True
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["AlreadyExists"] * 9 + ["IssuedKey"]
        assert len(await one.list_keys()) == 1


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": "", "scopes": ["read"]}, "name"),
        ({"name": "n", "scopes": []}, "scopes"),
        ({"name": "n", "scopes": ["read", "root"]}, "scopes[1]"),
        ({"name": "n", "scopes": "read"}, "scopes"),
        ({"name": "n", "scopes": ["read"], "expires_seconds": 0}, "expires_seconds"),
        ({"name": "n", "scopes": ["read"], "expires_seconds": -5}, "expires_seconds"),
        ({"name": "n"}, "scopes"),
        ({"name": "n", "scopes": ["read"], "text": "pm_mine"}, "text"),
    ],
)
def test_a_request_for_a_key_is_checked(body: dict[str, object], path: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        read_operation(CreateKey, body)
    assert [problem.path for problem in refused.value.problems] == [path]


async def test_a_key_may_have_every_scope(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        issued = await engine.create_key("all", SCOPES)
        assert (await engine.authenticate(text_of(issued))).scopes == frozenset(SCOPES)
        assert not hasattr(ApiKey, "secret_hash"), "what people see has no hash"
