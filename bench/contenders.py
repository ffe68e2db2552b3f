"""Whoever takes part: a process of its own that is asked in lines of JSON, so that all take turns in one run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 600.0
FEWEST_BATCHES = 2

Answer = dict[str, Any]


class Contender:
    def __init__(self, module: str, *arguments: str, python: str = sys.executable, folder: Path = ROOT) -> None:
        self.module = module
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **request: Any) -> Answer:
        self.tell(do, **request)
        return self.hear()

    def tell(self, do: str, **request: Any) -> None:
        assert self._process.stdin
        print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)

    def hear(self) -> Answer:
        assert self._process.stdout
        impatient = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        impatient.start()
        try:
            line = self._process.stdout.readline()
        finally:
            impatient.cancel()
        if not line:
            raise RuntimeError(f"{self.module} ended with exit code {self._process.wait()} instead of an answer.")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Entry:
    """One way in which a contender takes part."""

    name: str
    measure: Callable[[int], Answer]
    """Have so many tasks done: how many they were, and how many seconds that took."""
    batch: int = 1
    """How many tasks go together: counts are multiples of it, so that nobody ends with a part of a batch."""
    first: int = 100
    """How many tasks it does to warm up."""
    fixed: int | None = None
    """How many tasks it does in each round, however long that takes."""


@dataclass(frozen=True)
class Pace:
    rounds: int
    seconds: float
    """About so long each works in each round; how many tasks that takes follows from how it did while warming up."""
    most: int


def take_turns(entries: Sequence[Entry], pace: Pace, tell: Callable[[str], None]) -> dict[str, list[Answer]]:
    """What each measured in each round. Who begins changes, and who follows whom: every second round goes backwards."""
    counts = {}
    for entry in entries:
        tell(f"warming up: {entry.name}")
        counts[entry.name] = warm_up(entry, pace)
    results: dict[str, list[Answer]] = {entry.name: [] for entry in entries}
    for turn in range(pace.rounds):
        tell(f"round {turn + 1} of {pace.rounds}")
        first = turn // 2 * len(entries) // -(-pace.rounds // 2)
        order = [*entries[first:], *entries[:first]]
        for entry in reversed(order) if turn % 2 else order:
            results[entry.name].append(entry.measure(counts[entry.name]))
    return results


def alike(entries: Sequence[Entry], pace: Pace) -> list[Entry]:
    """The same entries, each with as many tasks as the slowest one does: what a task costs may depend on how many there are."""
    count = min(warm_up(entry, pace) for entry in entries)
    return [replace(entry, fixed=count) for entry in entries]


def warm_up(entry: Entry, pace: Pace) -> int:
    """How many tasks its rounds have; whoever is done at once is tried again with more, since it was not warm yet."""
    if entry.fixed:
        entry.measure(entry.fixed)
        return entry.fixed
    answer = entry.measure(multiple(entry.first, entry.batch))
    if answer["seconds"] < pace.seconds / 4:
        answer = entry.measure(count_for(entry, answer, pace.seconds / 2, pace.most))
    return count_for(entry, answer, pace.seconds, pace.most)


def count_for(entry: Entry, answer: Answer, seconds: float, most: int) -> int:
    wanted = int(answer["tasks"] / answer["seconds"] * seconds)
    return multiple(min(max(wanted, entry.first), most), entry.batch)


def multiple(count: int, batch: int) -> int:
    return max(round(count / batch), FEWEST_BATCHES) * batch


def rates(answers: Sequence[Answer]) -> list[float]:
    return [answer["tasks"] / answer["seconds"] for answer in answers]
