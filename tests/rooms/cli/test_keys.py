"""`tenant` and `key`: who may use the server, and what is printed of a key, and when."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.rooms.cli.scene import Said, Scene

from pointsman.engine.authentication import KeyHolder
from pointsman.engine.engine import Engine
from pointsman.errors import AuthenticationFailed

TEXT = re.compile(r"pm_[0-9a-f]{12}_[0-9A-Za-z]{49}\n")


@pytest.fixture(params=["scene", "scene_on_postgres"])
def project(request: pytest.FixtureRequest) -> Scene:
    scene: Scene = request.getfixturevalue(request.param)
    return scene


def create(project: Scene, *options: str, name: str = "ci") -> Said:
    return project.call("key create", "--name", name, "--scope", "read", *options)


def holder_of(project: Scene, text: str) -> KeyHolder | None:
    async def authenticate(engine: Engine) -> KeyHolder | None:
        try:
            return await engine.authenticate(text.strip())
        except AuthenticationFailed:
            return None

    return project.do(authenticate)


def keys(project: Scene, *options: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = project.call("key list --json", *options).json
    return listed


def test_a_key_is_printed_once_and_alone(project: Scene) -> None:
    assert project.call("tenant add acme").out == "added acme\n"
    said = create(project, "--tenant", "acme", "--scope", "submit", "--expires", "90d", "--as", "ada")
    assert said.code == 0
    assert TEXT.fullmatch(said.out), "so it can be written to a file"
    (key,) = keys(project)
    assert f"the key ci ({key['id']}) of acme: read, submit, until " in said.err
    assert "is not shown again" in said.err
    assert said.out.strip() not in said.err
    holder = holder_of(project, said.out)
    assert holder == KeyHolder(key["id"], "ci", "acme", frozenset({"read", "submit"}))
    assert (key["state"], key["scopes"], key["created_by"]) == ("valid", ["read", "submit"], "ada")
    listed = project.call("key")
    assert re.search(rf"{key['id']}  acme    ci    valid  in 89d 23h  just now   ada +read, submit\n", listed.out), listed.out
    secret = said.out.strip().rpartition("_")[2]
    assert secret not in listed.out + project.call("key list --json --all").out + project.call("notices --json").out


def test_a_key_as_json_has_its_text(project: Scene) -> None:
    said = create(project, "--json")
    assert holder_of(project, said.json["text"])
    assert said.json["state"] == "valid"
    assert [key["id"] for key in keys(project)] == [said.json["id"]]
    rotated = project.call("key rotate", said.json["id"], "--json").json
    assert rotated["id"] == said.json["id"]
    assert rotated["text"] != said.json["text"]
    assert "text" not in project.call("key revoke", said.json["id"], "--json").json


def test_a_repeated_request_makes_one_key(project: Scene) -> None:
    first = create(project, "--request-id", "once")
    again = create(project, "--request-id", "once")
    (key,) = keys(project)
    assert (again.code, again.out) == (2, "")
    assert f"For a new one: pointsman key rotate {key['id']}" in again.err
    assert holder_of(project, first.out)
    assert create(project, "--request-id", "once", "--json").json["text"] is None
    assert create(project, "--request-id", "once", "--scope", "admin").code == 2, "another request"
    assert len(keys(project)) == 1


def test_a_key_is_rotated_with_and_without_a_grace(project: Scene) -> None:
    first = create(project)
    (key,) = keys(project)
    second = project.call(f"key rotate {key['id']} --grace 1h")
    assert TEXT.fullmatch(second.out)
    assert "The old secret is valid until " in second.err
    assert all(holder_of(project, each.out) for each in (first, second))
    third = project.call(f"key rotate {key['id'][-8:]} --expires 1d")
    assert "The old secret is valid no longer." in third.err
    assert [bool(holder_of(project, each.out)) for each in (first, second, third)] == [False, False, True]
    assert keys(project)[0]["expires_at"]


def test_a_revoked_key_stays_in_the_list_of_all(project: Scene) -> None:
    said = create(project)
    (key,) = keys(project)
    revoked = project.call(f"key revoke {key['id'].removeprefix('key_')} --as ada", "--reason", "it was in a log")
    assert revoked.out == f"ci ({key['id']}): valid → revoked\n"
    assert holder_of(project, said.out) is None
    assert keys(project) == []
    assert [(each["id"], each["state"]) for each in keys(project, "--all")] == [(key["id"], "revoked")]
    assert project.call(f"key revoke {key['id']}").out == f"ci ({key['id']}): still revoked\n"
    newest = project.call("notices --json").json[0]
    assert (newest["kind"], newest["name"]) == ("key", "ci")
    assert newest["message"] == "The key 'ci' was revoked. By ada: it was in a log"
    refused = project.call(f"key rotate {key['id']}")
    assert (refused.code, "is revoked. Create a new one." in refused.err) == (2, True)
    assert create(project).code == 0, "its name is free"


def test_tenants_are_listed_with_those_of_local_runs(project: Scene) -> None:
    project.submit()
    assert project.call("tenant add acme --request-id k --json").json["id"] == "acme"
    assert project.call("tenant add acme --request-id k --json").code == 0
    assert [tenant["id"] for tenant in project.call("tenant list --json").json] == ["acme", "default"]
    assert re.match(r"tenant +since +runs +tasks +payloads +spent\nacme ", project.call("tenant").out)
    refused = project.call("tenant add acme")
    assert (refused.code, "There is a tenant 'acme' already." in refused.err) == (2, True)


def test_quotas_are_set_one_by_one_shown_with_their_use_and_lifted(project: Scene) -> None:
    project.submit()
    said = project.call("tenant set default --max-runs 1 --max-tasks 5000 --as ada --reason trial")
    assert said.out == "default: max-runs is 1\ndefault: max-tasks is 5,000\n"
    assert project.call("tenant set default --max-bytes 2000").out == "default: max-bytes is 2,000\n"
    shown = " ".join(project.call("tenant").out.splitlines()[1].split())
    assert re.fullmatch(r"default \S+ \S+ 1 of 1 3 of 5,000 \d+ of 2,000 bytes 0 USD", shown), shown
    flow = project.folder / "flow.yaml"
    flow.write_text("name: a\ntasks: {a: {run: 'true'}}")
    refused = project.call("run", str(flow))
    assert (refused.code, "may have 1 unfinished runs, and has 1" in refused.err) == (2, True), refused
    assert project.call("tenant set default --max-runs none --json").json["max_runs"] is None
    assert project.call("tenant list --json").json[0]["max_tasks"] == 5000
    assert "The tenant may have 1 unfinished runs" in project.call("notices").out


def test_a_quota_needs_a_known_tenant_and_a_number(scene: Scene) -> None:
    scene.call("tenant add acme")
    unknown = scene.call("tenant set acne --max-runs 3")
    assert (unknown.code, "There is no tenant 'acne'. Did you mean acme?" in unknown.err) == (2, True)
    assert "'many' is not a number" in scene.call("tenant set acme --max-runs many").err
    assert "Say what to set" in scene.call("tenant set acme").err


def test_the_hint_of_a_new_tenant_makes_a_key(scene: Scene) -> None:
    said = scene.call("tenant add", "two words")
    hint = said.err.partition("To give it access: pointsman ")[2].strip()
    assert hint == "key create --tenant 'two words' --name first --scope read --scope submit"
    made = scene.call("key create", "--tenant", "two words", "--name", "first", "--scope", "read")
    assert TEXT.fullmatch(made.out)


def test_keys_of_one_tenant_are_listed(scene: Scene) -> None:
    scene.call("tenant add acme")
    for tenant in ("acme", "default"):
        assert create(scene, "--tenant", tenant).code == 0
    assert [key["tenant"] for key in keys(scene)] == ["acme", "default"]
    assert [key["tenant"] for key in keys(scene, "--tenant", "acme")] == ["acme"]
    assert keys(scene, "--tenant", "nobody") == []


def test_where_nothing_is_there_is_nothing_to_list(scene: Scene) -> None:
    for command, advice in (("key", "pointsman key create --name NAME"), ("tenant", "pointsman tenant add NAME")):
        said = scene.call_as_it_is(command)
        assert (said.code, said.out) == (0, "")
        assert re.search(rf"{advice}.*{scene.options}\n", said.err), "the command is about the same project"
        assert scene.call(f"{command} list --json").json == []
    assert not (scene.folder / ".pointsman").exists(), "to look creates no database"
    assert scene.call("key revoke key_123456789abc").code == 2


REFUSED = {
    "key create --name ci": "--scope",
    "key create --scope read": "--name",
    "key create --name ci --scope root": "'root' is not one of 'read'",
    "key create --name ci --scope read --expires soon": "'soon' is not a time",
    "key create --name ci --scope read --expires 0s": "Must be a number of seconds above 0",
    "key create --name ci --scope read --expires 99999d": "up to ten years",
    "key create --name ci --scope read --tenant acm": "no tenant 'acm'. Did you mean acme? To add it: pointsman tenant add acm",
    "key create --name laptop --scope read": "There is a key 'laptop' already. Rotate or revoke key_",
    "key revoke laptop": "There is no key 'laptop'. Keys of that name: key_",
    "key revoke nobody": "There is no key 'nobody'. See: pointsman key list --all",
    "key rotate key_000000000000": "There is no key",
    "key rotat x": "Did you mean rotate?",
    "tenant remove acme": "There is no command called 'remove'",
}


def test_what_is_wrong_is_said(scene: Scene) -> None:
    scene.call("tenant add acme")
    create(scene, name="laptop")
    before = keys(scene, "--all")
    for command, message in REFUSED.items():
        said = scene.call(command)
        assert (said.code, said.out) == (2, ""), command
        assert message in said.err, command
    assert keys(scene, "--all") == before
