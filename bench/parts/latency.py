"""One task alone: from its submission into an idle system until somebody has it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.contenders import Contender
from bench.parts.setting import Setting
from bench.report import Table, Target, latency_row

IDLE_SECONDS = 0.03
"""Everybody has gone to sleep by then."""
NO_SLOWER = Target(1, at_most=True)


@dataclass(frozen=True)
class Couple:
    """Two processes at one database: one submits, and the other waits for it."""

    name: str
    submits: Contender
    claims: Contender

    def once(self) -> float:
        """Both read the same clock: that of the machine since it was started."""
        began = self.submits.ask("submit_one")["began"]
        claimed = self.claims.hear()["claimed"]
        return float(claimed - began)


def measure(setting: Setting) -> list[Table]:
    """In one process and across two; each database has its target for the way in which it is mostly used."""
    database, turns = setting.database, setting.scale.latencies
    floor_url, own_url = database.new("floor_latency"), database.new("pointsman_latency")
    with setting.closing():
        floor, own = setting.floor(floor_url), setting.own(own_url)
        couples = [Couple("Pointsman", own, setting.own(own_url))]
        # In one process, PostgreSQL's floor would have to wake itself up; across two, SQLite's has nothing to be woken by.
        singles = {"Pointsman": own}
        if database.kind == "sqlite":
            singles = {"floor": floor, **singles}
        else:
            couples.insert(0, Couple("floor", floor, setting.floor(floor_url)))
            if setting.has_peers():
                couples.append(peer_couple(setting, "pgqueuer"))
        setting.tell("one task alone, one process")
        alone = take_turns_alone(singles, turns)
        setting.tell("one task alone, two processes")
        across = take_turns(couples, turns)
        own.ask("check_runs")
    target = Target(2.2 if database.kind == "sqlite" else 4, at_most=True, unit=" ms")
    judged = alone if database.kind == "sqlite" else across
    rows = []
    for how, measured in (("one process", alone), ("two processes", across)):
        for name, seconds in measured.items():
            if name == "Pointsman":
                rows.append(latency_row(f"{name}, {how}", seconds, target=target if measured is judged else None))
            else:
                bound = NO_SLOWER if name == "pgqueuer" else None
                rows.append(latency_row(f"{name}, {how}", seconds, own=measured["Pointsman"], ratio_target=bound))
    return [Table(f"{database.name}: one task alone, from submitted to claimed", rows)]


def peer_couple(setting: Setting, name: str) -> Couple:
    url = setting.database.new(f"{name}_latency")
    submits = setting.peer(name, url)
    submits.ask("prepare")
    return Couple(name, submits, setting.peer(name, url))


def take_turns_alone(contenders: Mapping[str, Contender], turns: int) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, contender in contenders.items():
            time.sleep(IDLE_SECONDS)
            seconds = contender.ask("wait_for_task")["seconds"]
            if turn:
                measured[name].append(seconds)
    return measured


def take_turns(couples: Sequence[Couple], turns: int) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {couple.name: [] for couple in couples}
    for couple in couples:
        couple.claims.tell("claim_each", turns=turns + 1)
        assert couple.claims.hear() == {"ready": True}
    for turn in range(turns + 1):
        for couple in couples:
            time.sleep(IDLE_SECONDS)
            seconds = couple.once()
            if turn:
                measured[couple.name].append(seconds)
    for couple in couples:
        couple.claims.hear()
    return measured
