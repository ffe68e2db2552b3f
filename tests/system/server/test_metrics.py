"""/metrics, over HTTP: what is counted, for whom, and by several servers on one database."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.system.server.harness import PATIENCE_SECONDS, Client, start, until
from tests.system.server.test_keys import create_keys, with_key

from pointsman.server.families import BREAKER_STATE, FAMILIES, STATE_SECONDS
from pointsman.store.rows import SECONDS_BOUNDS

FLOW = "name: counted\ntasks: {a: {run: 'true'}, b: {run: 'exit 3', needs: [a]}}"
DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "pointsman.json"
SUFFIXES = ("_bucket", "_count", "_sum")


def scrape(client: Client) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """The values by name and labels."""
    answer = client.get("/metrics")
    assert answer.status == 200, answer
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(answer.text.decode()):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            assert frozenset(sample.labels.items()) not in series
            series[frozenset(sample.labels.items())] = sample.value
    return found


def total(client: Client, name: str, **labels: str) -> float:
    """The sum of all series that have these labels."""
    return sum(value for each, value in scrape(client).get(name, {}).items() if labels.items() <= dict(each).items())


def run_flow(client: Client) -> None:
    run = client.post("/runs", {"flow": FLOW}).json["id"]
    client.until(f"/runs/{run}", lambda run: run["status"] == "FAILED")


def test_transitions_times_and_claims_are_counted_from_the_audit_trail(tmp_path: Path, database_url: str) -> None:
    with start("up", tmp_path, database_url) as (client, _):
        task = {"machine": "standard.task"}
        run_flow(client)
        assert total(client, "pointsman_transitions_total", **task, from_state="RUNNING", to_state="SUCCEEDED") == 1
        assert total(client, "pointsman_claims_total", **task) == 2
        assert total(client, "pointsman_state_seconds_count", **task, state="RUNNING") == 2
        assert total(client, "pointsman_state_seconds_bucket", **task, state="RUNNING", le="+Inf") == 2
        run_flow(client)
        assert total(client, "pointsman_claims_total", **task) == 4, "only what is new is added"
        assert total(client, "pointsman_state_seconds_sum", **task, state="RUNNING") > 0
        assert {dict(each)["le"] for each in scrape(client)["pointsman_state_seconds_bucket"]} == {
            *(str(float(bound)) for bound in SECONDS_BOUNDS),
            "+Inf",
        }


def test_refusals_and_idempotency_keys_are_counted_by_the_process(client: Client) -> None:
    refused = {"operation": "signal_run", "reason": "transition-refused"}
    run = client.post("/runs", {"flow": FLOW}).json["id"]
    client.until(f"/runs/{run}", lambda run: run["status"] == "FAILED")
    names = ("pointsman_operations_refused_total", "pointsman_idempotency_requests_total")
    hits, misses = (total(client, names[1], result=each) for each in ("hit", "miss"))
    before = total(client, names[0], **refused)
    assert client.post(f"/runs/{run}/cancel").status == 409
    assert total(client, names[0], **refused) == before + 1
    answers = [client.post("/api/jobs", {"task_description": "x"}, idempotency_key=f"metrics-{run}") for _ in range(3)]
    assert len({answer.text for answer in answers}) == 1
    assert (total(client, names[1], result="hit"), total(client, names[1], result="miss")) == (hits + 2, misses + 1)
    assert client.post("/api/jobs", {"task_description": "y"}, idempotency_key=f"metrics-{run}").problem == "key-reused"
    assert (total(client, names[1], result="hit"), total(client, names[1], result="miss")) == (hits + 2, misses + 1)


def test_queues_workers_breakers_batches_and_duties_are_shown(client: Client) -> None:
    depth = total(client, "pointsman_queue_tasks", tenant="default")
    body = {"name": "waits", "tasks": [{"name": name, "capabilities": ["nowhere"]} for name in "ab"]}
    run = client.post("/api/v1/runs", body).json["id"]
    assert total(client, "pointsman_queue_tasks", tenant="default") == depth + 2
    assert total(client, "pointsman_queue_oldest_seconds", tenant="default") >= 0
    client.post(f"/api/v1/runs/{run}/signals", {"signal": "cancel"})
    assert total(client, "pointsman_queue_tasks", tenant="default") == depth
    assert total(client, "pointsman_worker_slots") >= 4
    assert total(client, "pointsman_workers") >= 1
    client.call("PUT", "/api/v1/breakers/counted-tool", {})
    client.post("/api/v1/breakers/counted-tool/trip", {"reason": "trial"})
    state = client.get("/api/v1/breakers/counted-tool").json["state"]
    assert total(client, BREAKER_STATE.name, tool="counted-tool", state=state) == 1
    assert total(client, BREAKER_STATE.name, tool="counted-tool") == 1
    assert total(client, "pointsman_batch_operations_sum") >= total(client, "pointsman_batch_operations_count") > 0
    until(lambda: total(client, "pointsman_duty_runs_total", result="success"))


def test_busy_slots_are_counted_while_a_task_runs(client: Client) -> None:
    flow = "name: busy\ntasks: {a: {run: 'until test -e go; do sleep 0.02; done', timeout: 60}}"
    run = client.post("/runs", {"flow": flow}).json["id"]
    until(lambda: total(client, "pointsman_worker_slots_busy") >= 1)
    client.post(f"/runs/{run}/cancel")
    until(lambda: total(client, "pointsman_worker_slots_busy") == 0)


def test_the_costs_of_tenants_are_totals(client: Client) -> None:
    before = total(client, "pointsman_cost_usd_total", tenant="default")
    flow = {"name": "costs", "tasks": {"a": {"run": 'echo 0.25 >> "$POINTSMAN_COST"'}}}
    run = client.post("/runs", {"flow": json.dumps(flow)}).json["id"]
    client.until(f"/runs/{run}", lambda run: run["status"] == "SUCCEEDED")
    assert round(total(client, "pointsman_cost_usd_total", tenant="default") - before, 6) == 0.25
    assert total(client, "pointsman_tokens_total", tenant="default", direction="in") == 0


def test_every_declared_metric_is_exported_and_no_other_one(client: Client) -> None:
    text = client.get("/metrics").text.decode()
    exported = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert exported == {family.name: family.kind for family in FAMILIES}
    labels = {family.name: set(family.labels) for family in FAMILIES}
    for name, series in scrape(client).items():
        family = name if name in labels else re.sub(f"({'|'.join(SUFFIXES)})$", "", name)
        for each in series:
            assert set(dict(each)) - {"le"} == labels[family]


def test_promtool_finds_nothing_wrong(client: Client) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed. Debian has it in the package prometheus.")
    run_flow(client)
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=client.get("/metrics").text, capture_output=True, check=False, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def find_queries(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from find_queries(value)
    elif isinstance(part, list):
        for each in part:
            yield from find_queries(each)


def test_the_dashboard_asks_for_metrics_and_labels_that_exist_and_shows_every_one() -> None:
    declared = {
        name: {*family.labels, *(["le"] if name.endswith("_bucket") else [])}
        for family in FAMILIES
        for name in ([family.name + suffix for suffix in SUFFIXES] if family.kind == "histogram" else [family.name])
    }
    asked = set()
    for query in find_queries(json.loads(DASHBOARD.read_text())):
        names = set(re.findall(r"\bpointsman_\w+", query))
        assert names <= declared.keys(), query
        used = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
        used |= set(re.findall(r"(\w+)=~?\"", query))
        assert used <= set.union(set(), *(declared[name] for name in names)), query
        asked |= names
    shown = {family.name for family in FAMILIES if asked & {family.name, *(family.name + suffix for suffix in SUFFIXES)}}
    assert shown == {family.name for family in FAMILIES}
    assert STATE_SECONDS.name + "_bucket" in asked


def test_servers_on_one_database_report_the_same_totals_and_a_new_one_starts_where_they_are(
    tmp_path: Path, database_url: str
) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    created = {"name": "pointsman_transitions_total", "machine": "standard.run", "from_state": ""}
    with start("serve", folders[0], database_url) as (first, process):
        for _ in range(3):
            assert first.post("/api/v1/runs", {"name": "r", "tasks": [{"name": "a"}]}).status == 201
        with start("serve", folders[1], database_url) as (second, _):
            assert second.post("/api/v1/runs", {"name": "r", "tasks": [{"name": "a"}]}).status == 201
            shared = [family.name for family in FAMILIES if not family.is_of_process and "seconds" not in family.name]
            one, other = scrape(first), scrape(second)
            assert {name: one.get(name) for name in shared} == {name: other.get(name) for name in shared}
            assert total(second, **created) == 4
            processes = {dict(each)["process"] for part in (one, other) for each in part["pointsman_batch_seconds_count"]}
            assert len(processes) == 2
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
            second.post("/api/v1/runs", {"name": "r", "tasks": [{"name": "a"}]})
            assert total(second, **created) == 5
    with start("serve", folders[0], database_url) as (again, _):
        assert total(again, **created) == 5


def test_a_tenant_sees_its_own_figures_alone_and_the_operator_sees_all(tmp_path: Path, database_url: str) -> None:
    operator, ada, bob, blind = create_keys(
        database_url,
        [
            ("default", "prometheus", ("read",)),
            ("acme", "ada", ("read", "submit")),
            ("globex", "bob", ("read", "submit")),
            ("default", "blind", ("submit", "admin")),
        ],
    )
    with start("serve", tmp_path, database_url) as (client, _):
        assert client.get("/metrics").problem == "unauthenticated"
        assert with_key(client, blind).get("/metrics").problem == "forbidden"
        for text, runs in ((ada, 2), (bob, 3)):
            for _ in range(runs):
                created = with_key(client, text).post("/api/v1/runs", {"name": "r", "tasks": [{"name": "a"}]})
                assert created.status == 201
        made = {"machine": "standard.run", "from_state": ""}
        for text, expected in ((operator, 5), (ada, 2), (bob, 3)):
            assert total(with_key(client, text), "pointsman_transitions_total", **made) == expected
        seen = with_key(client, bob).get("/metrics").text
        assert b"globex" in seen
        assert b"acme" not in seen
        assert b"process=" not in seen
        assert {dict(each)["tenant"] for each in scrape(with_key(client, operator))["pointsman_queue_tasks"]} >= {
            "acme",
            "globex",
        }
