"""Commands: a program that gets an event as JSON on stdin, and its main values as variables."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pointsman.errors import DeliveryFailed
from pointsman.worker import processes
from pointsman.worker.processes import Spawned
from pointsman.world import Sleep

MARK = "POINTSMAN_EVENT_ID"
KEPT_BYTES = 2_000
SHOWN_CHARACTERS = 300
CHUNK = 65_536
GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL, when its time is over."""


async def run(
    argv: Sequence[str],
    body: bytes,
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_seconds: float,
    hidden: Sequence[str],
    sleep: Sleep,
) -> None:
    """Run a command; raises DeliveryFailed unless it ends with 0 in time. `hidden` values are left out of the message."""
    with tempfile.TemporaryFile() as stdin:  # a pipe would wait for a program that does not read
        stdin.write(body)
        stdin.seek(0)
        try:
            spawned = processes.spawn(argv, cwd=cwd, env=env, separate_stderr=False, stdin=stdin.fileno())
        except (OSError, ValueError) as error:
            raise DeliveryFailed(f"{argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}") from None
    output = _Output(spawned.stdout)
    try:
        async with asyncio.timeout(timeout_seconds):
            await processes.wait_for_end(spawned)
    except TimeoutError:
        raise DeliveryFailed(f"{argv[0]} did not end within {timeout_seconds:g} seconds") from None
    finally:
        code = await asyncio.shield(asyncio.create_task(_end(spawned, f"{MARK}={env[MARK]}", sleep)))
        output.close()
    if code != 0:
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        raise DeliveryFailed(f"{argv[0]} {how}{_quote(output.kept, hidden)}")


async def _end(spawned: Spawned, marker: str, sleep: Sleep) -> int | None:
    """End it with all that it has started; its exit code."""
    await processes.end_tree(spawned, marker, GRACE_SECONDS, sleep)
    return processes.reap(spawned)


class _Output:
    """Reads what a command writes, so that it is never blocked, and keeps the end."""

    def __init__(self, descriptor: int) -> None:
        self.kept = b""
        self._descriptor: int | None = descriptor
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> bool:
        """Whether there was anything."""
        assert self._descriptor is not None
        with suppress(OSError):
            data = os.read(self._descriptor, CHUNK)
            self.kept = (self.kept + data)[-KEPT_BYTES:]
            if data:
                return True
            asyncio.get_running_loop().remove_reader(self._descriptor)
        return False

    def close(self) -> None:
        self._read()
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _quote(output: bytes, hidden: Sequence[str]) -> str:
    text = output.decode("utf-8", "replace").replace("\0", "").strip()
    for value in hidden:
        text = text.replace(value, "***")
    return f": {text[-SHOWN_CHARACTERS:]}" if text else ""
