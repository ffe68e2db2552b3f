"""Retries and attempts, as a flow states them and as the documents set them, under every lifecycle."""

from __future__ import annotations

import json

import pytest
from tests.rooms.cli.scene import Scene

from pointsman.lifecycles import SHIPPED

OPTIONS = "run: 'echo x >> tries; exit 1', backoff: {base: 0.01s, jitter: 0}"


def count_tries(scene: Scene, lifecycle: str, options: str) -> int:
    (scene.folder / "tries").unlink(missing_ok=True)
    (scene.folder / "flow.yaml").write_text(f"{{name: f, lifecycle: {lifecycle}, tasks: {{a: {{{OPTIONS}, {options}}}}}}}")
    said = scene.call("run", str(scene.folder / "flow.yaml"))
    assert said.code == 1, said
    return (scene.folder / "tries").read_text().count("x")


@pytest.mark.parametrize("lifecycle", [name for name in SHIPPED if name != "agent"])
def test_the_retries_of_a_flow_bound_the_attempts(scene: Scene, lifecycle: str) -> None:
    assert count_tries(scene, lifecycle, "retries: 1") == 2
    assert count_tries(scene, lifecycle, "max_attempts: 3") == 3
    assert count_tries(scene, lifecycle, "retries: 0") == 1


def test_an_agent_is_never_tried_again_without_a_person(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text("{name: f, lifecycle: agent, tasks: {a: {run: exit 1, max_attempts: 2}}}")
    assert scene.call("run", str(scene.folder / "flow.yaml")).code == 1
    assert scene.call("status latest --json").json["tasks"][0]["attempts"] == 1
    assert scene.call("retry latest a").code == 0


@pytest.mark.parametrize(("lifecycle", "attempts"), [("supervised", 3), ("approval", 1), ("standard", 1)])
def test_a_lifecycle_has_the_attempts_of_its_document_by_default(scene: Scene, lifecycle: str, attempts: int) -> None:
    assert count_tries(scene, lifecycle, "description: as it is") == attempts


def test_steps_with_approvals_are_reclaimed_after_an_hour_by_default(scene: Scene) -> None:
    policies = {}
    for options in ("run: echo", "run: echo, timeout: 3h", "run: echo, reclaim_after: 5m"):
        (scene.folder / "flow.yaml").write_text(f"{{name: f, lifecycle: approval, tasks: {{a: {{{options}}}}}}}")
        assert scene.call("run --detach", str(scene.folder / "flow.yaml")).code == 0
        (run, *_) = scene.do(lambda engine: engine.list_runs())
        policies[options] = json.loads(scene.tasks(run)["a"].policy).get("reclaim_after_seconds")
    assert list(policies.values()) == [3600.0, None, 300.0]
