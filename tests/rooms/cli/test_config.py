"""`pointsman config show`: every setting, its value, and where it comes from."""

from __future__ import annotations

import re

import pytest
from tests.rooms.cli.scene import Scene

from pointsman.settings import SETTINGS

TOML = """\
slots = 3
store = "postgresql://me:secret@there/db"

[tools.curl]
command = ["curl", "-fsS"]
rate = "10/1m"
"""


def test_every_setting_is_shown_with_where_it_comes_from(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (scene.folder / "pointsman.toml").write_text(TOML)
    monkeypatch.setenv("POINTSMAN_GRACE_SECONDS", "2m")
    out = scene.call("config show").out
    assert all(re.search(rf"^{name} ", out, re.MULTILINE) for name in SETTINGS)
    assert re.search(r"^slots +3 +pointsman\.toml:1$", out, re.MULTILINE)
    assert re.search(r"^grace_seconds +120 +POINTSMAN_GRACE_SECONDS$", out, re.MULTILINE)
    assert re.search(r"^lease_seconds +30 +default$", out, re.MULTILINE)
    assert re.search(r'^command +\["curl", "-fsS"\] +pointsman\.toml:5$', out, re.MULTILINE)
    assert re.search(r"^rate_seconds +60 +pointsman\.toml:6$", out, re.MULTILINE)
    assert "secret" not in out


def test_programs_get_values_and_origins(scene: Scene) -> None:
    (scene.folder / "pointsman.toml").write_text(TOML)
    shown = scene.call("config show --json").json
    assert shown["directory"] == str(scene.folder)
    assert shown["settings"]["slots"] == {"value": 3, "from": "pointsman.toml:1"}
    assert shown["settings"]["store"]["value"] == "postgresql://me:***@there/db"
    assert shown["tools"]["curl"]["command"] == {"value": ["curl", "-fsS"], "from": "pointsman.toml:5"}
    assert shown["tools"]["curl"]["cooldown_seconds"] == {"value": 60.0, "from": "default"}


def test_a_flag_comes_first(scene: Scene) -> None:
    (scene.folder / "pointsman.toml").write_text(TOML)
    shown = scene.call("config show --json", "--store", "sqlite:////x.db").json
    assert shown["settings"]["store"] == {"value": "sqlite:////x.db", "from": "flag --store"}


def test_every_mistake_is_told_at_once_by_every_command(scene: Scene) -> None:
    (scene.folder / "pointsman.toml").write_text("slot = 3\nslots = 0\n")
    for command in ("config show", "status", "cancel latest"):
        said = scene.call(command)
        assert said.code == 2
        assert "pointsman.toml:1:1: There is no setting 'slot'." in said.err
        assert "Did you mean slots?" in said.err
        assert "pointsman.toml:2:1: slots: 0 is not a whole number" in said.err


def test_agents_of_the_settings_are_shown(scene: Scene) -> None:
    (scene.folder / "pointsman.toml").write_text('[agents.smith]\ncommand = ["smith", "--json"]\nresult = "done: text"\n')
    out = scene.call("config show").out
    assert "agent smith  pointsman.toml:1\n" in out
    assert re.search(r"^result +done: text$", out, re.MULTILINE)
    assert scene.call("config show --json").json["agents"]["smith"]["command"] == ["smith", "--json"]
