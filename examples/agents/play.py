"""`make run-agents`: a coding agent works on a feature, and people decide. Every step is a real command, and is checked.

python play.py [FOLDER]    works in a copy of this folder, by default a temporary one, with a git repository of its own
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE_SECONDS = 120.0
LEFT_BEHIND = shutil.ignore_patterns(".pointsman", ".state", "__pycache__", "play.py")


class StepMissing(Exception):
    """Something did not happen as it should."""


class Play:
    """A folder, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._env = os.environ | {"PATH": path, "NO_COLOR": "1"}
        self._log = folder.with_name(f"{folder.name}.log")
        self._background: subprocess.Popen[str] | None = None

    def type(self, command: str, code: int = 0) -> str:
        """Run a command and show it with its output; StepMissing unless it ends with this code."""
        print(f"\n$ {command}", flush=True)
        result = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env=self._env,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        print(result.stdout.rstrip(), flush=True)
        expect(result.returncode == code, f"`{command}` ends with {code}, and not with {result.returncode}")
        return result.stdout

    def ask(self, command: str) -> Any:
        """What a command says to programs, without showing it."""
        words = [*shlex.split(command), "--json"]
        result = subprocess.run(words, cwd=self.folder, env=self._env, check=False, capture_output=True, text=True)
        expect(result.returncode == 0, f"`{command}` works: {result.stderr}")
        return json.loads(result.stdout)

    def start(self, command: str) -> None:
        """Run a command in the background; `wait` shows its output."""
        print(f"\n$ {command} &", flush=True)
        with self._log.open("w") as log:
            self._background = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self._env, text=True, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self, code: int = 0) -> str:
        """Wait for the command in the background."""
        assert self._background
        print("\n$ wait", flush=True)
        ended = self._background.wait(PATIENCE_SECONDS)
        said = self._log.read_text("utf-8")
        print(said.rstrip(), flush=True)
        expect(ended == code, f"it ends with {code}, and not with {ended}")
        return said

    def await_person(self, task: str, kind: str, attempt: int) -> None:
        """Wait until an attempt of a task needs a person."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any(
            (item["task"], item["waiting"]["kind"], item["attempts"]) == (task, kind, attempt) for item in self._list_inbox()
        ):
            expect(
                self._background is not None and self._background.poll() is None and time.monotonic() < deadline,
                f"{task} waits for: {kind}\n{self._log.read_text('utf-8')}",
            )
            time.sleep(0.2)

    def _list_inbox(self) -> list[dict[str, Any]]:
        return self.ask("pointsman inbox") if (self.folder / ".pointsman" / "runs").exists() else []

    def close(self) -> None:
        if self._background and self._background.poll() is None:
            self._background.terminate()
            self._background.wait()
        self._log.unlink(missing_ok=True)


def expect(condition: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise StepMissing(what)


def say(title: str) -> None:
    print(f"\n── {title}", flush=True)


def find_task(play: Play, name: str) -> dict[str, Any]:
    return next(task for task in play.ask("pointsman status latest")["tasks"] if task["name"] == name)


# The scenes


def begin(play: Play) -> None:
    say("A project with its own git repository")
    shutil.copytree(HERE, play.folder, ignore=LEFT_BEHIND, dirs_exist_ok=True)
    play.type("git init --quiet --initial-branch main")
    play.type("git config user.name Ada")
    play.type("git config user.email ada@example.org")
    play.type("git add .")
    play.type("git commit --quiet -m 'Show temperatures'")


def answer_the_question(play: Play) -> None:
    say("An agent plans a feature. It asks a person through the tool `ask` of `pointsman mcp`, and ends.")
    play.start("pointsman run feature.yaml")
    play.await_person("plan", "answer", 1)
    shown = play.type("pointsman inbox --list")
    expect("Should Fahrenheit replace Celsius, or stand beside it?" in shown, "the inbox has the question")
    play.type("pointsman answer latest plan beside")


def raise_the_budget(play: Play) -> None:
    say("It plans in the same session. A second agent begins to implement the plan, and spends the budget of the run.")
    play.wait(1)
    expect("(beside)" in find_task(play, "plan")["outputs"], "the plan has the answer")
    shown = play.type("pointsman status latest")
    expect("BUDGET_EXCEEDED" in shown, "status says that the budget is exceeded")
    play.type("pointsman logs latest implement")
    play.type("pointsman budget set latest 2 --as ada --reason 'it is worth it'")


def reject_the_result(play: Play) -> None:
    say("With more money it goes on in the same session, adds two subtasks, and its result waits for a review.")
    play.start("pointsman resume latest implement")
    play.await_person("implement", "review", 2)
    shown = play.type("pointsman status latest")
    expect("implement/code" in shown and "implement/test" in shown, "status has both subtasks")
    shown = play.type("pointsman inbox --list")
    expect('+    return f"{celsius} °C ({celsius * 9 / 5 + 32} °F)"' in shown, "the review shows what a subtask has changed")
    play.type("pointsman reject latest implement --as ada --comment 'One decimal is enough. Please test it.'")


def accept_and_approve(play: Play) -> None:
    say("The agent gets the comment in its session. The next result is accepted, and the merge approved.")
    play.await_person("implement", "review", 3)
    shown = play.type("pointsman inbox --list")
    expect('+    return f"{celsius} °C ({celsius * 9 / 5 + 32:.1f} °F)"' in shown, "the review shows what has changed")
    expect("The reviewer says: One decimal is enough. Please test it." in shown, "the comment has reached the agent")
    play.type("pointsman accept latest implement --as ada")
    play.await_person("ship", "approval", 0)
    play.type("pointsman inbox --list")
    play.type("pointsman approve latest ship --as ben")


def look_back(play: Play) -> None:
    say("The worktree is merged, and every step is recorded.")
    play.wait()
    shown = play.type("pointsman status latest")
    expect("SUCCEEDED  6 of 6 tasks done" in shown, "the run has succeeded with all tasks")
    shown = play.type("pointsman history latest implement")
    for word in ("BUDGET_EXCEEDED", "BLOCKED", "READY", "reject", "accept"):
        expect(word in shown, f"history has {word}")
    play.type("pointsman history latest ship")
    play.type("pointsman logs latest 'implement/code'")
    shown = play.type("git log --oneline --graph")
    expect("Merge feature" in shown, "git has the merge commit")
    expect("°F" in (play.folder / "temperature.py").read_text("utf-8"), "the checkout has the feature")
    play.type("python3 -m unittest --quiet")
    expect("There are no worktrees" in play.type("pointsman worktree"), "the worktree is gone")
    play.type("pointsman validate .state/transitions.jsonl")


SCENES: tuple[Callable[[Play], None], ...] = (
    begin,
    answer_the_question,
    raise_the_budget,
    reject_the_result,
    accept_and_approve,
    look_back,
)


def main(folder: Path) -> int:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    play = Play(folder)
    try:
        for scene in SCENES:
            scene(play)
    except (StepMissing, subprocess.TimeoutExpired) as missing:
        print(f"error: this should be true: {missing}\nThe project is in {folder}.", file=sys.stderr)
        return 1
    finally:
        play.close()
    print(f"""
── What next?

cd {shlex.quote(str(folder))}            # look around: `pointsman status latest`, `pointsman logs latest plan`
docs/how-to/run-coding-agents.md tells how to do the same with a real agent.""")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="pointsman-agents-")).resolve()))
