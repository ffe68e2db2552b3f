"""Break real processes on purpose, for as long as you like, and check every promise afterwards.

    python -m tests.system.campaign --kills 1000 --zombies 200 --cuts 2000 --restarts 100
    python -m tests.system.campaign --kills 50 --database sqlite --seed 7

Kills and zombies are shared by both databases; cuts and restarts need a server, so they are PostgreSQL's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests import databases
from tests.system.campaign import faults
from tests.system.campaign.fleet import Figures, open_fleet
from tests.system.faults.project import Project
from tests.system.faults.proxy import proxy
from tests.system.faults.server import own_server

WORKERS = 4
MOST_AT_ONCE = 250
"""Faults of one battle; then everything is checked, and the next battle begins with an empty database."""
BEGIN, END = "<!-- make campaign -->", "<!-- end of make campaign -->"
COLUMNS = ("fault", "database", "times", "runs", "tasks", "attempts", "of them interrupted", "minutes", "promises")


@dataclass(frozen=True, slots=True)
class Battle:
    fault: str
    database: str
    times: int


@dataclass(slots=True)
class Result:
    battle: Battle
    figures: Figures
    seconds: float

    def cells(self) -> list[str]:
        found = self.figures
        counts = (self.battle.times, found.runs, found.tasks, found.attempts, found.interrupted)
        return [self.battle.fault, self.battle.database, *(f"{each:,}" for each in counts), f"{self.seconds / 60:.1f}", "kept"]


def main() -> int:
    options = _parse_options()
    databases.claim_ownership()
    results: list[Result] = []
    try:
        for number, battle in enumerate(_plan(options)):
            print(f"{battle.fault}, {battle.times} times, on {battle.database} …", file=sys.stderr, flush=True)
            began = time.monotonic()
            figures = asyncio.run(_fight(battle, Random(f"{options.seed} {number}")))
            results.append(Result(battle, figures, time.monotonic() - began))
    finally:  # what was kept before a promise was broken is worth knowing, too
        databases.end_ownership()
        table = _draw(_add_up(results))
        print(table)
    if options.write:
        text = options.write.read_text("utf-8")
        before, _, rest = text.partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", "utf-8")
    return 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="workers that get SIGKILL")
    parser.add_argument("--zombies", type=int, default=0, help="workers that are frozen right after a claim, past their lease")
    parser.add_argument("--cuts", type=int, default=0, help="connections that are reset")
    parser.add_argument("--restarts", type=int, default=0, help="times that the PostgreSQL server gets SIGKILL")
    parser.add_argument("--database", choices=[*databases.DATABASES, "both"], default="both")
    parser.add_argument("--seed", default="1", help="what is chosen by chance; processes still run as they like")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of this file")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Iterator[Battle]:
    chosen = databases.DATABASES if options.database == "both" else (options.database,)
    for database in chosen:
        yield from _split("worker killed", database, options.kills // len(chosen))
        yield from _split("worker frozen after a claim", database, options.zombies // len(chosen))
    if "postgres" in chosen:
        yield from _split("connection cut", "postgres", options.cuts)
        yield from _split("server killed", "postgres", options.restarts)


def _split(fault: str, database: str, times: int) -> Iterator[Battle]:
    while times > 0:
        yield Battle(fault, database, min(times, MOST_AT_ONCE))
        times -= MOST_AT_ONCE


async def _fight(battle: Battle, chance: Random) -> Figures:
    with tempfile.TemporaryDirectory(prefix="pointsman-campaign-") as folder:
        field = _open_field(battle, Path(folder))
        async with field as (project, store, fault), open_fleet(project, chance, WORKERS, store) as fleet:
            await fault(fleet, battle.times)
            return await fleet.finish()


@asynccontextmanager
async def _open_field(battle: Battle, folder: Path) -> AsyncIterator[tuple[Project, str | None, faults.Fault]]:
    """Where a battle takes place: a project, the database as workers see it, and the fault."""
    workers = {"worker killed": faults.kill_workers, "worker frozen after a claim": faults.freeze_workers}
    if battle.database == "sqlite":
        yield Project(folder), None, workers[battle.fault]
    elif battle.fault == "server killed":
        with own_server() as server:
            yield Project(folder, server.url), None, faults.kill_postmaster(server)
    else:
        with databases.postgres_database() as url:
            if battle.fault != "connection cut":
                yield Project(folder, url), None, workers[battle.fault]
                return
            with proxy(url) as between:
                yield Project(folder, url), between.url, faults.cut_connections(between)


def _add_up(results: list[Result]) -> list[Result]:
    """One row for each fault and database."""
    rows: dict[tuple[str, str], Result] = {}
    for each in results:
        key = (each.battle.fault, each.battle.database)
        if key in rows:
            rows[key] = _join(rows[key], each)
        else:
            rows[key] = each
    return list(rows.values())


def _join(one: Result, two: Result) -> Result:
    a, b = one.figures, two.figures
    figures = Figures(a.runs + b.runs, a.tasks + b.tasks, a.attempts + b.attempts, a.interrupted + b.interrupted)
    battle = Battle(one.battle.fault, one.battle.database, one.battle.times + two.battle.times)
    return Result(battle, figures, one.seconds + two.seconds)


def _draw(rows: list[Result]) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(tuple(row.cells()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
