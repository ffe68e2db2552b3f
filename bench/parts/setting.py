"""What every part of a run is given: the database, how much is to be measured, and whoever takes part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.contenders import Contender, Pace
from bench.databases import Database


@dataclass(frozen=True)
class Scale:
    name: str
    pace: Pace
    layers: tuple[int, ...]
    chain: int
    latencies: int
    finished: int
    """How many finished tasks are in the way where growth is measured."""
    sample: int
    """How many of them the engine has really finished; the others are copies."""


@dataclass(frozen=True)
class Setting:
    database: Database
    scale: Scale
    peers_python: str | None
    versions: dict[str, str] = field(default_factory=dict)
    """Filled as contenders begin."""
    _begun: list[Contender] = field(default_factory=list)

    def own(self, url: str) -> Contender:
        contender = self._begin(Contender("bench.own", url))
        self.versions.update(contender.ask("versions"))
        return contender

    def floor(self, url: str) -> Contender:
        return self._begin(Contender("bench.floor", url))

    def has_peers(self) -> bool:
        return self.peers_python is not None

    def peer(self, name: str, url: str) -> Contender:
        assert self.peers_python
        contender = self._begin(Contender(f"bench.peers.{name}", url, python=self.peers_python))
        self.versions.update(contender.ask("versions"))
        return contender

    def tell(self, what: str) -> None:
        print(f"{self.database.name}: {what} …", file=sys.stderr, flush=True)

    def _begin(self, contender: Contender) -> Contender:
        self._begun.append(contender)
        return contender

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Whoever begins inside ends with it."""
        try:
            yield
        finally:
            while self._begun:
                self._begun.pop().close()
