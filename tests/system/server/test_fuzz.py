"""A few thousand requests of schemathesis; `make fuzz` sends many more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.system.server.fuzz import SCHEMATHESIS, create_things, fuzz
from tests.system.server.harness import start
from tests.system.server.test_keys import EVERY, create_keys, with_key

CASES = 3
PHASES = {"sqlite": "examples,coverage,fuzzing", "postgresql": "examples,fuzzing"}
"""Coverage tries every bound of every value: thousands of requests, most of which reach no database, so one is enough."""
SEED = 20_261_118


def test_every_answer_to_a_generated_request_is_as_the_document_says(tmp_path: Path, database_url: str) -> None:
    if not SCHEMATHESIS.exists():
        pytest.skip("schemathesis is not installed. Install it: make .venv-fuzz/fuzz.stamp")
    (key,) = create_keys(database_url, [("default", "fuzz", EVERY)])
    with start("serve", tmp_path, database_url) as (anybody, _):
        client = with_key(anybody, key)
        phases = PHASES[database_url.partition(":")[0]]
        ended = fuzz(client, tmp_path, create_things(client), phases=phases, cases=CASES, seed=SEED)
        said = ended.stdout + ended.stderr
        assert ended.returncode == 0, said
        counted = re.search(r"(\d+) generated, (\d+) passed", said)
        assert counted, said
        assert int(counted[1]) == int(counted[2]) >= 200
        assert client.get("/readyz").status == 200
    assert "Traceback" not in (tmp_path / "serve.txt").read_text()
