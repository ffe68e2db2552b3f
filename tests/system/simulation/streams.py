"""A seeded run of writers, readers and strangers on a real PostgreSQL: who may hold the event stream back, and who may not.

SQLite commits in the order of positions, so only PostgreSQL can show a stream with holes. One thread sends every statement, one
after the other, so the same seed is the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from random import Random
from typing import Any

import psycopg
from tests.databases import open_store, postgres_database
from tests.rooms.store.store_fixture import ACME, StoreFixture, insert, open_store_fixture
from tests.system.simulation.promises import Broken, keep

from pointsman.store.contract import Store, Transaction

STEPS = 60
WRITERS = 3
STRANGERS = 3
PAGE = 5
ON = "the stream goes on, whatever strangers do"
WHOLE = "the stream skips nothing"
WHAT_STRANGERS_DO = (
    "SELECT pg_current_xact_id()",
    "SELECT count(*) FROM trail",
    "INSERT INTO stranger VALUES (1)",
    "SELECT pg_try_advisory_xact_lock_shared(stream_lock())",
    "SELECT pg_try_advisory_xact_lock_shared(stream_lock() + greatest(0, last_value - 2)) FROM trail_position_seq",
    "SELECT pg_try_advisory_xact_lock(stream_lock() + last_value) FROM trail_position_seq",
)


class Streams:
    """One database for all seeds: what a seed leaves behind is committed, or nobody sees it."""

    def __init__(self, db: StoreFixture, writers: list[Store], strangers: list[psycopg.Connection[Any]]) -> None:
        self.db = db
        self.writers = writers
        self.strangers = strangers

    def run_seed(self, seed: int) -> tuple[str | None, list[str]]:
        """Nothing when every promise was kept, otherwise which one was not; and all that happened."""
        run = _Run(self, Random(seed))
        try:
            run.go()
        except Broken as broken:
            again = f"again: python -m tests.system.simulation --stream --seed {seed} --trace"
            return f"seed {seed}: {broken}\nbroken promise: {broken.promise}\n{again}", run.notes
        finally:
            run.close()
        return None, run.notes


class _Run:
    def __init__(self, streams: Streams, chance: Random) -> None:
        self._streams = streams
        self._chance = chance
        self._begun: dict[int, Transaction] = {}
        """By number of the writer: its open transaction."""
        with streams.db.store.read() as reader:
            self._beginning = int(reader.last_position() or 0)
        self._seen: list[int] = []
        self.notes: list[str] = []

    def go(self) -> None:
        for _ in range(STEPS):
            self._chance.choice((self._write, self._write, self._end, self._be_strange, self._read))()
            if not self._begun:
                self._read_all()
        for number in sorted(self._begun):
            self._begun.pop(number).commit()
        self._read_all()

    def close(self) -> None:
        for transaction in self._begun.values():
            transaction.rollback()
        for stranger in self._streams.strangers:
            stranger.rollback()

    def _write(self) -> None:
        number = self._chance.randrange(WRITERS)
        if number not in self._begun:
            self._begun[number] = self._streams.writers[number].begin()
            self.notes.append(f"writer {number} begins")
        if self._chance.random() < 0.8:
            insert(self._begun[number], self._streams.db.run())
            self._begun[number].list_lanes()  # a write waits for the next question
            self.notes.append(f"writer {number} moves something")

    def _end(self) -> None:
        if self._begun:
            number = self._chance.choice(sorted(self._begun))
            transaction = self._begun.pop(number)
            commits = self._chance.random() < 0.8
            transaction.commit() if commits else transaction.rollback()
            self.notes.append(f"writer {number} {'commits' if commits else 'rolls back'}")

    def _be_strange(self) -> None:
        number = self._chance.randrange(STRANGERS)
        stranger = self._streams.strangers[number]
        if self._chance.random() < 0.3:
            stranger.rollback()
            self.notes.append(f"stranger {number} leaves")
        else:
            deed = self._chance.choice(WHAT_STRANGERS_DO)
            stranger.execute(deed.encode())
            self.notes.append(f"stranger {number}: {deed}")

    def _read(self) -> bool:
        """Read a page from where the last one ended; whether there was anything."""
        after = str(self._seen[-1] if self._seen else self._beginning)
        with self._streams.db.store.read() as reader:
            page = [int(each.position) for each in reader.list_transitions(ACME, after=after, limit=PAGE, run_id=None)]
        self._seen += page
        return bool(page)

    def _read_all(self) -> None:
        """No transaction of ours is open: all that was committed is shown."""
        while self._read():
            pass
        written = self._streams.db.prompt.ask("SELECT position FROM transition ORDER BY position")
        committed = [position for (position,) in written if position > self._beginning]
        self.notes.append(f"{len(committed)} moves are committed, {len(self._seen)} were read")
        skipped = [position - self._beginning for position in committed if position not in self._seen]
        last = self._seen[-1] - self._beginning if self._seen else 0
        keep(WHOLE, not any(position < last for position in skipped), f"{skipped} were skipped, and {last} was read")
        keep(ON, not skipped, f"{skipped} are not shown, although only strangers have transactions")


@contextmanager
def open_streams() -> Iterator[Streams]:
    with ExitStack() as stack:
        url = stack.enter_context(postgres_database(migrated=False))
        db = stack.enter_context(open_store_fixture(url))
        writers = [stack.enter_context(closing(open_store(url))) for _ in range(WRITERS)]
        db.prompt.ask("CREATE TABLE stranger (number integer)")
        strangers = [stack.enter_context(psycopg.connect(url)) for _ in range(STRANGERS)]
        yield Streams(db, writers, strangers)
