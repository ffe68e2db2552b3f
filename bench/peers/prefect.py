"""Prefect: a flow of task runs that start `true`, with a server of its own on this machine and its SQLite database.

The server listens at the loopback address only, keeps its files in a temporary folder and reports nothing to anybody. Tasks go
to a pool of threads, as many as asked for. The clock runs while the flow does; that all are recorded is looked up afterwards.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from bench.peers.conversation import Answer, answer_each, check_done

PATIENCE_SECONDS = 120.0


@contextmanager
def served() -> Iterator[None]:
    """Its settings are read when it is imported, so they are made before."""
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-prefect-", ignore_cleanup_errors=True) as home:
        port = free_port()
        os.environ |= {
            "PREFECT_HOME": home,
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_LEVEL": "ERROR",
            "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
            "PREFECT_CLI_COLORS": "false",
        }
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(f"http://127.0.0.1:{port}/api/health", server)
            yield
        finally:
            server.terminate()
            server.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("The server of Prefect did not come up.")


def versions() -> Answer:
    return {"Prefect": importlib.metadata.version("prefect")}


def run_flow(count: int, slots: int) -> Answer:
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    @task
    def spawn(_: int) -> None:
        subprocess.run(["true"], check=True, stdin=subprocess.DEVNULL, capture_output=True)

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=slots))
    def many() -> None:
        spawn.map(range(count)).result()

    before = asyncio.run(count_recorded())
    began = time.perf_counter()
    many()
    seconds = time.perf_counter() - began
    check_done(asyncio.run(wait_until_recorded(before + count)) - before, count)
    return {"tasks": count, "seconds": seconds}


async def wait_until_recorded(count: int) -> int:
    """The server is told of the ends of tasks by events, which may come in a little later."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (recorded := await count_recorded()) < count and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.2)  # it happens in another process
    return recorded


async def count_recorded() -> int:
    from prefect import get_client
    from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterState, TaskRunFilterStateType
    from prefect.client.schemas.objects import StateType

    done = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.COMPLETED])))
    async with get_client() as client:
        response = await client._client.post("/task_runs/count", json={"task_runs": done.model_dump(mode="json")})  # noqa: SLF001
        return int(response.json())


def main() -> None:
    with served():
        answer_each({"versions": versions, "run_flow": run_flow})


if __name__ == "__main__":
    main()
