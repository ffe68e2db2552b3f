"""The log of an attempt takes whatever arrives, and never more than its cap."""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.rooms.worker.workshop import make_job, make_python_job, make_shell_job, run

from pointsman.worker.log import TAIL_BYTES, AttemptLog, log_parts, log_path

GIGABYTE = 1_000_000_000
HUGE_OUTPUT = int(os.environ.get("POINTSMAN_TEST_OUTPUT_GIGABYTES", "2")) * GIGABYTE


def read_all(path: Path) -> bytes:
    return b"".join(part.read_bytes() for part in log_parts(path))


def test_what_fits_is_kept_byte_by_byte(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "1.log"), 1000)
    log.write(b"one\n")
    log.write(b"\xff\x00two")
    log.close()
    assert log.path.read_bytes() == b"one\n\xff\x00two"


def test_work_that_says_nothing_leaves_no_file(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "logs" / "1.log"), 1000)
    log.write(b"")
    log.close()
    assert not log.path.parent.exists()
    assert (log.tail(), log.last_line(), log_parts(log.path)) == ("", "", [])


def test_of_too_much_the_beginning_and_the_end_are_kept_and_the_gap_is_counted(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "1.log"), 4000)
    everything = b"".join(b"line %06d\n" % number for number in range(2000))
    for begin in range(0, len(everything), 700):
        log.write(everything[begin : begin + 700])
    log.close()
    head, marker, end = re.split(rb"\n(\[pointsman: the log is full: .*\])\n", read_all(log.path))
    assert everything.startswith(head)
    assert everything.endswith(end)
    left_out = int(re.findall(rb"full: +(\d+) bytes", marker)[0])
    assert len(head) + left_out + len(end) == len(everything)
    assert log.bytes_omitted == left_out
    assert len(head) == 2000
    assert 1000 <= len(end) <= 2000


@given(chunks=st.lists(st.binary(max_size=90), max_size=40), cap=st.integers(1, 300))
def test_no_cap_and_no_chunk_loses_more_than_is_told(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], cap: int
) -> None:
    log = AttemptLog(str(tmp_path_factory.mktemp("log") / "1.log"), cap)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    everything = b"".join(chunks)
    parts = log_parts(log.path)
    kept = sum(part.stat().st_size for part in parts[1:]) + min(len(everything), max(cap // 2, 1))
    assert kept + log.bytes_omitted == len(everything) == log.bytes_seen
    assert log.problem is None


def test_the_tail_is_text_that_any_database_takes(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "1.log"), 1000)
    log.write(b"caf\xc3\xa9 \xff\xfe\x00\n")
    assert log.tail() == "café ���\n"
    log.write("é".encode() * 3000)
    assert log.tail(4095) == "é" * 2047


def test_the_tail_is_bounded_however_much_was_written(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "1.log"), 100_000)
    for _ in range(100):
        log.write(b"x" * 10_000)
    assert len(log._end) <= 2 * TAIL_BYTES
    assert log.tail() == "x" * 4096
    log.close()


def test_the_last_line_is_one_with_something_in_it(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "1.log"), 1000)
    log.write(b"first\n10 %\r20 %\r\n\n")
    assert log.last_line() == "20 %"


def test_a_full_disk_ends_the_log_and_not_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AttemptLog(str(tmp_path / "1.log"), 1000)
    log.write(b"before\n")
    write = os.write

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    log.write(b"lost")
    log.write(b"lost, too")
    monkeypatch.setattr(os, "write", write)
    assert log.problem == f"The log {log.path} stopped: No space left on device. The task continues without it."
    assert log.tail() == "before\nlostlost, too"
    log.write(b"after\n")
    log.close()
    assert log.path.read_text() == f"before\n\n[pointsman: 13 bytes are missing here: {log.problem}]\nafter\n"


def test_a_real_full_disk_is_survived(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no disk that is always full")
    job = replace(make_shell_job(tmp_path, "echo one; echo two"), log=AttemptLog(str(full), 1000))
    assert run(job).as_expected
    assert "No space left on device" in str(job.log.problem)
    assert job.log.tail() == "one\ntwo\n"


def test_a_log_that_nobody_may_write_is_survived(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    log = AttemptLog(str(tmp_path / "logs" / "1.log"), 1000)
    log.write(b"lost")
    log.close()
    assert log.problem


def test_the_path_of_a_log_stays_below_the_project(tmp_path: Path) -> None:
    for name in ("../../etc", "a/b", "..", "", "build [3]", "ü" * 400):
        path = Path(log_path(tmp_path, "run_1", name, 3))
        assert path.resolve().is_relative_to(tmp_path / ".pointsman" / "logs" / "run_1")
        assert path.parent.parent == tmp_path / ".pointsman" / "logs" / "run_1"
        assert path.name == "3.log"


def test_no_two_tasks_share_a_folder(tmp_path: Path) -> None:
    """Not even where capitals make no difference, and not with a name that looks like a folder."""
    names = ["a", "a.", ".a", "A", "a b", "a_b", "a/b", "é", "ü", "", "_", ".", "..", "x" * 120, "x" * 121, "a[0]", "a[1]"]
    names += [Path(log_path(tmp_path, "run_1", name, 1)).parent.name for name in ("a.", "é")]
    folders = {Path(log_path(tmp_path, "run_1", name, 1)).parent.name.lower() for name in names}
    assert len(folders) == len(names)
    assert {"a", "a_b", "a[0]"} <= folders, "plain names are their folders"


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)",
        "import sys; sys.stdout.write('x' * 3_000_000)",
        "import os; [os.write(1, b'\\xff') for _ in range(2000)]",
    ],
    ids=["binary", "a line without end", "invalid UTF-8, byte by byte"],
)
def test_output_of_any_kind_survives(tmp_path: Path, program: str) -> None:
    job = make_python_job(tmp_path, program, cap_bytes=10_000_000)
    assert run(job).as_expected
    assert job.log.path.stat().st_size == job.log.bytes_seen >= 2000
    job.log.tail().encode("utf-8")


def test_output_of_many_gigabytes_neither_fills_the_disk_nor_the_memory(tmp_path: Path) -> None:
    job = make_job(tmp_path, "head", "-c", str(HUGE_OUTPUT), "/dev/zero", cap_bytes=8_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run(job).as_expected
    assert job.log.bytes_seen == HUGE_OUTPUT
    assert sum(part.stat().st_size for part in log_parts(job.log.path)) < 8_100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32_000, "kilobytes"


def test_stdout_that_is_wanted_is_bounded_as_well(tmp_path: Path) -> None:
    job = make_job(tmp_path, "head", "-c", "50000000", "/dev/zero", stdout_wanted=True)
    stdout = run(job).stdout
    assert stdout is not None
    assert len(stdout) == 1_000_001
