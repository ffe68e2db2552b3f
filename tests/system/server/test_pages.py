"""Every list in pages, over HTTP, while others add to it: nothing is missed or repeated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.system.server.harness import Client, start
from tests.system.server.test_keys import EVERY, create_keys, with_key

from pointsman import app
from pointsman.engine.fields import shape_of
from pointsman.engine.filters import NoticeFilter
from pointsman.remote import engine as remote
from pointsman.server.routes import ALL

NUMBER = count(1)
MEANWHILE = 10
NO_DELAY = {"base_seconds": 0, "max_seconds": 0, "jitter": 0}
GATE = "name: {}\ntasks:\n  publish: {{approval: {{prompt: Publish?}}}}\n"
Add = Callable[[Client], object]
WITHOUT_PAGES = ("/api/v1/tasks/{task_id}/attempts/{attempt}/artifacts",)
"""An attempt has a limited number of artifacts, and the answer says how many were left out."""


def submit(client: Client, task: str = "a") -> str:
    body = {"name": "paged", "tasks": [{"name": task, "capabilities": ["elsewhere"]}]}
    return str(client.post("/api/v1/runs", body).json["id"])


def make_name(prefix: str) -> str:
    return f"{prefix}-{next(NUMBER):05}"


class Scene:
    """A list of which some items are there, and how more are added."""

    def __init__(self, client: Client, path: str, add: Add, key: Callable[[dict[str, Any]], object], **query: str) -> None:
        self.client, self.path, self.add, self.key, self.query = client, path, add, key, query
        self.items = "items"

    def address(self, **more: object) -> str:
        return f"{self.path}?{urlencode({**self.query, **more})}"

    def read(self, limit: int) -> Iterator[object]:
        after: dict[str, object] = {}
        while True:
            page = self.client.get(self.address(limit=limit, **after)).json
            assert len(page[self.items]) <= limit
            yield from map(self.key, page[self.items])
            if page["next"] is None or not page[self.items]:
                return
            after = {"after": page["next"]}


def by_id(item: dict[str, Any]) -> object:
    return item["id"]


def by_name(item: dict[str, Any]) -> object:
    return item["name"]


def list_runs(client: Client) -> Scene:
    return Scene(client, "/api/v1/runs", submit, by_id, name="paged")


def list_runs_of_003(client: Client) -> Scene:
    scene = Scene(client, "/runs", submit, by_id, name="paged")
    scene.items = "runs"
    return scene


def list_all_tasks(client: Client) -> Scene:
    return Scene(client, "/api/v1/tasks", lambda client: submit(client, "some task"), by_id, name="some task")


def list_tasks_of_004(client: Client) -> Scene:
    flow = "name: agents\nlifecycle: agent\ntasks: {a: {run: 'true', needs_capabilities: [elsewhere]}}"
    scene = Scene(client, "/api/tasks", lambda client: client.post("/api/v1/flows/run", {"flow": flow}), by_id)
    scene.items = "tasks"
    return scene


def list_tasks_of_a_run(client: Client) -> Scene:
    path = f"/api/v1/runs/{submit(client)}/tasks"
    new = {"capabilities": ["elsewhere"]}
    return Scene(client, path, lambda client: client.post(path, {"tasks": [{"name": make_name("t"), **new}]}), by_id)


def list_artifacts_of_a_run(client: Client) -> Scene:
    scene = list_tasks_of_a_run(client)
    path = scene.path.replace("/tasks", "/artifacts")
    return Scene(client, path, scene.add, lambda item: item["task_id"])


def list_attempts(client: Client) -> Scene:
    """Each attempt is started again after it has failed."""
    able = make_name("able")
    tasks = [{"name": "a", "capabilities": [able], "max_retries": 100, "max_attempts": 100, "backoff": NO_DELAY}]
    run_id = client.post("/api/v1/runs", {"name": "attempts", "tasks": tasks}).json["id"]
    (task,) = client.get(f"/api/v1/runs/{run_id}/tasks").json["items"]
    worker = {"name": able, "capabilities": [able], "lease_seconds": 600}
    worker_id = client.post("/api/v1/workers", worker).json["id"]

    def add(client: Client) -> None:
        asked = {"limit": 1, "wait_seconds": 20}
        (claim,) = client.post(f"/api/v1/workers/{worker_id}/claims", asked).json["items"]
        report = {"epoch": claim["epoch"], "signal": "fail", "error": "again", "retryable": True}
        assert client.post(f"/api/v1/tasks/{task['id']}/reports", report).status == 200
        client.until(f"{path}?limit=1000", lambda page: page["items"][-1]["attempt"] > claim["epoch"])  # the next one waits

    path = f"/api/v1/tasks/{task['id']}/attempts"
    return Scene(client, path, add, lambda item: item["attempt"])


def list_history(client: Client) -> Scene:
    run_id = submit(client)

    def add(client: Client) -> None:
        for signal in ("pause", "resume"):
            client.post(f"/api/v1/runs/{run_id}/signals", {"signal": signal})

    return Scene(client, f"/api/v1/history/{run_id}", add, lambda item: item["position"])


def list_run_history(client: Client) -> Scene:
    scene = list_history(client)
    scene.path = scene.path.replace("/history/", "/runs/") + "/history"
    return scene


def list_task_history(client: Client) -> Scene:
    scene = list_attempts(client)
    scene.path = scene.path.replace("/attempts", "/history")
    scene.key = lambda item: item["position"]
    return scene


def list_notices(client: Client) -> Scene:
    run_id = submit(client)

    def add(client: Client) -> None:
        client.call("PUT", f"/api/v1/runs/{run_id}/budget", {"budget_usd": str(next(NUMBER))})

    return Scene(client, "/api/v1/notices", add, lambda item: item["message"], about=run_id)


def list_notifications(client: Client) -> Scene:
    """Each is filled in behind the run that it is about."""
    flow = GATE.format("told") + "notify: [{on: [person_needed], command: ['true']}]\n"

    def add(client: Client) -> None:
        run_id = client.post("/api/v1/flows/run", {"flow": flow}).json["id"]
        client.until("/api/v1/notifications?limit=1000", lambda page: run_id in [each["run_id"] for each in page["items"]])

    return Scene(client, "/api/v1/notifications", add, by_id)


def list_workers(client: Client) -> Scene:
    add = {"capabilities": ["paging"], "lease_seconds": 600}
    return Scene(client, "/api/v1/workers", lambda client: client.post("/api/v1/workers", {"name": "paged", **add}), by_id)


def list_breakers(client: Client) -> Scene:
    return Scene(
        client,
        "/api/v1/breakers",
        lambda client: client.call("PUT", f"/api/v1/breakers/{make_name('tool')}", {}),
        by_name,
    )


def list_templates(client: Client) -> Scene:
    text = "name: stored\ntasks: {a: {run: 'true'}}"
    return Scene(
        client,
        "/api/v1/templates",
        lambda client: client.call("PUT", f"/api/v1/templates/{make_name('flow')}", {"text": text}),
        by_name,
    )


def list_tenants(client: Client) -> Scene:
    return Scene(client, "/api/v1/tenants", lambda client: client.post("/api/v1/tenants", {"name": make_name("tenant")}), by_id)


def list_inbox(client: Client) -> Scene:
    return Scene(
        client,
        "/api/v1/inbox",
        lambda client: client.post("/api/v1/flows/run", {"flow": GATE.format("gated")}),
        lambda item: item["task_id"],
        kind="approval",
    )


def list_events(client: Client) -> Scene:
    scene = list_history(client)
    scene.path, scene.query = "/api/v1/events", {"run_id": scene.path.rpartition("/")[2]}
    return scene


SCENES = (
    *(list_runs, list_runs_of_003, list_all_tasks, list_tasks_of_004, list_tasks_of_a_run, list_artifacts_of_a_run),
    *(list_attempts, list_history, list_run_history, list_task_history, list_notices, list_notifications, list_workers),
    *(list_breakers, list_templates, list_tenants, list_inbox, list_events),
)


@pytest.mark.parametrize("make", SCENES, ids=lambda make: make.__name__)
def test_pages_miss_and_repeat_nothing_while_items_are_added(client: Client, make: Callable[[Client], Scene]) -> None:
    check_pages(make(client))


def check_pages(scene: Scene) -> None:
    for _ in range(5):
        scene.add(scene.client)
    before = list(scene.read(1000))
    assert len(before) >= 5
    adding = threading.Thread(target=lambda: [scene.add(scene.client) for _ in range(MEANWHILE)])
    adding.start()
    seen = list(scene.read(2))
    adding.join()
    assert len(seen) == len(set(seen)), "nothing is repeated"
    assert [each for each in seen if each in set(before)] == before, "nothing is missed, and the order stays"
    assert len(list(scene.read(1000))) >= len(before) + MEANWHILE, "items were added meanwhile"


def test_keys_and_machines_have_pages(tmp_path: Path, database_url: str) -> None:
    (text,) = create_keys(database_url, [("default", "root", EVERY)])
    with start("serve", tmp_path, database_url) as (anybody, _):
        client = with_key(anybody, text)
        new = {"scopes": ["read"]}
        keys = Scene(
            client, "/api/v1/keys", lambda client: client.post("/api/v1/keys", {"name": make_name("key"), **new}), by_id
        )
        check_pages(keys)
        machines = Scene(client, "/api/v1/machines", lambda _: None, by_name)
        assert list(machines.read(2)) == sorted(machines.read(1000))  # type: ignore[type-var]
        assert client.get("/api/v1/keys?after=x").problem == client.get("/api/v1/machines?after=x").problem == "invalid-request"


def test_what_is_decided_between_two_pages_shifts_none_of_the_others(client: Client) -> None:
    scene = list_inbox(client)
    for _ in range(4):
        scene.add(client)
    before = [str(each) for each in scene.read(1000)]
    first = client.get(scene.address(limit=2)).json
    for item in first["items"]:
        client.post(f"/api/v1/tasks/{item['task_id']}/signals", {"signal": "approve"})
    second = client.get(scene.address(limit=1000, after=first["next"])).json["items"]
    assert [item["task_id"] for item in second] == before[2:]


def test_a_cursor_that_is_none_or_of_another_list_is_refused(client: Client) -> None:
    scenes = [make(client) for make in SCENES if make is not list_events]
    for scene in scenes:
        for _ in range(2):
            scene.add(client)
    cursors = [client.get(scene.address(limit=1)).json["next"] for scene in scenes]
    assert all(cursors)
    alike = ({"/runs", "/api/v1/runs"}, {"/api/tasks", "/api/v1/tasks"})
    for scene, own in zip(scenes, cursors, strict=True):
        assert client.get(scene.address(after=own)).status == 200
        foreign = [
            cursor
            for other, cursor in zip(scenes, cursors, strict=True)
            if cursor[:8] != own[:8] and {scene.path, other.path} not in alike
        ]
        for wrong in ("", "nonsense", "run_1", "é", "%00", own + "x", own[:-2], own[::-1], "WyJ" * 2000, *foreign):
            refused = client.get(f"{scene.address()}&after={quote(wrong, safe='%') if wrong != '%00' else wrong}")
            assert (refused.status, refused.problem) == (422, "invalid-request"), (scene.path, wrong)
            assert {error["path"] for error in refused.json["errors"]} == {"after"}, (scene.path, wrong)


def test_every_list_has_pages() -> None:
    for route in ALL:
        fields = {each.name: each for each in shape_of(route.query).fields}
        answers = getattr(route.answers, "__struct_fields__", ())
        is_list = route.method == "GET" and "items" in answers and route.path not in WITHOUT_PAGES
        if is_list or ("after" in fields and "next" in answers):
            assert {"limit", "after"} <= fields.keys(), route
            assert "next" in answers, route
            assert fields["limit"].default == 100, route


def test_workers_are_filtered_by_state_phase_and_name(client: Client) -> None:
    names = [make_name("filtered") for _ in range(2)]
    ids = [client.post("/api/v1/workers", {"name": name, "capabilities": ["filters"]}).json["id"] for name in names]
    client.post(f"/api/v1/workers/{ids[1]}/signals", {"signal": "terminate"})

    def find(**query: str) -> set[object]:
        return set(Scene(client, "/api/v1/workers", lambda _: None, by_id, **query).read(2)) & set(ids)

    states = [client.get(f"/api/v1/workers/{each}").json["state"] for each in ids]
    assert states[0] != states[1]
    assert [find(state=state) for state in states] == [{ids[0]}, {ids[1]}]
    assert (find(phase="done"), find(name=names[0]), find()) == ({ids[1]}, {ids[0]}, set(ids))
    assert client.get("/api/v1/workers?phase=gone").problem == "invalid-request"


def test_notices_are_filtered_by_what_they_are_about_their_subject_and_time(client: Client) -> None:
    scene = list_notices(client)
    for _ in range(3):
        scene.add(client)
    newest, middle, oldest = client.get(scene.address()).json["items"]
    run_id = scene.query["about"]
    assert {newest["id"], middle["id"], oldest["id"]} == {run_id}

    def find(**query: str) -> list[object]:
        return list(Scene(client, "/api/v1/notices", lambda _: None, scene.key, about=run_id, **query).read(1))

    every = [scene.key(each) for each in (newest, middle, oldest)]
    assert (find(subject="budget"), find(subject="overstayed")) == (every, [])
    assert (find(created_after=middle["at"]), find(created_before=middle["at"])) == (every[:2], every[2:])


def test_the_inbox_is_filtered_by_kind_and_run(client: Client) -> None:
    run_id = client.post("/api/v1/flows/run", {"flow": GATE.format("one gate")}).json["id"]

    def find(**query: str) -> list[object]:
        return list(Scene(client, "/api/v1/inbox", lambda _: None, lambda item: item["run"], **query).read(1))

    assert (find(run_id=run_id), find(run_id=run_id, kind="approval")) == (["one gate"], ["one gate"])
    assert find(run_id=run_id, kind="review") == []
    assert client.get("/api/v1/inbox?kind=worker").problem == "invalid-request"


def test_an_engine_elsewhere_reads_a_long_list_as_a_whole(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = (
        list_notices(client),
        list_workers(client),
        list_history(client),
        list_tasks_of_a_run(client),
        list_attempts(client),
    )
    for scene in scenes:
        for _ in range(4):
            scene.add(client)
    notices, _, history, tasks, attempts = scenes
    monkeypatch.setattr(remote, "READ_ROWS", 2)

    async def read() -> tuple[list[object], ...]:
        async with app.open(client.url) as engine:
            return (
                [each.message for each in await engine.list_notices(NoticeFilter(about=notices.query["about"]))],
                [each.id for each in await engine.list_workers()],
                [each.position for each in await engine.list_history(history.path.rpartition("/")[2])],
                [each.id for each in await engine.list_tasks_in_brief(tasks.path.split("/")[-2])],
                [each.epoch for each in await engine.list_attempts(attempts.path.split("/")[-2])],
            )

    found = asyncio.run(read())
    assert list(found) == [list(scene.read(1000)) for scene in scenes]
    assert all(len(each) >= 4 for each in found)
