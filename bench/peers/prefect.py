"""Prefect: a program of its own that runs a flow of task runs, with a server on this machine and its SQLite database.

The server listens at the loopback address only, keeps its files in a temporary folder and reports nothing to anybody. It is
there only while it is measured, and started before the clock is.

There are two ends. Task runs tell the server of their states by events, which are sent and written down behind them: when the
program exits, some of its task runs may not be in the database yet, and would be lost with the machine. So both are measured:
until the program exits, and until the server has recorded that all have completed.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.conversation import Answer, answer_each, check_done

PROGRAM = Path(__file__).with_name("prefect_flow.py")
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.5
RECORDER = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER"


def environment(home: str, recorded_at_once: int | None) -> dict[str, str]:
    """By default its server records one state of a task run after the other; it can be told to take more at once."""
    settings = {
        "PREFECT_HOME": home,
        "PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        "PREFECT_CLI_COLORS": "false",
    }
    if recorded_at_once is not None:
        batch = str(recorded_at_once)
        settings |= {f"{RECORDER}_BATCH_SIZE": batch, f"{RECORDER}_READ_BATCH_SIZE": batch, f"{RECORDER}_FLUSH_INTERVAL": "1"}
    # Modules are compiled once, as those of installed programs are.
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | settings


@contextmanager
def served(env: Mapping[str, str], python: str = sys.executable) -> Iterator[None]:
    url = env["PREFECT_API_URL"]
    port = url.removesuffix("/api").rpartition(":")[2]
    command = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", port]
    # Not from here: our own module has its name.
    server = subprocess.Popen(command, cwd=env["PREFECT_HOME"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"{url}/health", server)
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


def run_flow(count: int, slots: int, recorded_at_once: int | None) -> Answer:
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-prefect-", ignore_cleanup_errors=True) as home:
        env = environment(home, recorded_at_once)
        with served(env):
            began = time.perf_counter()
            program = [sys.executable, "-P", str(PROGRAM), str(count), str(slots)]
            subprocess.run(program, check=True, env=env, stdout=subprocess.DEVNULL)
            exited_seconds = time.perf_counter() - began
            recorded_by_then = count_recorded(env)
            wait_until_recorded(env, count)
            recorded_seconds = time.perf_counter() - began
            check_done(count_recorded(env), count)
    return {
        "tasks": count,
        "seconds": recorded_seconds,
        "exited_seconds": exited_seconds,
        "recorded_by_then": recorded_by_then,
    }


def wait_until_recorded(env: Mapping[str, str], count: int) -> None:
    """It is asked seldom, so that asking does not keep it from recording."""
    until = time.monotonic() + PATIENCE_SECONDS
    while count_recorded(env) < count and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def count_recorded(env: Mapping[str, str]) -> int:
    """How many task runs the server knows to have completed."""
    body = json.dumps({"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}).encode()
    request = urllib.request.Request(f"{env['PREFECT_API_URL']}/task_runs/count", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return int(response.read())


def main() -> None:
    answer_each({"versions": versions, "run_flow": run_flow})


if __name__ == "__main__":
    main()
