"""Notifications over HTTP: what is due, dead and delivered, and to try it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.notify.receiver import Receiver, open_receiver
from tests.system.server.harness import Client, start
from tests.system.server.test_keys import EVERY, create_keys, with_key

SETTINGS = """
[[notify]]
name = "ops"
on = ["person_needed"]
webhook = "{url}"
secret_env = "OPS_SECRET"
allow_private = true
tries = 1
"""
GATE = "name: gated\ntasks:\n  publish: {approval: {prompt: Publish?}}\n"
PATH = "/api/v1/notifications"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as opened:
        yield opened


def list_items(client: Client, delivery: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get(f"{PATH}?delivery={delivery}").json["items"]
    return items


def wait_for(client: Client, delivery: str) -> dict[str, Any]:
    page = client.until(f"{PATH}?delivery={delivery}", lambda page: page["items"])
    (item,) = page["items"]
    assert item["delivery"] == delivery
    return dict(item)


def test_a_dead_notification_is_tried_again_and_delivered(
    tmp_path: Path, database_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_SECRET", "whsec_YSBzZWNyZXQgb2YgMjQgYnl0ZXMsIG9r")
    (tmp_path / "pointsman.toml").write_text(SETTINGS.format(url=receiver.url()))
    own, other = create_keys(database_url, [("default", "root", EVERY), ("globex", "bob", EVERY)])
    receiver.answer = lambda _: 503
    with start("up", tmp_path, database_url) as (anybody, _):
        client, globex = with_key(anybody, own), with_key(anybody, other)
        run_id = client.post("/api/v1/flows/run", {"flow": GATE}).json["id"]
        dead = wait_for(client, "dead")
        assert (dead["target"], dead["event"], dead["run_id"], dead["tries"]) == ("ops", "person_needed", run_id, 1)
        assert "503" in dead["error"]
        assert list_items(client, "due") == list_items(client, "delivered") == list_items(globex, "dead") == []
        asked = {"ids": [dead["id"], "unknown"]}
        assert globex.post(f"{PATH}/retry", asked).json == {"ids": []}, "not a notification of another tenant"
        assert len(receiver.received) == 1
        receiver.answer = lambda _: 200
        first = client.post(f"{PATH}/retry", asked, idempotency_key="again")
        assert first.json == {"ids": [dead["id"]]}
        assert wait_for(client, "delivered")["id"] == dead["id"]
        repeated = client.post(f"{PATH}/retry", asked, idempotency_key="again")
        assert (repeated.text, repeated.headers["idempotent-replayed"]) == (first.text, "true")
        assert client.post(f"{PATH}/retry", asked).json == {"ids": []}, "a delivered one is not sent again"
        assert [each.headers["webhook-id"] for each in receiver.received] == [dead["id"]] * 2
        assert client.get(f"{PATH}?delivery=lost").problem == "invalid-request"
        assert client.post(f"{PATH}/retry", {"ids": [1]}).problem == "invalid-request"
