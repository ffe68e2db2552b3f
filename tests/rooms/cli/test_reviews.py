"""A result that waits for a review is shown with its outputs, the end of its log and what it changed in its work tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene

from pointsman.engine.submit import NewTask

WORK = """\
name: patch
lifecycle: {lifecycle}
tasks:
  write:
    {options}
    run: |
      echo two >> kept.txt
      rm loose.txt
      mkdir sub && echo new > sub/new.txt
      echo noise > noise.tmp
      echo "wrote it"
      echo 7 > "$POINTSMAN_OUTPUT"
"""


def git(scene: Scene, *words: str) -> str:
    identity = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    return subprocess.run(["git", *identity, *words], cwd=scene.folder, capture_output=True, check=True, text=True).stdout


def make_work_tree(scene: Scene) -> None:
    """With a file that is committed, one that has changed since, one that is not tracked, and a rule that ignores others."""
    for name in ("kept.txt", "changed.txt", "loose.txt"):
        (scene.folder / name).write_text("one\n")
    (scene.folder / ".gitignore").write_text("*.tmp\n*.yaml\n")
    git(scene, "init", "--quiet")
    git(scene, "add", ".gitignore", "kept.txt", "changed.txt")
    git(scene, "commit", "--quiet", "--message", "begin")
    (scene.folder / "changed.txt").write_text("before the attempt\n")


def run_to_review(scene: Scene, lifecycle: str, options: str) -> tuple[str, str]:
    """What `inbox` and `status` show while the result waits."""
    (scene.folder / "flow.yaml").write_text(WORK.format(lifecycle=lifecycle, options=options))
    with scene.start(f"run {scene.folder / 'flow.yaml'}") as process:
        assert process.stderr
        assert any("write waits: needs a review" in line for line in process.stderr)
        shown = scene.call("inbox --list").out, scene.call("status latest").out
        assert scene.call("accept latest write").code == 0
        process.communicate(timeout=60)
    assert process.returncode == 0
    return shown


@pytest.mark.parametrize(
    ("database", "lifecycle", "options"),
    [("scene", "standard", "review: true\n    checks: [{file: kept.txt}]"), ("scene_on_postgres", "agent", "timeout: 1m")],
)
def test_a_review_shows_what_the_attempt_changed(
    request: pytest.FixtureRequest, database: str, lifecycle: str, options: str
) -> None:
    scene: Scene = request.getfixturevalue(database)
    make_work_tree(scene)
    for shown in run_to_review(scene, lifecycle, options):
        assert "outputs: 7" in shown
        assert "| wrote it" in shown
        changes = [line.strip() for line in shown.partition("changes:")[2].splitlines()]
        assert "3 files changed, 2 insertions(+), 1 deletion(-)" in changes
        assert {"+two", "-one", "+new"} <= {*changes}
        assert re.findall(r"diff --git a/(\S+)", shown) == ["kept.txt", "loose.txt", "sub/new.txt"]
    assert git(scene, "diff", "--cached", "--stat") == "", "the index is as it was"
    assert not list(scene.folder.rglob("*.changes"))


def test_long_changes_are_cut_and_the_rest_is_in_a_file(scene: Scene) -> None:
    make_work_tree(scene)
    (scene.folder / "many.sh").write_text("seq 500 > many.txt\n")
    (scene.folder / "flow.yaml").write_text("{name: f, tasks: {write: {review: true, run: sh many.sh}}}")
    assert scene.call("run --detach", str(scene.folder / "flow.yaml")).code == 0
    with scene.start("resume latest") as process:
        assert process.stderr
        assert any("needs a review" in line for line in process.stderr)
        (task,) = scene.call("status latest --json").json["tasks"]
        assert scene.call("accept latest write").code == 0
        process.communicate(timeout=60)
    *lines, last = task["diff"].splitlines()
    assert len(lines) == 60
    words, _, path = last.partition(" more lines in ")
    assert int(words.removeprefix("… ")) > 400
    assert "+500" in Path(path).read_text("utf-8")


def test_without_a_work_tree_there_are_no_changes(scene: Scene) -> None:
    for name in ("kept.txt", "loose.txt"):
        (scene.folder / name).write_text("one\n")
    for shown in run_to_review(scene, "standard", "review: true"):
        assert "| wrote it" in shown
        assert "changes:" not in shown


def test_a_result_that_waits_again_is_announced_again(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text("{name: f, tasks: {write: {review: true, run: 'true'}}}")
    with scene.start(f"run {scene.folder / 'flow.yaml'}") as process:
        assert process.stderr
        assert any("write waits: needs a review" in line for line in process.stderr)
        assert scene.call("reject latest write", "--comment", "again").code == 0
        assert any("write waits: needs a review" in line for line in process.stderr)
        assert scene.call("accept latest write").code == 0
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_result_without_anything_to_see_says_so(scene: Scene) -> None:
    run = scene.submit(NewTask(name="quiet", review=True))
    scene.complete(run)
    for command in ("inbox --list", "status latest"):
        assert "  It wrote nothing, and there are no outputs.\n" in scene.call(command).out


def test_a_review_of_a_fan_out_shows_what_its_items_wrote(scene: Scene) -> None:
    flow = 'name: fan\ntasks: {all: {foreach: [red, blue], review: true, run: "echo ${{ item }}"}}\n'
    (scene.folder / "flow.yaml").write_text(flow)
    with scene.start(f"run {scene.folder / 'flow.yaml'}") as process:
        assert process.stderr
        assert any("all waits: needs a review" in line for line in process.stderr)
        for command in ("inbox --list", "status latest"):
            shown = scene.call(command).out
            assert "  | all[0] | red\n" in shown
            assert "  | all[1] | blue\n" in shown
        scene.call("accept latest all")
        process.communicate(timeout=60)
    assert process.returncode == 0
