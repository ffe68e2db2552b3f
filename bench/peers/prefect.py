"""Prefect: a flow of task runs that start `true`, with a server of its own on this machine and its SQLite database.

The server listens at the loopback address only, keeps its files in a temporary folder and reports nothing to anybody. Tasks go
to a pool of threads, as many as asked for.

There are two ends. Task runs tell the server of their states by events, which are sent and written down behind them: when the
flow returns, most of its task runs are not in the database yet, and would be lost with the machine. So both are measured: until
the flow returns, and until the server has recorded that all have completed.
"""

from __future__ import annotations

import importlib.metadata
import json
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

PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.5


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

    before = count_recorded()
    began = time.perf_counter()
    many()
    returned_seconds = time.perf_counter() - began
    recorded_by_then = count_recorded() - before
    wait_until_recorded(before + count)
    recorded_seconds = time.perf_counter() - began
    check_done(count_recorded() - before, count)
    return {
        "tasks": count,
        "seconds": recorded_seconds,
        "returned_seconds": returned_seconds,
        "recorded_by_then": recorded_by_then,
    }


def wait_until_recorded(count: int) -> None:
    """It is asked seldom, so that asking does not keep it from recording."""
    until = time.monotonic() + PATIENCE_SECONDS
    while count_recorded() < count and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def count_recorded() -> int:
    """How many task runs the server knows to have completed."""
    body = json.dumps({"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}).encode()
    url = f"{os.environ['PREFECT_API_URL']}/task_runs/count"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return int(response.read())


def main() -> None:
    with served():
        answer_each({"versions": versions, "run_flow": run_flow})


if __name__ == "__main__":
    main()
