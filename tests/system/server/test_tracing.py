"""Traces: one from the request that submits a run to the process of each attempt, over server and worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each_row
from tests.system.server.collector import collect
from tests.system.server.harness import PATIENCE_SECONDS, Client, start

from pointsman.tracing import read_traceparent

FLOW = """\
name: traced
tasks:
  a: {run: 'echo {\\"seen\\": \\"$TRACEPARENT\\"} > $POINTSMAN_OUTPUT'}
  b: {run: exit 3, needs: [a]}
"""
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = f"00-{TRACE}-{CALLER}-01"


def outputs(client: Client, run_id: str) -> dict[str, Any]:
    tasks = client.get(f"/api/v1/runs/{run_id}/tasks").json["items"]
    return {task["name"]: task["output"] for task in tasks}


def test_attempts_belong_to_the_trace_of_the_request(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collect() as collector:
        for name, value in collector.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "points")
        folders = [tmp_path / name for name in ("server", "worker")]
        for folder in folders:
            folder.mkdir()
        with start("serve", folders[0], database_url) as (client, _), start("up", folders[1], database_url):
            created = client.post("/runs", {"flow": FLOW}, traceparent=SENT)
            run_id = created.json["id"]
            client.until(f"/runs/{run_id}", lambda run: run["status"] == "FAILED")
            request = collector.find("POST /runs")
            first = collector.find("attempt", run_id=run_id, task_name="a")
            second = collector.find("attempt", run_id=run_id, task_name="b")
            assert {span.trace_id for span in (request, first, second)} == {TRACE}
            assert request.parent_id == CALLER
            assert {first.parent_id, second.parent_id} == {request.span_id}
            assert outputs(client, run_id)["a"] == {"seen": f"00-{TRACE}-{first.span_id}-01"}
            assert (request.attributes["http.route"], request.attributes["http.response.status_code"]) == ("/runs", 201)
            assert (first.attributes["pointsman.verdict"], first.is_error) == ("completed", False)
            assert (second.attributes["pointsman.verdict"], second.is_error) == ("failed", True)
            assert (request.service, first.service) == ("points", "points")
            assert client.get("/runs", traceparent="00-nonsense").status == 200
            own = collector.find("GET /runs")
            assert (own.parent_id, own.trace_id != TRACE) == ("", True)


def test_a_server_without_opentelemetry_passes_the_trace_on(tmp_path: Path, sqlite_url: str) -> None:
    with start("up", tmp_path, sqlite_url) as (client, _):
        run_id = client.post("/runs", {"flow": FLOW}, traceparent=SENT).json["id"]
        client.until(f"/runs/{run_id}", lambda run: run["status"] == "FAILED")
        assert outputs(client, run_id)["a"] == {"seen": SENT}
        bare = client.post("/runs", {"flow": FLOW}, traceparent=SENT.upper()).json["id"]
        client.until(f"/runs/{bare}", lambda run: run["status"] == "FAILED")
        assert outputs(client, bare)["a"] == {"seen": ""}


@each_row(
    "text",
    [
        *(None, "", "00", SENT.upper(), f"{SENT} ", f"{SENT}-x", SENT.replace("00-", "ff-", 1), SENT.replace(TRACE, "0" * 32)),
        *(SENT.replace(CALLER, "0" * 16), f"00-{TRACE}-{CALLER}-1", f"{SENT}\n"),
    ],
)
def test_what_is_no_traceparent_is_ignored(text: str | None) -> None:
    assert read_traceparent(SENT) == SENT
    assert read_traceparent(text) is None


def run_flow(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`pointsman run`, and which packages of OpenTelemetry it has imported."""
    (folder / "flow.yaml").write_text(FLOW.replace("exit 3", "true"))
    code = (
        "import atexit, sys; from pointsman.cli import main\n"
        "atexit.register(lambda: print([name for name in sys.modules if name.startswith('opentelemetry')]))\n"
        "sys.exit(main(['run', 'flow.yaml', '--json']))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "POINTSMAN_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**env, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 3,
        check=False,
    )


def test_the_command_line_begins_a_trace_or_continues_one(tmp_path: Path) -> None:
    with collect() as collector:
        said = run_flow(tmp_path, TRACEPARENT=SENT, **collector.environ)
        assert said.returncode == 0, said
        submitted = collector.find("submit run")
        attempt = collector.find("attempt", task_name="a")
        assert (submitted.trace_id, submitted.parent_id, submitted.service) == (TRACE, CALLER, "pointsman")
        assert (attempt.trace_id, attempt.parent_id) == (TRACE, submitted.span_id)


def test_nothing_is_imported_or_sent_unless_a_variable_asks_for_it(tmp_path: Path) -> None:
    for environ in ({}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}):
        said = run_flow(tmp_path, **environ)
        assert said.returncode == 0, said
        assert json.loads(said.stdout.splitlines()[-1]) == [], said
    strange = run_flow(tmp_path, OTEL_TRACES_EXPORTER="zipkin")
    assert (strange.returncode, "only 'otlp' is supported" in strange.stderr) == (0, True), strange
