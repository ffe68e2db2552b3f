"""Every call of /api/v1/engine with keys of another tenant, and with keys of each single scope."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.system.server.harness import Client, Reply, start
from tests.system.server.test_keys import EVERY, JSON, create_keys, with_key

from pointsman.engine.calls import SPOKEN, VERSION_HEADER, list_queries
from pointsman.engine.operations import OPERATIONS
from pointsman.engine.operations.keys import Scope

MARK = "confidential"
"""In every name that the victim gives."""
OWN_LISTS = ("list_breakers", "list_templates", "get_account", "list_runs", "list_notices")
OF_ONE_TENANT = ("diagnose", "list_all_keys", "list_duty_failures", "list_tenants", "measure_tenants")
"""Queries about all tenants, which tell a key what is about its own."""
OF_OPERATORS = ("set_quotas", "set_tenant_budget", "add_tenant", "add_lifecycle")
OF_EVERYBODY = ("now", "list_definitions", "last_position", "is_held_back")
"""Queries with the same answer for all tenants: none of what it tells is of one of them."""
OF_OWN = ("measure_tenant", "measure_tenants", "list_tenants")
TEXT = f"name: {MARK}-template\ntasks: {{a: {{run: 'true'}}}}"


def ask(client: Client, method: str, body: Mapping[str, Any]) -> Reply:
    headers = {**JSON, VERSION_HEADER: SPOKEN}
    return client.send("POST", f"/api/v1/engine/{method}", json.dumps(body).encode(), headers)


def succeed(client: Client, method: str, body: Mapping[str, Any]) -> Any:
    reply = ask(client, method, body)
    assert reply.status == 200, (method, reply)
    return reply.json


@dataclass
class Things:
    """One thing of each kind, with a task that is claimed, and a gate that is open."""

    run: str
    task: str
    gate: str
    worker: str
    key: str

    @classmethod
    def make(cls, client: Client, mark: str) -> Things:
        worker = succeed(client, "register_worker", {"name": f"{mark}-worker", "capabilities": [mark]})["id"]
        tasks = [{"name": f"{mark}-task", "capabilities": [mark]}, {"name": f"{mark}-gate", "gate": True}]
        run = succeed(client, "submit_run", {"name": f"{mark}-run", "tasks": tasks})["id"]
        ((claim,), _) = succeed(client, "claim_tasks", {"worker_id": worker})
        succeed(client, "declare_tool", {"tool": f"{mark}-tool"})
        succeed(client, "store_template", {"name": f"{mark}-template", "text": TEXT})
        gate = next(each["id"] for each in succeed(client, "list_tasks", {"run_id": run}) if each["id"] != claim["task_id"])
        key = succeed(client, "create_key", {"name": f"{mark}-key", "scopes": ["read"]})["key"]["id"]
        return cls(run, claim["task_id"], gate, worker, key)

    def show(self, client: Client) -> list[Any]:
        """Everything that a call of another tenant could have changed."""
        about = [("list_history", {"entity_id": each}) for each in (self.run, self.task, self.gate, self.worker)]
        of_run = [(name, {"run_id": self.run}) for name in ("get_run", "list_tasks")]
        lists: list[tuple[str, dict[str, str]]] = [(name, {}) for name in OWN_LISTS]
        keys = [{**key, "last_used_at": None} for key in succeed(client, "list_keys", {})]
        return [keys, *(succeed(client, name, body) for name, body in (*about, *of_run, *lists))]

    def ids(self) -> tuple[str, ...]:
        return (self.run, self.task, self.gate, self.worker, self.key)


def make_unknown(known: str) -> str:
    return known[:-1] + ("0" if known[-1] != "0" else "1")


def list_questions(of: Things) -> dict[str, dict[str, Any]]:
    """For each query the arguments that ask for a thing of the victim."""
    by_name: dict[str, Any] = {
        "run_id": of.run,
        "task_id": of.task,
        "worker_id": of.worker,
        "entity_id": of.task,
        "tool": f"{MARK}-tool",
        "name": f"{MARK}-template",
        "run_ids": [of.run],
        "ids": ["1"],
        "part": of.run[-8:],
        "names": [f"{MARK}-task"],
        "cost_usd": "1000",
    }
    left_out = ("wanted", "after", "limit", "which", "expected_seal", "actor", "reason", "request_id")
    questions = {
        name: {each: by_name[each] for each in query.parameters if each not in left_out}
        for name, query in list_queries().items()
    }
    return questions | {"list_notices": {"wanted": {"about": of.run}}}


def list_changes(of: Things, own_worker: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Operations that name a thing of the victim."""
    attempts = [[of.task, 1]]
    for signal in ("cancel", "pause", "retry"):
        yield "signal_run", {"run_id": of.run, "signal": signal}
    for name in ("approve_run", "start_run"):
        yield name, {"run_id": of.run}
    yield "set_budget", {"run_id": of.run, "budget_usd": "1"}
    yield "add_tasks", {"run_id": of.run, "tasks": [{"name": "x"}]}
    yield "submit_run", {"name": "x", "tasks": [{"name": "x"}], "parent_run_id": of.run}
    for signal in ("approve", "reject", "skip", "cancel"):
        yield "signal_task", {"task_id": of.gate, "signal": signal}
    yield "delete_task", {"task_id": of.gate}
    for kind, thing, state in (("run", of.run, "CANCELED"), ("task", of.gate, "CANCELED"), ("worker", of.worker, "TERMINATED")):
        yield "request_transition", {"kind": kind, "entity_id": thing, "to_state": state}
    for signal in ("pause", "terminate"):
        yield "signal_worker", {"worker_id": of.worker, "signal": signal}
    yield "send_heartbeat", {"worker_id": of.worker, "attempts": attempts}
    yield "claim_tasks", {"worker_id": of.worker}
    yield "claim_tasks", {"worker_id": own_worker, "run_id": of.run}
    yield "register_worker", {"name": "x", "only_run_id": of.run}
    yield "give_up_tasks", {"worker_id": of.worker, "attempts": attempts}
    yield "report_attempt", {"task_id": of.task, "epoch": 1, "signal": "complete"}
    for name in ("reset_breaker", "trip_breaker"):
        yield name, {"tool": f"{MARK}-tool"}
    for name in ("rotate_key", "revoke_key"):
        yield name, {"key_id": of.key}


OF_ITS_OWN: Mapping[str, dict[str, Any]] = {
    "signal_runs": {"action": "cancel", "filter": {"name": f"{MARK}-run"}},
    "store_template": {"name": f"{MARK}-template", "text": "name: other\ntasks: {a: {run: 'true'}}"},
    "declare_tool": {"tool": f"{MARK}-tool", "failure_threshold": 99},
    "create_key": {"name": f"{MARK}-key", "scopes": ["read"]},
    "retry_notifications": {"ids": ["msg_1"]},
}
"""Operations that name nothing of the victim but a name: they are about a thing of the own tenant."""


@contextmanager
def serve(folder: Path, url: str, wanted: list[tuple[str, str, tuple[Scope, ...]]]) -> Iterator[list[Client]]:
    keys = create_keys(url, wanted)
    with start("serve", folder, url) as (client, _):
        yield [with_key(client, key) for key in keys]


def test_no_call_shows_or_changes_what_belongs_to_another_tenant(tmp_path: Path, database_url: str) -> None:
    with serve(tmp_path, database_url, [("acme", MARK, EVERY), ("globex", "bob", EVERY)]) as (victim, other):
        theirs = Things.make(victim, MARK)
        before = theirs.show(victim)
        for name, body in list_questions(theirs).items():
            check_question(other, name, body, theirs)
        own_worker = succeed(other, "register_worker", {"name": "own"})["id"]
        named = list(list_changes(theirs, own_worker))
        for name, body in named:
            told = [ask(other, name, each) for each in (body, hide(body, theirs))]
            assert [each.problem for each in told] == ["not-found", "not-found"], (name, told)
            assert hide_text(told[0].text, theirs) == told[1].text, name
        reports = succeed(other, "report_attempts", {"reports": [{"task_id": theirs.task, "epoch": 1, "signal": "complete"}]})
        assert [each["type"] for each in reports] == ["/problems/not-found"]
        own = {"worker_id": own_worker, "attempts": [[theirs.task, 1]]}
        assert succeed(other, "give_up_tasks", own) == 0
        beat = succeed(other, "send_heartbeat", own)
        assert (beat["lost"], beat["cancelled"], beat["paused"]) == ([[theirs.task, 1]], [], [])
        for name, body in OF_ITS_OWN.items():
            succeed(other, name, body)
        assert ask(other, "set_quotas", {"max_runs": 0}).problem == "operator-only"
        assert ask(other, "add_tenant", {}).problem == "operator-only"
        assert ask(other, "add_lifecycle", {"text": "lifecycle: other"}).problem == "operator-only"
        assert ask(other, "set_tenant_budget", {"budget_usd": "0.01"}).problem == "operator-only"
        done = {name for name, _ in named} | set(OF_ITS_OWN) | {"report_attempts", *OF_OPERATORS}
        assert done == set(OPERATIONS)
        assert theirs.show(victim) == before


def hide(body: object, theirs: Things) -> Any:
    return json.loads(hide_text(json.dumps(body).encode(), theirs))


def hide_text(text: bytes, theirs: Things) -> bytes:
    """The same, about things that do not exist."""
    for known in (*theirs.ids(), f"{MARK}-tool"):
        text = text.replace(known.encode(), make_unknown(known).encode())
    return text


def check_question(other: Client, name: str, body: Mapping[str, Any], theirs: Things) -> None:
    reply = ask(other, name, body)
    assert reply.status in (200, 403, 404), (name, reply)
    if reply.status == 404:
        assert hide_text(reply.text, theirs) == ask(other, name, hide(body, theirs)).text, name
        return
    if reply.status == 403:
        assert list_queries()[name].is_of_all, name
        return
    assert MARK.encode() not in reply.text, (name, reply)
    assert not [each for each in theirs.ids() if each.encode() in reply.text], (name, reply)
    is_empty = reply.json in ([], None, False)
    assert is_empty or name in (*OF_EVERYBODY, *OF_OWN, "get_account", "list_keys", "list_all_keys"), (name, reply)


@pytest.mark.parametrize("hidden", [{"caller": {"tenant": "acme"}}, {"tenant": "acme"}, {"serves": "all"}])
def test_no_operation_takes_what_only_the_server_says(client: Client, hidden: dict[str, Any]) -> None:
    for name in OPERATIONS:
        reply = ask(client, name, hidden)
        assert reply.problem == "invalid-request", (name, reply)
        (field,) = hidden
        assert field in [error["path"] for error in reply.json["errors"]], (name, reply)


SCOPES_OF: Mapping[str, tuple[Scope, ...]] = {
    **dict.fromkeys(("submit_run", "store_template"), ("submit",)),
    **dict.fromkeys(("signal_run", "signal_runs", "start_run", "set_budget", "delete_task"), ("operate",)),
    **dict.fromkeys(("reset_breaker", "trip_breaker"), ("operate",)),
    **dict.fromkeys(("signal_task", "request_transition"), ("operate", "approve")),
    **dict.fromkeys(("signal_worker", "declare_tool"), ("operate", "worker")),
    "add_tasks": ("submit", "worker"),
    "approve_run": ("approve",),
    **dict.fromkeys(("register_worker", "send_heartbeat", "claim_tasks", "give_up_tasks"), ("worker",)),
    **dict.fromkeys(("report_attempt", "report_attempts"), ("worker",)),
    **dict.fromkeys(("create_key", "rotate_key", "revoke_key"), ("admin",)),
    **dict.fromkeys(OF_OPERATORS, ()),
    **dict.fromkeys(("list_keys", "list_all_keys", "diagnose"), ("admin",)),
    "retry_notifications": ("operate",),
    **{name: () for name, query in list_queries().items() if query.is_of_all and name not in OF_ONE_TENANT},
    "now": EVERY,
    **dict.fromkeys(
        (
            *("list_definitions", "list_breakers", "get_account", "explain_overspending", "get_worker", "get_run"),
            *("get_task", "list_tasks_in_brief", "list_results", "list_attempts", "list_history"),
        ),
        ("read", "worker"),
    ),
}
"""What each call of a tenant other than the operator needs; `read` where nothing is said."""


def test_each_call_needs_its_scope(tmp_path: Path, database_url: str) -> None:
    wanted: list[tuple[str, str, tuple[Scope, ...]]] = [("acme", scope, (scope,)) for scope in EVERY]
    with serve(tmp_path, database_url, [("acme", "root", EVERY), *wanted]) as (root, *single):
        things = Things.make(root, MARK)
        questions = list_questions(things)
        before = things.show(root)
        for scope, client in zip(EVERY, single, strict=True):
            for name in (*OPERATIONS, *list_queries()):
                reply = ask(client, name, questions.get(name, {}))  # operations lack fields, and so do nothing
                assert (reply.status != 403) == (scope in SCOPES_OF.get(name, ("read",))), (scope, name, reply)
        assert things.show(root) == before


@pytest.mark.parametrize("signal", ["approve", "skip"])
def test_to_steer_tasks_is_not_to_decide_about_them(tmp_path: Path, database_url: str, signal: str) -> None:
    wanted: list[tuple[str, str, tuple[Scope, ...]]] = [("acme", scope, (scope,)) for scope in ("operate", "approve")]
    with serve(tmp_path, database_url, [("acme", "root", EVERY), *wanted]) as (root, operate, approve):
        gate = Things.make(root, MARK).gate
        state = root.get(f"/api/v1/tasks/{gate}").json["state"]
        by_state = {"kind": "task", "entity_id": gate, "to_state": "SUCCEEDED"}
        by_signal: dict[str, Any] = {"signal": signal}
        refused = [
            operate.post(f"/api/v1/tasks/{gate}/signals", by_signal),
            operate.post("/api/v1/transitions", by_state),
            operate.post("/api/v1/transitions", {"kind": "task", "entity_id": gate, "trigger": signal}),
            ask(operate, "signal_task", {"task_id": gate, **by_signal}),
            ask(operate, "request_transition", by_state),
            approve.post(f"/api/v1/tasks/{gate}/signals", {"signal": "cancel"}),
        ]
        assert [each.problem for each in refused] == ["forbidden"] * len(refused)
        assert [each.json["scope"] for each in refused] == ["approve"] * 5 + ["operate"]
        assert root.get(f"/api/v1/tasks/{gate}").json["state"] == state
        assert approve.post(f"/api/v1/tasks/{gate}/signals", by_signal).status == 200
        assert root.get(f"/api/v1/tasks/{gate}").json["state"] != state


def test_a_worker_leaves_but_steers_no_other_worker(tmp_path: Path, database_url: str) -> None:
    with serve(tmp_path, database_url, [("acme", "root", EVERY), ("acme", "box", ("worker",))]) as (_, box):
        worker = succeed(box, "register_worker", {"name": "own"})["id"]
        refused = [ask(box, "signal_worker", {"worker_id": worker, "signal": signal}) for signal in ("pause", "resume")]
        assert [(each.problem, each.json["scope"]) for each in refused] == [("forbidden", "operate")] * 2
        assert succeed(box, "signal_worker", {"worker_id": worker, "signal": "terminate", "ended": True})["phase"] == "done"
