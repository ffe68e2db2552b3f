"""The process of the server: how long it takes to be ready, and what it takes while nothing happens."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.databases import Database
from bench.flows.scene import tell
from bench.report import Row, Table, Target
from bench.serving.scale import Scale
from bench.serving.served import served

READY = Target(2.0, at_most=True, unit=" s")
MEMORY = Target(100, at_most=True, unit=" MB")
PROCESSOR = Target(1.0, at_most=True, unit="%")
SETTLING_SECONDS = 3.0
"""What a start leaves behind: duties that look around for the first time."""


def measure(databases: Sequence[Database], scale: Scale) -> list[Table]:
    rows = []
    for database in databases:
        tell(f"start and idle: {database.name}")
        url = database.new("pointsman_process")
        seconds = [_measure_start(url) for _ in range(scale.starts + 1)][1:]  # the first one makes the database
        middle = statistics.median(seconds)
        figure = f"{middle:.2f} s ({min(seconds):.2f}–{max(seconds):.2f})"
        what = f"`pointsman serve`, {database.name}"
        rows.append(Row(f"{what}: from its start to ready", figure, tuple(seconds), target=READY, met=READY.is_met_by(middle)))
        megabytes, percent = _measure_idle(url, scale.idle_seconds)
        rows.append(
            Row(f"{what}: memory, idle", f"{megabytes:.0f} MB", (megabytes,), None, MEMORY, MEMORY.is_met_by(megabytes))
        )
        idle = f"{percent:.2f}% of a core"
        rows.append(Row(f"{what}: processor, idle", idle, (percent,), None, PROCESSOR, PROCESSOR.is_met_by(percent)))
    return [Table("The process of the server", rows)]


def _measure_start(url: str) -> float:
    with served(url) as server:
        return server.ready_seconds


def _measure_idle(url: str, seconds: float) -> tuple[float, float]:
    """Megabytes in memory, and the percentage of one core."""
    with served(url) as server:
        time.sleep(SETTLING_SECONDS)
        before = read_processor_seconds(server.pid)
        time.sleep(seconds)
        percent = (read_processor_seconds(server.pid) - before) / seconds * 100
        return read_memory(server.pid) / 1e6, percent


def read_memory(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGESIZE")


def read_processor_seconds(pid: int) -> float:
    """User and system time of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
