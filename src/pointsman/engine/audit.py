"""The hash chain over the audit trail, and the audit that verifies it.

    transitions 1 … 700 ──▶ seal 700 ──┐
    transitions 701 … 1,300 ───────────┴──▶ seal 1,300 ──┐
                                                         └──▶ …

A seal is the SHA-256 of the seal before it and of the transitions since, of all entities, as the database stores them. A duty
seals what is settled, so the chain costs no commit anything. To change, add or delete a sealed transition breaks its seal. To
compute all later seals again changes the last one, which people can keep elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

import msgspec

from pointsman.engine.doctor import Diagnosis
from pointsman.engine.machines import restore, take_fingerprint
from pointsman.errors import LifecycleError, Problem, RequestInvalid
from pointsman.store.contract import Reader, read_position
from pointsman.store.law import RuleRow, StateRow, rule_rows, state_rows
from pointsman.store.rows import MachineRow, Seal

BATCH = 5000
"""How many transitions a seal covers at most."""
_SEAL = re.compile(r"[0-9]{1,18}:[0-9a-f]{64}")
_TAMPERED = "Somebody bypassed the law. Find out who could: compare with a backup, and restore it if the difference matters."


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found, and how far the chain of seals reaches."""

    findings: list[Diagnosis]
    seal: str | None
    """The last seal, as POSITION:DIGEST."""
    unsealed: bool
    """Some transitions are not sealed yet."""


def find_settled(reader: Reader) -> int:
    """The last transition before which no other can appear any more."""
    return read_position(reader.last_position())


def take_seal(reader: Reader, now: datetime, end: int) -> Seal | None:
    """The next link of the chain; None when everything up to `end`, which is settled, is sealed."""
    last = reader.last_seal()
    previous = last.position if last else 0
    trail = reader.read_trail(previous, end, BATCH)
    if trail is None:
        return None
    position, lines = trail
    return Seal(position=position, previous=previous, digest=_digest(last, lines), sealed_at=now)


def audit(reader: Reader, expected: str | None = None) -> AuditReport:
    """Verify every seal and every audit trail, and that each machine has the rules of its lifecycle."""
    if expected is not None and not _SEAL.fullmatch(expected):
        raise RequestInvalid([Problem("seal", f"'{expected[:80]}' is not a seal. Pass one that an audit has reported.")])
    findings = [*_check_seals(reader, expected), *_check_trails(reader), *_check_machines(reader)]
    last, end = reader.last_seal(), find_settled(reader)
    sealed = last.position if last else 0
    return AuditReport(findings=findings, seal=f"{last.position}:{last.digest}" if last else None, unsealed=end > sealed)


def _check_seals(reader: Reader, expected: str | None) -> Iterator[Diagnosis]:
    """Compute the chain again. The seals behind a broken one are computed from what is stored, so each finding is its own."""
    last: Seal | None = None
    is_found = False
    while seals := reader.list_seals(last.position if last else 0, BATCH):
        for seal in seals:
            _, lines = reader.read_trail(seal.previous, seal.position, seal.position - seal.previous) or (0, b"")
            if seal.previous != (last.position if last else 0) or _digest(last, lines) != seal.digest:
                yield _broken(seal)
            is_found |= f"{seal.position}:{seal.digest}" == expected
            last = seal
    if expected is not None and not is_found:
        yield Diagnosis(
            subject="tampered",
            kind="seal",
            entity_id=expected.partition(":")[0],
            finding="The seal that you kept is not in the chain: transitions up to it were changed, and sealed again.",
            advice=_TAMPERED,
        )


def _digest(last: Seal | None, lines: bytes) -> str:
    return hashlib.sha256((last.digest if last else "").encode() + b"\n" + lines).hexdigest()


def _broken(seal: Seal) -> Diagnosis:
    where = f"Transitions {seal.previous + 1} to {seal.position}"
    return Diagnosis(
        subject="tampered",
        kind="seal",
        entity_id=str(seal.position),
        finding=f"{where} are not what was sealed at {seal.sealed_at:%Y-%m-%d %H:%M:%S} UTC.",
        advice=_TAMPERED,
    )


def _check_trails(reader: Reader) -> Iterator[Diagnosis]:
    for kind, entity_id, what in reader.list_broken_trails():
        yield Diagnosis(
            subject="tampered", kind=kind, entity_id=entity_id, finding=f"{what[0].upper()}{what[1:]}.", advice=_TAMPERED
        )


def _check_machines(reader: Reader) -> Iterator[Diagnosis]:
    states: defaultdict[int, set[StateRow]] = defaultdict(set)
    rules: defaultdict[int, set[RuleRow]] = defaultdict(set)
    for state in reader.list_states():
        states[state.machine_id].add(state)
    for rule in reader.list_rules():
        rules[rule.machine_id].add(rule)
    for row in reader.list_machines():
        if problem := _check_machine(row, states[row.id], rules[row.id]):
            yield Diagnosis(
                subject="tampered",
                kind="machine",
                entity_id=f"{row.name} {row.version}",
                finding=f"{problem} Its entities may have made moves that no lifecycle allows.",
                advice=_TAMPERED,
            )


def _check_machine(row: MachineRow, states: set[StateRow], rules: set[RuleRow]) -> str | None:
    try:
        machine = restore(row)
    except (LifecycleError, StopIteration) as error:
        return f"Its lifecycle cannot be read: {error}"
    if row.fingerprint != take_fingerprint(machine):
        return "Its lifecycle is not the one with which it was loaded."
    if states != set(state_rows(row.id, machine)) or rules != set(rule_rows(row.id, machine)):
        return "Its rules are not those of its lifecycle."
    return None
