"""How a scene is played: all parts at once, by threads of this process or by processes of their own, which may be killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
from tests.system.faults.programs import PATIENCE_SECONDS, Program, run
from tests.system.histories.actors import ACTORS, Order, Part, play
from tests.system.histories.recorder import Journal, Recorder

from pointsman import app

STAGE = "from tests.system.histories.actors import main; main()"
LOOK_SECONDS = 0.002


class Threads:
    """Each part has a thread, an event loop and an engine of its own; nobody is killed."""

    def play(self, url: str, folder: Path, parts: Sequence[Part]) -> None:
        everybody = threading.Barrier(len(parts), timeout=PATIENCE_SECONDS)
        with ThreadPoolExecutor(len(parts)) as threads:
            playing = [threads.submit(asyncio.run, play(_order(url, folder, part), lambda: _meet(everybody))) for part in parts]
            for each in playing:
                each.result()


class OneEngine:
    """All parts ask the same engine, which decides together what arrives together."""

    def play(self, url: str, folder: Path, parts: Sequence[Part]) -> None:
        asyncio.run(self._play(url, folder, parts))

    async def _play(self, url: str, folder: Path, parts: Sequence[Part]) -> None:
        journals = [Journal(folder / part.client) for part in parts]
        async with app.open(url) as engine:
            recorders = [Recorder(engine, part.client, journal) for part, journal in zip(parts, journals, strict=True)]
            acts = [ACTORS[part.actor](recorder, **part.arguments) for part, recorder in zip(parts, recorders, strict=True)]
            await asyncio.gather(*acts)
        for journal in journals:
            journal.close()


def _meet(everybody: threading.Barrier) -> None:
    everybody.wait()


class Processes:
    """Each part has a process of its own; those who live on play in the next scene, too."""

    def __init__(self) -> None:
        self._free: list[Program] = []
        self._programs = ExitStack()

    def play(self, url: str, folder: Path, parts: Sequence[Part]) -> None:
        while len(self._free) < len(parts):
            self._hire()
        cast = [(part, self._free.pop()) for part in parts]
        for part, program in cast:
            program.tell(msgspec.json.encode(_order(url, folder, part)).decode())
        for part, program in cast:
            assert program.read_line() == "ready", f"{part.client} is not there"
        for _, program in cast:
            program.tell("go")
        self._kill([(program, part.dies_after, folder / part.client) for part, program in cast if part.dies_after is not None])
        for part, program in cast:
            if part.dies_after is None:
                assert program.read_line() == "done", f"{part.client} has not come to its end"
                self._free.append(program)

    def _hire(self) -> None:
        """Somebody new, who gets ready while others play."""
        self._free.insert(0, self._programs.enter_context(run(STAGE)))

    def _kill(self, victims: list[tuple[Program, int, Path]]) -> None:
        """Each as soon as it has written enough; it is in the middle of something most of the time."""
        end = time.monotonic() + PATIENCE_SECONDS
        while victims and time.monotonic() < end:
            for program, lines, journal in list(victims):
                if journal.read_bytes().count(b"\n") >= lines:
                    program.kill()
                    self._hire()
                    victims.remove((program, lines, journal))
            time.sleep(LOOK_SECONDS)
        assert not victims, "somebody was to be killed and wrote too little"

    def close(self) -> None:
        self._programs.close()


def _order(url: str, folder: Path, part: Part) -> Order:
    return Order(url=url, journal=str(folder / part.client), part=part)
