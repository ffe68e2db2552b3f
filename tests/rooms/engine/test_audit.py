"""The audit: what the owner of the database, whom the law cannot stop, has done to the audit trail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, register, submit
from tests.rooms.store.outsider import outsider

from pointsman.engine import audit as chain
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewTask
from pointsman.errors import RequestInvalid
from pointsman.store.rows import Seal


async def work(engine: Engine) -> None:
    """A run with a task that was done."""
    await submit(engine, NewTask(name="a"))
    worker = await register(engine)
    claim = await claim_one(engine, worker)
    await engine.complete_task(claim.task_id, claim.epoch)


async def test_work_that_was_done_passes_the_audit(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        report = await engine.audit()
        assert (report.findings, report.seal, report.unsealed) == ([], None, False)
        await work(engine)
        assert (await engine.audit()).unsealed
        assert await engine.seal() > 0
        assert await engine.seal() == 0
        sealed = await engine.audit()
        assert (sealed.findings, sealed.unsealed) == ([], False)
        await work(engine)
        await engine.seal()
        later = await engine.audit(sealed.seal)
        assert later.findings == []
        assert later.seal != sealed.seal


async def test_what_moves_while_the_trail_is_sealed_is_left_to_the_next_seal(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a busy database would be sealed move by move, without a rest."""
    async with open_engine(database_url, clock) as engine:
        runs = [(await submit(engine, NewTask(name="a"))).id for _ in range(3)]
        loop = asyncio.get_running_loop()

        def move_and_take(*arguments: Any) -> Seal | None:
            if runs:
                asyncio.run_coroutine_threadsafe(engine.signal_run(runs.pop(), "cancel"), loop).result()
            return chain.take_seal(*arguments)

        monkeypatch.setattr("pointsman.engine.engine.take_seal", move_and_take)
        await engine.seal()
        with outsider(database_url) as prompt:
            assert len(prompt.ask("SELECT position FROM seal")) == 1
        assert (await engine.audit()).unsealed


# what the owner does to a sealed trail without leaving its rules; and where the audit finds it
TAMPERINGS = {
    "another actor": ("trail", "UPDATE trail SET actor = 'mallory' WHERE kind = 1 AND revision = 2"),
    "another reason": ("trail", "UPDATE trail SET reason = 'as agreed' WHERE revision = 0"),
    "another tenant": ("run", "UPDATE run SET tenant = 'globex'"),
    "another id": ("worker", "UPDATE worker SET id = 'worker_forged'"),
    "another limit": ("task", "UPDATE task SET max_retries = max_retries + 1"),
    "another rule": (
        "rule",
        "UPDATE rule SET trigger = 'shrug' WHERE id = (SELECT rule_id FROM trail WHERE kind = 1 AND revision = 1)",
    ),
    "a line less": ("trail", "DELETE FROM trail WHERE kind = 2"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
async def test_a_changed_line_breaks_its_seal(database_url: str, clock: ManualClock, tampering: str) -> None:
    async with open_engine(database_url, clock) as engine:
        await work(engine)
        await engine.seal()
        table, statement = TAMPERINGS[tampering]
        with outsider(database_url) as prompt, prompt.lawless(table):
            prompt.ask(statement)
        report = await engine.audit()
        assert "seal" in {each.kind for each in report.findings}
        assert await engine.seal() == 0, "what was sealed is not sealed again"


async def test_a_seal_with_a_wrong_digest_is_found(database_url: str, clock: ManualClock) -> None:
    """Any program that may seal can add one: the law cannot compute it."""
    async with open_engine(database_url, clock) as engine:
        await work(engine)
        with outsider(database_url) as prompt:
            prompt.ask(
                "INSERT INTO seal (position, previous, digest, sealed_at) SELECT max(position), 0, 'd', :at FROM trail",
                at=clock.now(),
            )
            (finding,) = (await engine.audit()).findings
        assert finding.kind == "seal"


async def test_only_the_seal_of_the_changed_lines_is_broken(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "BATCH", 2)
    async with open_engine(database_url, clock) as engine:
        await work(engine)
        await engine.seal()
        with outsider(database_url) as prompt:
            (first, second, *others) = [position for (position,) in prompt.ask("SELECT position FROM seal ORDER BY position")]
            assert others
            with prompt.lawless("trail"):
                prompt.ask("UPDATE trail SET actor = 'mallory' WHERE position = :position", position=second)
        findings = [each for each in (await engine.audit()).findings if each.kind == "seal"]
        assert [each.entity_id for each in findings] == [str(second)]
        assert f"Transitions {first + 1} to {second} are not what was sealed" in findings[0].finding


async def test_a_chain_that_was_computed_again_differs_from_a_seal_that_was_kept(database_url: str, clock: ManualClock) -> None:
    """Whoever owns the tables can also replace the seals: then only a seal that is kept elsewhere tells."""
    async with open_engine(database_url, clock) as engine:
        await work(engine)
        await engine.seal()
        kept = (await engine.audit()).seal
        with outsider(database_url) as prompt, prompt.lawless("trail"), prompt.lawless("seal"):
            prompt.ask("UPDATE trail SET reason = 'as agreed' WHERE kind = 1 AND revision = 1")
            prompt.ask("DELETE FROM seal")
        await engine.seal()
        assert [each.finding for each in (await engine.audit()).findings if each.kind == "seal"] == []
        (finding,) = [each for each in (await engine.audit(kept)).findings if each.kind == "seal"]
        assert "The seal that you kept is not in the chain" in finding.finding
        with pytest.raises(RequestInvalid, match="is not a seal"):
            await engine.audit("yesterday")


COPY = "INSERT INTO {table} (machine_id, {columns}) SELECT :number, {columns} FROM {table} WHERE machine_id = :model"
RULE = "from_state, to_state, trigger, severity, to_phase, to_outcome, needs_worker, needs_session, needs_dependencies"
COPIED = {"state": "name, phase, outcome, initial, kind", "rule": RULE}
MAGIC = "'PENDING', 'SUCCEEDED', 'magic', 'info', 'done', 'success', :no, :no, :no"
VERSION_99 = """
    INSERT INTO machine (id, name, version, kind, fingerprint, lifecycle, definition)
    SELECT :number, name, 99, kind, fingerprint, lifecycle, definition FROM machine WHERE id = :model
"""


async def test_a_machine_with_other_rules_than_its_lifecycle_is_found(database_url: str, clock: ManualClock) -> None:
    """Whoever may load machines may load one whose rules allow anything."""
    async with open_engine(database_url, clock) as engine:
        with outsider(database_url) as prompt:
            ((number,),) = prompt.ask("SELECT max(id) + 1 FROM machine")
            ((model,),) = prompt.ask("SELECT id FROM machine WHERE name = 'standard.task'")
            with prompt.together():
                for table, columns in COPIED.items():
                    prompt.ask(COPY.format(table=table, columns=columns), number=number, model=model)
                prompt.ask(f"INSERT INTO rule (machine_id, {RULE}) VALUES (:number, {MAGIC})", number=number, no=False)
                prompt.ask(VERSION_99, number=number, model=model)
        (finding,) = (await engine.audit()).findings
        assert (finding.kind, finding.entity_id) == ("machine", "standard.task 99")
        assert "Its rules are not those of its lifecycle." in finding.finding
