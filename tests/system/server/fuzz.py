"""Fuzzing: schemathesis reads the OpenAPI document of a real server and sends what it allows, and what it does not.

    python -m tests.system.server.fuzz --cases 100 --seed 7

Every answer must have a status, a media type, headers and a body that the document has for its route, and no answer may be
an error of the server. Half of the requests name things that exist. Nothing is executed: the server has no worker.

schemathesis has an environment of its own, because its plugin for pytest would change all other tests.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests import databases
from tests.system.server.harness import Client, start
from tests.system.server.test_keys import EVERY, create_keys, with_key

from pointsman.server.routes import ALL

ROOT = Path(__file__).parents[3]
OF_ATTEMPTS = "/attempts/"
"""Routes that need an attempt: in a pass of their own, before other requests end it."""
SCHEMATHESIS = ROOT / ".venv-fuzz" / "bin" / "schemathesis"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
FLOW = "name: fuzzed\nlifecycle: approval\ntasks: {a: {run: 'true'}, b: {approval: {prompt: Go?}}}"


def create_things(client: Client) -> dict[str, str]:
    """One of each thing that a path can name, by the name of the parameter."""
    run = client.post("/runs", {"flow": FLOW}).json["id"]
    made = {
        "run_id": run,
        "entity_id": run,
        "job_id": client.post("/api/jobs", {"task_description": "x"}).json["id"],
        "task_id": client.post("/api/tasks", {"name": "t", "task": {"run": "true"}}).json["id"],
        "worker_id": client.post("/api/workers", {"workspace_id": "w"}).json["id"],
        "tool": client.call("PUT", "/api/v1/breakers/a-tool", {}).json["name"],
        "tenant": "fuzzed",
        "name": "standard.run",  # of a machine, and of a template
        "key_id": client.post("/api/v1/keys", {"name": "spare", "scopes": ["read"]}).json["key"]["id"],
    }
    assert all(made.values()), made
    assert client.call("PUT", f"/api/v1/templates/{made['name']}", {"text": FLOW}).status == 200
    return made


def create_attempt(client: Client) -> dict[str, str]:
    """An attempt that goes on, with a log and an artifact, by the names of the parameters of its paths."""
    worker = client.post("/api/v1/workers", {"name": "w", "capabilities": ["fuzzed"], "lease_seconds": 86_400}).json["id"]
    client.post("/api/v1/runs", {"name": "r", "tasks": [{"name": "t", "capabilities": ["fuzzed"]}]})
    (claim,) = client.post(f"/api/v1/workers/{worker}/claims", {}).json["items"]
    path = f"/api/v1/tasks/{claim['task_id']}/attempts/{claim['epoch']}"
    for each, more in (("log", {}), ("artifact", {"name": "a.txt"})):
        assert client.post(f"{path}/{each}", {"offset": 0, "data": "YQ==", **more}).json["size"] == 1
    return {"task_id": claim["task_id"], "attempt": str(claim["epoch"])}


def fuzz(
    client: Client, folder: Path, named: Mapping[str, str], *, phases: str, cases: int, seed: int, only: str = ""
) -> subprocess.CompletedProcess[str]:
    """One pass over all routes, or `only` those whose path fits; `named` are values of parameters of paths."""
    config = folder / "schemathesis.toml"
    lines = [f'"path.{name}" = "{value}"' for name, value in named.items()]
    lines.append('"query.follow" = false')  # a log that is followed lasts as long as its attempt
    config.write_text("\n".join(["[parameters]", *lines]) + "\n")
    key = client.headers["Authorization"]
    return subprocess.run(
        [
            str(SCHEMATHESIS),
            *("--config-file", str(config), "run", f"{client.url}/openapi.json", "--header", f"Authorization: {key}"),
            *("--phases", phases, "--max-examples", str(cases), "--seed", str(seed), "--checks", ",".join(CHECKS)),
            *("--request-timeout", "20", "--continue-on-failure", "--warnings", "off", "--no-color"),
            *("--generation-database", "none"),
            *(("--include-path-regex", only) if only else ()),
            *(word for route in ALL if route.streams or route.waits for word in ("--exclude-path", route.path)),  # they last
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> int:
    reader = argparse.ArgumentParser(description="Fuzz the server on both databases.")
    reader.add_argument("--cases", type=int, default=50, help="most cases for each route, pass and database")
    reader.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    asked = reader.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name, databases.postgres_database(registered=True) as postgres_url:
        for url in (databases.registered_sqlite_url(Path(name)), postgres_url):
            folder = Path(tempfile.mkdtemp(dir=name))
            (key,) = create_keys(url, [("default", "fuzz", EVERY)])
            with start("serve", folder, url) as (anybody, _):
                client = with_key(anybody, key)
                passes: tuple[tuple[str, dict[str, str], str], ...] = (
                    ("an attempt that goes on", create_attempt(client), OF_ATTEMPTS),
                    ("things that exist", create_things(client), ""),
                    ("any ids", {}, ""),
                )
                phases = "examples,coverage,fuzzing"
                for about, named, only in passes:
                    print(f"{url.partition(':')[0]}, {about}, seed {asked.seed}", flush=True)
                    ended = fuzz(client, folder, named, phases=phases, cases=asked.cases, seed=asked.seed, only=only)
                    print(ended.stdout + ended.stderr, flush=True)
                    failed |= ended.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
