"""What finished tasks cost: bytes, and the speed of those that come after them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench.contenders import Contender, Entry, alike, rates, take_turns
from bench.databases import Database
from bench.parts.filling import multiply
from bench.parts.setting import Setting
from bench.report import Row, Table, Target, compared_row, half_of_ratios, rate_row, ratio_of, times

from pointsman import app

BATCH = 100
SHORTER = 4
"""So many times as many rounds as elsewhere, each so many times shorter: what disturbs the machine then disturbs all alike."""
BYTES_TARGETS = {
    "postgres": {"after a full vacuum": 1_500, "write-ahead log": 3_500},
    "sqlite": {"as it is left": 900},
}


def measure(setting: Setting) -> list[Table]:
    database, sample, finished = setting.database, setting.scale.sample, setting.scale.finished
    full_url, floor_url = database.new("pointsman_full"), database.new("floor_size")
    with setting.closing():
        own, floor = setting.own(full_url), setting.floor(floor_url)
        setting.tell(f"the bytes of {sample:,} finished tasks")
        rows = [
            *bytes_rows("floor", database, floor_url, floor, sample),
            *bytes_rows("Pointsman", database, full_url, own, sample),
        ]
    setting.tell(f"filling with {finished:,} finished tasks")
    multiply(full_url, finished // sample)
    asyncio.run(seal(full_url))
    size = Row(f"Pointsman, the database with {finished:,} of them", f"{database.size_bytes(full_url) / 1e6:,.0f} MB")
    with setting.closing():
        urls = {"empty": database.new("pointsman_empty"), "full": full_url, "again": database.new("pointsman_again")}
        contenders = {name: setting.own(url) for name, url in urls.items()}
        pace = setting.scale.pace
        pace = replace(pace, rounds=SHORTER * pace.rounds, seconds=pace.seconds / SHORTER)
        answers = {
            what: take_turns(alike([entry(name, each, what) for name, each in contenders.items()], pace), pace, setting.tell)
            for what in ("drain", "claim")
        }
    speeds = []
    for what, told in (("drain", "from claim to completion"), ("claim", "claims alone")):
        before, after, again = (rates(answers[what][name]) for name in urls)
        speeds.append(rate_row(f"{told}, empty database", before))
        note = f"of the empty database; {half_of_ratios(after, before)}"
        speeds.append(compared_row(f"{told}, {finished:,} finished tasks", after, before, Target(0.95), note))
        noise = f"{times(ratio_of(again, before))} of the first one: the noise; {half_of_ratios(again, before)}"
        speeds.append(rate_row(f"{told}, another empty database", again, note=noise))
    return [
        Table(f"{database.name}: bytes of a finished task", [*rows, size]),
        Table(f"{database.name}: speed with {finished:,} finished tasks, batches of {BATCH}, {pace.rounds} rounds", speeds),
    ]


async def seal(url: str) -> None:
    """Seal the audit trail now. Otherwise, the engine would seal millions of lines while it is measured."""
    async with app.open(url, keeps=False) as engine:
        await engine.seal()


def entry(name: str, contender: Contender, what: str) -> Entry:
    return Entry(name, lambda count: contender.ask(what, count=count, batch=BATCH), BATCH, first=10 * BATCH)


def bytes_rows(name: str, database: Database, url: str, contender: Contender, count: int) -> list[Row]:
    """What the database grows by, from before the tasks are submitted to after they are done, and what of it is needed."""
    database.vacuum(url)
    empty, wal = database.size_bytes(url), database.wal_bytes()
    contender.ask("drain", count=count, batch=BATCH)
    used, wal_after = database.size_bytes(url), database.wal_bytes()
    database.vacuum(url)
    needed = database.size_bytes(url)
    sizes = {"as it is left": (used - empty) / count, "after a full vacuum": (needed - empty) / count}
    if wal is not None and wal_after is not None:
        sizes["write-ahead log"] = (wal_after - wal) / count
    targets = BYTES_TARGETS[database.kind] if name == "Pointsman" else {}
    return [bytes_row(f"{name}, {what}", size, targets.get(what)) for what, size in sizes.items()]


def bytes_row(what: str, size: float, most: int | None) -> Row:
    if most is None:
        return Row(what, f"{size:,.0f} bytes", (size,))
    target = Target(most, at_most=True, unit=" bytes")
    return Row(what, f"{size:,.0f} bytes", (size,), target=target, met=target.is_met_by(size))
