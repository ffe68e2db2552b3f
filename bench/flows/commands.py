"""Many small commands: whole programs from their start to their exit, everybody taking turns."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.contenders import Answer, Contender, Entry, Pace, take_turns
from bench.flows.scene import Scale, many_tasks, new_project, one_fan_out, run_flow, tell
from bench.report import Row, Table, Target, ratio_of

SLOTS = 2
SPAWN = Path(__file__).with_name("spawn.py")
OWN, FAN_OUT, PARALLEL, BARE = "`pointsman run`, a flow of so many tasks", "`pointsman run`, one `foreach`", "parallel", "bare"
PREFECT, PREFECT_TUNED = "Prefect", "Prefect, tuned"
RECORDED_AT_ONCE = 100
"""How many states the server of the tuned one records at once; by default it is one."""


def measure(scale: Scale, prefect_python: str | None, versions: dict[str, str]) -> list[Table]:
    count = scale.tasks
    entries = [
        Entry(OWN, lambda count: timed_flow(many_tasks(count), count), fixed=count),
        Entry(FAN_OUT, lambda count: timed_flow(one_fan_out(count), count), fixed=count),
        Entry(BARE, timed_spawns, fixed=count),
    ]
    if parallel := shutil.which("parallel"):
        versions["GNU parallel"] = version_of(parallel)
        entries.append(Entry(PARALLEL, timed_parallel, fixed=count))
    else:
        print("GNU parallel is not installed (apt-get install parallel): its row is left out.", file=sys.stderr)
    prefect = Contender("bench.peers.prefect", python=prefect_python) if prefect_python else None
    try:
        if prefect:
            versions.update(prefect.ask("versions"))
            entries.append(Entry(PREFECT, ask_prefect(prefect, None), fixed=count))
            entries.append(Entry(PREFECT_TUNED, ask_prefect(prefect, RECORDED_AT_ONCE), fixed=count))
        answers = take_turns(entries, Pace(scale.rounds, seconds=0, most=0), tell)
    finally:
        if prefect:
            prefect.close()
    title = f"{count:,} × `true`, {SLOTS} at a time, from the start of the program to its exit"
    return [Table(title, list(rows_of(answers, count)))]


def rows_of(answers: dict[str, list[Answer]], count: int) -> list[Row]:
    own, fan_out, bare = (seconds_of(answers[name]) for name in (OWN, FAN_OUT, BARE))
    rows = [
        seconds_row("bare spawn by two threads in Python, nothing kept", bare),
        seconds_row(OWN, own, note=overhead(own, bare, count)),
        seconds_row(FAN_OUT, fan_out, note=overhead(fan_out, bare, count)),
    ]
    if PARALLEL in answers:
        target = Target(1.5, at_most=True)
        for what, seconds in ((OWN, own), (FAN_OUT, fan_out)):
            name = "GNU parallel, `--joblog`" if what is OWN else "the same, against one `foreach`"
            others = seconds_of(answers[PARALLEL])
            ratio = ratio_of(seconds, others)
            note = "how many times as long Pointsman took; its log is written, but not synced to the disk"
            rows.append(seconds_row(name, others, ratio=ratio, target=target, note=note if what is OWN else ""))
    if PREFECT in answers:
        rows += rows_of_prefect(answers[PREFECT], answers[PREFECT_TUNED], own)
    return rows


def rows_of_prefect(answers: Sequence[Answer], tuned: Sequence[Answer], own: Sequence[float]) -> list[Row]:
    """Until all is recorded, which is when Pointsman exits; and until its program exits, when some of it may not be."""
    recorded, recorded_tuned = seconds_of(answers), seconds_of(tuned)
    exited = [answer["exited_seconds"] for answer in answers]
    by_then = round(statistics.median(answer["recorded_by_then"] for answer in answers))
    note = "how many times as long it took; default settings, a local server whose start is not counted"
    return [
        seconds_row(
            "Prefect, 2 threads, until all are recorded", recorded, ratio=ratio_of(recorded, own), target=Target(10), note=note
        ),
        seconds_row(
            "the same, until its program exits",
            exited,
            ratio=ratio_of(exited, own),
            note=f"{by_then:,} of {answers[0]['tasks']:,} are recorded by then",
        ),
        seconds_row(
            f"Prefect whose server records {RECORDED_AT_ONCE} states at once, until all are recorded",
            recorded_tuned,
            ratio=ratio_of(recorded_tuned, own),
            note="not its default",
        ),
    ]


def seconds_row(
    what: str, seconds: Sequence[float], *, ratio: float | None = None, target: Target | None = None, note: str = ""
) -> Row:
    met = None if target is None or ratio is None else target.is_met_by(ratio)
    middle = statistics.median(seconds)
    figure = f"{middle:.2f} s ({min(seconds):.2f}–{max(seconds):.2f})"
    return Row(what, figure, tuple(seconds), ratio, target, met, note)


def overhead(own: Sequence[float], bare: Sequence[float], count: int) -> str:
    each = statistics.median((one - another) / count for one, another in zip(own, bare, strict=True))
    return f"{each * 1e3:.2f} ms a task more than the bare spawn, the start of the program included"


def seconds_of(answers: Sequence[Answer]) -> list[float]:
    return [answer["seconds"] for answer in answers]


def timed(count: int, work: Callable[[], object]) -> Answer:
    began = time.perf_counter()
    work()
    return {"tasks": count, "seconds": time.perf_counter() - began}


def timed_flow(flow: str, count: int) -> Answer:
    with new_project(flow) as folder:
        return timed(count, lambda: run_flow(folder, SLOTS))


def timed_spawns(count: int) -> Answer:
    command = [sys.executable, str(SPAWN), str(count), str(SLOTS), "true"]
    return timed(count, lambda: subprocess.run(command, check=True))


def timed_parallel(count: int) -> Answer:
    """`true` is told the number of its job, which it does not mind."""
    numbers = "\n".join(map(str, range(count)))
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-") as folder:
        log = Path(folder, "jobs.log")
        command = ["parallel", "--will-cite", "--joblog", str(log), "-j", str(SLOTS), "true"]
        answer = timed(count, lambda: subprocess.run(command, check=True, input=numbers, text=True, capture_output=True))
        done = len(log.read_text("utf-8").splitlines()) - 1
        assert done == count, f"{done} of {count} jobs are in the log of GNU parallel."
    return answer


def version_of(parallel: str) -> str:
    first, *_ = subprocess.run([parallel, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()
    return first.removeprefix("GNU parallel ")


def ask_prefect(prefect: Contender, recorded_at_once: int | None) -> Callable[[int], Answer]:
    return lambda count: prefect.ask("run_flow", count=count, slots=SLOTS, recorded_at_once=recorded_at_once)
