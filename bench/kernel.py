"""Measures the kernel and the log validator against their peers and floors, everything in one run.

    python bench/kernel.py                              print the tables
    python bench/kernel.py --write docs/benchmarks.md   and keep them
    python bench/kernel.py --lines 1000000              a shorter memory test

Every contender makes the same move: from one state to the other on a trigger with one guard, which holds, and back.
Contenders take turns, so that a noisy machine is noisy for all of them; medians are compared, never single figures.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import transitions
from statemachine import State as PeerState
from statemachine import StateMachine as PeerMachine

from pointsman import load_lifecycle, load_machine
from pointsman.events.validate import Validator
from pointsman.kernel.load import load_lifecycle as load_text
from pointsman.kernel.step import Snapshot, Step, step
from pointsman.lifecycles.guards import Facts
from pointsman.lifecycles.vocabulary import VOCABULARY

ROUNDS = 15
BEGIN, END = "<!-- bench/kernel.py -->", "<!-- end of bench/kernel.py -->"
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Row:
    what: str
    figure: str
    ratio: str
    target: str
    met: bool


# ── one move with a guard ──

PING_PONG = """
lifecycle: bench
machines:
  worker:
    kind: worker
    states:
      IDLE: {phase: queued, initial: true}
      BUSY: {phase: active}
      GONE: {phase: done, outcome: success}
    transitions:
      - IDLE -> BUSY : assign [has_capacity]
      - BUSY -> IDLE : release [has_capacity]
      - IDLE -> GONE : drain
    fallbacks: {expire: drain}
"""


def pointsman_moves(count: int) -> Callable[[], None]:
    lifecycle = load_text(PING_PONG, file="bench", vocabulary=VOCABULARY, find_machine=load_machine, borrowed={})
    machine, facts, now = lifecycle.machines[0], Facts(), datetime(2026, 1, 1, tzinfo=UTC)
    start = Snapshot("IDLE", now)

    def run() -> None:
        snapshot = start
        for _ in range(count // 2):
            there = step(machine, snapshot, "assign", facts, now)
            assert isinstance(there, Step)
            back = step(machine, there.snapshot, "release", facts, now)
            assert isinstance(back, Step)
            snapshot = back.snapshot
        assert snapshot.state == "IDLE"

    return run


def transitions_moves(count: int) -> Callable[[], None]:
    class Model:
        tasks_held, max_concurrent_tasks = 0, 1
        state: str
        assign: Callable[[], bool]
        release: Callable[[], bool]

        def has_capacity(self) -> bool:
            return self.tasks_held < self.max_concurrent_tasks

    model = Model()
    machine = transitions.Machine(model, states=["IDLE", "BUSY"], initial="IDLE", auto_transitions=False)
    machine.add_transition("assign", "IDLE", "BUSY", conditions="has_capacity")
    machine.add_transition("release", "BUSY", "IDLE", conditions="has_capacity")

    def run() -> None:
        for _ in range(count // 2):
            model.assign()
            model.release()
        assert model.state == "IDLE"

    return run


def statemachine_moves(count: int) -> Callable[[], None]:
    class Worker(PeerMachine):
        IDLE = PeerState(initial=True)
        BUSY = PeerState()
        assign = IDLE.to(BUSY, cond="has_capacity")
        release = BUSY.to(IDLE, cond="has_capacity")
        tasks_held, max_concurrent_tasks = 0, 1

        def has_capacity(self) -> bool:
            return self.tasks_held < self.max_concurrent_tasks

    worker = Worker()

    def run() -> None:
        for _ in range(count // 2):
            worker.assign()
            worker.release()
        assert worker.IDLE.is_active

    return run


def measure_moves() -> list[Row]:
    counts = {"pointsman": 20_000, "transitions": 4_000, "python-statemachine": 400}
    runs = {
        "pointsman": pointsman_moves(counts["pointsman"]),
        "transitions": transitions_moves(counts["transitions"]),
        "python-statemachine": statemachine_moves(counts["python-statemachine"]),
    }
    each = interleave({name: (run, counts[name]) for name, run in runs.items()})
    own = each["pointsman"]
    rows = [Row("`step` with a guard", micros(own), "1", "", met=True)]
    for peer, most in (("transitions", 10), ("python-statemachine", 100)):
        ratio = each[peer] / own
        rows.append(
            Row(f"`{peer}` {version(peer)}", micros(each[peer]), f"{ratio:.1f}×", f"at least {most}×", met=ratio >= most)
        )
    return rows


# ── a line of a log ──

HISTORY = (
    ("pending", "queued", "scheduler_assigned", '"workstream_id":"ws-1","max_retries":2'),
    ("queued", "running", "worker_started", '"worker_id":"worker-%d"'),
    ("running", "validating", "execution_completed", '"duration_seconds":45,"retry_count":0'),
    ("validating", "completed", "validation_passed", '"rules":3'),
)
TEMPLATE = (
    '{"timestamp":"2026-01-15T10:30:00.000Z","event_type":"task_state_transition","severity":"info","entity_id":"task-%s",'
    '"from_state":"%s","to_state":"%s","trigger":"%s","metadata":{%s}}\n'
)


def history(number: int) -> str:
    """Four lines of a new task, under an id that does not sort by time."""
    name = f"{number * 2654435761 % 2**32:08x}"
    return "".join(TEMPLATE % (name, *move, extra.replace("%d", str(number % 8))) for *move, extra in HISTORY)


def measure_lines() -> list[Row]:
    """Logs in which tasks follow one another, and logs in which they take turns: all are queued, then all are started …"""
    lifecycle = load_lifecycle("orchestrated")

    def decode(lines: list[bytes]) -> Callable[[], None]:
        def run() -> None:
            for line in lines:
                msgspec.json.decode(line)

        return run

    def check(lines: list[bytes]) -> Callable[[], None]:
        def run() -> None:
            validator = Validator(lifecycle, "bench")
            for line in lines:
                validator.check_line(line)
            assert validator.summary.findings == 0
            validator.close()

        return run

    one_by_one = [line for number in range(25_000) for line in history(number).encode().splitlines(keepends=True)]
    few, many = taking_turns(4_000), taking_turns(25_000)
    logs = {
        "25,000 tasks, one after another": one_by_one,
        "4,000 tasks taking turns": few,
        "25,000 tasks taking turns": many,
    }
    contenders = {what: (check(lines), len(lines)) for what, lines in logs.items()}
    each = interleave({"decode": (decode(one_by_one), len(one_by_one)), **contenders}, rounds=7)
    rows = [Row("`msgspec.json.decode` alone", micros(each["decode"]), "1", "", met=True)]
    for what in logs:
        ratio = each[what] / each["decode"]
        rows.append(Row(f"`Validator.check_line`, {what}", micros(each[what]), f"{ratio:.1f}×", "at most 10×", met=ratio <= 10))
    return rows


def taking_turns(tasks: int) -> list[bytes]:
    histories = [history(number).encode().splitlines(keepends=True) for number in range(tasks)]
    return [lines[turn] for turn in range(len(HISTORY)) for lines in histories]


def measure_memory(most: int) -> list[Row]:
    few, rows = 10_000, []
    peaks = {count: validate_by_pipe(count) for count in (few, 100_000, most)}
    for count, (megabytes, seconds) in peaks.items():
        ratio = megabytes / peaks[few][0]
        what = f"`pointsman validate -`, {count:,} lines, {count // len(HISTORY):,} entities"
        target = "" if count == few else "the same (at most 1.25×)"
        figure = f"{megabytes:.0f} MB peak, {seconds:.1f} s"
        rows.append(Row(what, figure, f"{ratio:.2f}×", target, met=ratio <= 1.25))
    return rows


def validate_by_pipe(count: int) -> tuple[float, float]:
    """Peak memory and time of a real process that reads that many lines from its stdin."""
    begin = time.perf_counter()
    process = subprocess.Popen([BIN / "pointsman", "validate", "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin
    with process.stdin as stdin:
        for chunk in chunks(count // len(HISTORY)):
            stdin.write(chunk)
        stdin.flush()
        # Not ru_maxrss: that one counts what this process had when it forked.
        status = Path(f"/proc/{process.pid}/status").read_text()
    assert process.wait() == 0, process.returncode
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024, time.perf_counter() - begin


def chunks(entities: int) -> Iterator[bytes]:
    for start in range(0, entities, 1_000):
        yield "".join(map(history, range(start, min(start + 1_000, entities)))).encode()


# ── the start of the program ──


def measure_help() -> list[Row]:
    def launch(*command: str | Path) -> Callable[[], None]:
        def run() -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        return run

    python, helped = launch(sys.executable, "-c", "pass"), launch(BIN / "pointsman", "--help")
    each = interleave({"python": (python, 1), "help": (helped, 1)}, rounds=31)
    ratio = each["help"] / each["python"]
    return [
        Row("`python -c pass`", millis(each["python"]), "1", "", met=True),
        Row("`pointsman --help`", millis(each["help"]), f"{ratio:.1f}×", "at most 4×", met=ratio <= 4),
    ]


# ── measuring and telling ──


def interleave(contenders: dict[str, tuple[Callable[[], None], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median time of one operation of each contender, in seconds, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, (run, count) in contenders.items():
            begin = time.perf_counter()
            run()
            if turn:
                times[name].append((time.perf_counter() - begin) / count)
    return {name: statistics.median(each) for name, each in times.items()}


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs"


def millis(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def table(title: str, rows: list[Row]) -> str:
    lines = [f"### {title}", "", "| what | measured | ratio | target | met |", "|---|---|---|---|---|"]
    for row in rows:
        met = ("yes" if row.met else "**no**") if row.target else ""
        lines.append(f"| {row.what} | {row.figure} | {row.ratio} | {row.target} | {met} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of this file")
    parser.add_argument("--lines", type=int, default=10_000_000, help="the length of the longer log (default 10,000,000)")
    options = parser.parse_args()
    tables = []
    for title, measure in (
        ("One move with a guard", measure_moves),
        ("One line of a log", measure_lines),
        ("Memory of the validator", lambda: measure_memory(options.lines)),
        ("The start of the program", measure_help),
    ):
        print(f"measuring: {title} …", file=sys.stderr, flush=True)
        tables.append(table(title, measure()))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    text = f"Measured on {machine}; medians, contenders taking turns.\n\n" + "\n\n".join(tables)
    print(text)
    if options.write:
        page = options.write.read_text("utf-8")
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        options.write.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
