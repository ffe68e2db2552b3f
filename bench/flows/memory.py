"""What a worker needs while its children say nothing."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path

from bench.flows.scene import POINTSMAN, many_tasks, new_project, quiet_environment, tell
from bench.report import Row, Table, Target

CHILDREN = 100
SLEEP = '["sleep", "3"]'


def measure() -> list[Table]:
    tell(f"the memory of a worker with {CHILDREN} quiet children")
    megabytes, most = watch_memory()
    assert most >= CHILDREN, f"Only {most} of {CHILDREN} children ran at once."
    target = Target(150, at_most=True, unit=" MB")
    what = f"`pointsman run -j {CHILDREN}` with {CHILDREN} × `sleep`"
    row = Row(what, f"{megabytes:.0f} MB peak", (megabytes,), target=target, met=target.is_met_by(megabytes), note="VmHWM")
    return [Table("Memory of a worker", [row])]


def watch_memory() -> tuple[float, int]:
    """The peak of the process while it lives, and how many children it had at most."""
    megabytes, most = 0.0, 0
    with new_project(many_tasks(CHILDREN, SLEEP)) as folder:
        process = subprocess.Popen(
            [POINTSMAN, "run", "flow.yaml", "-j", str(CHILDREN)],
            cwd=folder,
            env=quiet_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            with suppress(OSError, StopIteration):
                megabytes = max(megabytes, read_peak(process.pid))
                most = max(most, count_children(process.pid))
            time.sleep(0.02)
        assert process.returncode == 0, f"The run ended with exit code {process.returncode}."
    return megabytes, most


def read_peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024


def count_children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split())
