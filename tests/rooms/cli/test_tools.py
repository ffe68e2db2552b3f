"""Profiles of tools (document 001): what the settings of a project say about a tool holds for every step that uses it."""

from __future__ import annotations

from tests.rooms.cli.scene import Scene

TOOLS = """\
[tools.lenient]
command = ["sh", "-c"]
expected_exit_codes = [0, 7]

[tools.once]
command = ["sh", "-c"]
retry_on_failure = false

[tools.once.breaker]
failure_threshold = 3
cooldown = "10m"
"""
FLOW = """\
name: steps
lifecycle: pipeline
defaults: {retries: 2, backoff: 0s, critical: false}
tasks:
  odd: {tool: lenient, command: [exit 7]}
  even: {tool: lenient, command: [exit 6]}
  once: {tool: once, command: [exit 1]}
"""


def test_a_step_does_what_the_profile_of_its_tool_says(scene: Scene) -> None:
    (scene.folder / "pointsman.toml").write_text(TOOLS)
    (scene.folder / "flow.yaml").write_text(FLOW)
    scene.call("run", str(scene.folder / "flow.yaml"))
    tasks = {task["name"]: task for task in scene.call("status latest --json").json["tasks"]}
    assert {name: (task["attempts"], task["exit_code"]) for name, task in tasks.items()} == {
        "odd": (1, 7),
        "even": (3, 6),
        "once": (1, 1),
    }
    assert tasks["even"]["error"] == "exited with code 6 (expected 0 or 7)"
    breaker = scene.do(lambda engine: engine.get_breaker("once"))
    assert (breaker.failure_count, breaker.failure_threshold, breaker.cooldown_seconds) == (1, 3, 600)
    assert scene.do(lambda engine: engine.get_breaker("lenient")).failure_threshold == 5
