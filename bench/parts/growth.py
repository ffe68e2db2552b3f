"""What finished tasks cost: bytes, and the speed of those that come after them."""

from __future__ import annotations

from bench.contenders import Contender, Entry, rates, take_turns
from bench.databases import Database
from bench.parts.filling import multiply
from bench.parts.setting import Setting
from bench.report import Row, Table, Target, compared_row, rate_row, ratio_of, times

BATCH = 100
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
    size = Row(f"Pointsman, the database with {finished:,} of them", f"{database.size_bytes(full_url) / 1e6:,.0f} MB")
    with setting.closing():
        urls = {"empty": database.new("pointsman_empty"), "full": full_url, "again": database.new("pointsman_again")}
        contenders = {name: setting.own(url) for name, url in urls.items()}
        entries = [
            entry(f"{what}, {name}", contender, what) for what in ("drain", "claim") for name, contender in contenders.items()
        ]
        answers = take_turns(entries, setting.scale.pace, setting.tell)
    speeds = []
    for what, told in (("drain", "from claim to completion"), ("claim", "claims alone")):
        before, after = rates(answers[f"{what}, empty"]), rates(answers[f"{what}, full"])
        speeds.append(rate_row(f"{told}, empty database", before))
        note = "of the empty database"
        speeds.append(compared_row(f"{told}, {finished:,} finished tasks", after, before, Target(0.95), note))
        again = rates(answers[f"{what}, again"])
        noise = f"{times(ratio_of(again, before))} of the first one: the noise"
        speeds.append(rate_row(f"{told}, another empty database", again, note=noise))
    return [
        Table(f"{database.name}: bytes of a finished task", [*rows, size]),
        Table(f"{database.name}: speed with {finished:,} finished tasks, batches of {BATCH}", speeds),
    ]


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
