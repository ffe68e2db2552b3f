"""Logs that have outgrown their limit and were rotated: read as one, and followed without a gap or a repetition."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from pointsman.artifacts import ArtifactLimits
from pointsman.server.logs import Follower, Logs, Snapshot
from pointsman.worker.log import AttemptLog, log_parts, name_part

CAP = 400


def make_logs(folder: Path) -> tuple[Logs, Path]:
    path = folder / "1.log"
    return Logs(folder, folder, lambda *_: path, log_parts, name_part, 1 << 20, ArtifactLimits(10, 1_000)), path


async def test_a_range_goes_across_the_files_of_a_rotated_log(tmp_path: Path) -> None:
    logs, path = make_logs(tmp_path)
    log = AttemptLog(str(path), CAP)
    for number in range(100):
        log.write(f"line {number}\n".encode())
    log.close()
    assert len(log_parts(path)) == 3
    whole = b"".join(part.read_bytes() for part in log_parts(path))
    for first, end in ((0, len(whole)), (3, len(whole) - 3), (190, 320), (250, 251), (350, 352)):
        snapshot = Snapshot.open(logs, path)
        assert snapshot.total == len(whole)
        assert b"".join([block async for block in snapshot.read(first, end)]) == whole[first:end]
        assert all(file.closed for file in snapshot.files)


async def test_a_follower_of_a_log_that_rotates_gets_every_line_once(tmp_path: Path) -> None:
    logs, path = make_logs(tmp_path)
    log = AttemptLog(str(path), CAP)
    lines = iter(f"line {number}\n".encode() for number in range(200))

    async def write_on() -> bool:
        """It ends when all is written; a rotation comes every ten lines or so."""
        if (line := next(lines, None)) is None:
            log.close()
            return True
        log.write(line)
        return False

    follower = Follower(logs, path, pause_seconds=0)
    got = b"".join([block async for block in follower.follow(write_on, asyncio.Event())])
    without_notice, notices = re.subn(rb"\n\[pointsman: .*\]\n", b"", got)
    assert notices == 1
    assert without_notice == b"".join(f"line {number}\n".encode() for number in range(200))
