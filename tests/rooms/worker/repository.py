"""Git repositories for tests: real ones, with an identity of their own, that know nothing of the user's configuration."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pointsman.worker.worktrees import Place, Worktree, enter

ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}


@dataclass(frozen=True)
class Repository:
    folder: Path

    def git(self, *words: str) -> str:
        ended = subprocess.run(
            ["git", *words], cwd=self.folder, env={**os.environ, **ALONE}, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (words, ended.stderr)
        return ended.stdout.rstrip("\n")

    def commit(self, **files: str) -> str:
        """Commit files, named without their suffix; the commit."""
        for name, text in files.items():
            (self.folder / f"{name}.txt").write_text(text)
            self.git("add", f"{name}.txt")
        self.git("commit", "--quiet", "--message", " and ".join(files))
        return self.git("rev-parse", "HEAD")

    def show(self, name: str, at: str = "main") -> str:
        return self.git("show", f"{at}:{name}.txt")

    def subjects(self, at: str = "main") -> list[str]:
        return self.git("log", "--first-parent", "--format=%s", at).splitlines()

    def branches(self) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()

    def hook(self, name: str, script: str) -> None:
        path = Path(self.git("rev-parse", "--path-format=absolute", "--git-path", f"hooks/{name}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def enter(self, task: str | None = None, run_id: str = "run_1", **keys: str) -> Worktree:
        """A worktree as a worker makes it."""
        fields = {"directory": str(self.folder), "run_id": run_id, "title": "fix", "task": task, **keys}
        return enter(Place(**fields))  # type: ignore[arg-type]


def make_repository(folder: Path, *options: str) -> Repository:
    """With one commit: a.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    repository = Repository(folder)
    repository.git("init", "--quiet", "--initial-branch", "main", *options)
    repository.git("config", "user.name", "Ada")
    repository.git("config", "user.email", "ada@example.org")
    if "--bare" not in options:
        (folder / ".gitignore").write_text(".pointsman/\n.state/\nstate.db*\n*.yaml\n")
        repository.git("add", ".gitignore")
        repository.commit(a="one\n")
    return repository


def inside(worktree: Worktree) -> Repository:
    return Repository(worktree.folder)
