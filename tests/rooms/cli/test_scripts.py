"""A script ends with the first command that fails."""

from __future__ import annotations

from tests.rooms.cli.scene import Scene

FLOW = """
name: scripts
defaults: {critical: false}
tasks:
  first-line:
    run: |
      false
      echo never
  last-of-a-pipe:
    run: |
      false | cat
      echo reached
  any-of-a-pipe:
    shell: bash
    run: |
      false | cat
      echo never
  forgiven:
    run: |
      false || true
      echo reached
  checked:
    run: "true"
    checks:
      - run: |
          false
          true
"""


def test_a_script_ends_with_the_first_command_that_fails(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text(FLOW)
    said = scene.call("run", str(scene.folder / "flow.yaml"), "--json")
    ended = {each["name"]: each for each in scene.call("status latest --json").json["tasks"]}
    assert [name for name in ended if not ended[name]["error"]] == ["last-of-a-pipe", "forgiven"], said.err
    assert ended["any-of-a-pipe"]["error"] == ended["first-line"]["error"] == "exited with code 1 (expected 0)"
    assert "never" not in scene.call("logs latest").out
