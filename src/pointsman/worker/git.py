"""Git commands: the `git` of the user, with the user's configuration and hooks, called where a worktree needs it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.errors import GitFailed, WorktreeError
from pointsman.worker.processes import Ran, run_to_end

LOCK = "pointsman.lock"
"""In the common folder of a repository: held by whoever adds, merges or removes a worktree."""
LONGEST_OUTPUT = 4_000
LOCAL = frozenset((
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE",
))  # fmt: skip
"""Variables that name another repository: a hook that calls us has them."""
QUIET = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "GIT_MERGE_AUTOEDIT": "no"}
"""Nobody is there to type anything, and what git says is read."""
NOBODY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Pointsman"), ("EMAIL", "pointsman@localhost"))
}
"""The identity of commits where git knows none of the user."""


@dataclass(frozen=True, slots=True)
class Git:
    """Git in one folder."""

    folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, config: Mapping[str, str] | None = None) -> Ran:
        """Run a command to its end, however that is."""
        settings = [word for key, value in (config or {}).items() for word in ("-c", f"{key}={value}")]
        env = {name: value for name, value in os.environ.items() if name not in LOCAL}
        try:
            return run_to_end(("git", *settings, *arguments), cwd=self.folder, env={**env, **QUIET, **self.extra})
        except FileNotFoundError:
            if self.folder.is_dir():
                raise WorktreeError("There is no program `git`, which worktrees need. Install git.") from None
            raise WorktreeError(f"There is no folder {self.folder}.") from None
        except OSError as error:
            raise GitFailed(f"Cannot run git in {self.folder}: {error.strerror}.") from None

    def ask(self, *arguments: str, config: Mapping[str, str] | None = None) -> str:
        """What a command answers; GitFailed if it fails."""
        ran = self.run(*arguments, config=config)
        if ran.code != 0:
            said = shorten(ran.err or ran.out)
            raise GitFailed(f"`git {' '.join(arguments[:3])}` failed in {self.folder}: {said or f'exit code {ran.code}'}", said)
        return ran.out.rstrip("\n")

    def try_(self, *arguments: str) -> str | None:
        """What a command answers; None if it fails."""
        ran = self.run(*arguments)
        return ran.out.rstrip("\n") if ran.code == 0 else None

    def holds(self, *arguments: str) -> bool:
        return self.run(*arguments).code == 0

    def commit_of(self, name: str) -> str | None:
        """The commit that a revision stands for."""
        return self.try_("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    def tip_of(self, branch: str) -> str | None:
        return self.commit_of(f"refs/heads/{branch}")

    def has_ancestor(self, commit: str, ancestor: str) -> bool:
        return self.holds("merge-base", "--is-ancestor", ancestor, commit)

    def list_z(self, *arguments: str) -> list[str]:
        """The parts of an answer that NUL separates."""
        return [part for part in self.ask(*arguments).split("\0") if part]

    def named(self) -> Git:
        """The same with an identity for commits: the user's, or ours if git knows none."""
        known = self.holds("var", "GIT_COMMITTER_IDENT") and self.holds("var", "GIT_AUTHOR_IDENT")
        return self if known else Git(self.folder, {**self.extra, **NOBODY})

    def signing(self) -> tuple[str, ...]:
        """The option of plumbing commands that signs a commit, where the user wants that."""
        return ("-S",) if self.try_("config", "--bool", "commit.gpgSign") == "true" else ()


@contextmanager
def locked(repository: Path) -> Iterator[None]:
    """One at a time for each repository, on this machine; the lock ends with the process that holds it."""
    descriptor = os.open(repository / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def readable(text: str) -> str:
    """A path, or what a command said: bytes that are no UTF-8 cannot be stored or printed."""
    return text.encode("utf-8", "replace").decode()


def shorten(text: str) -> str:
    """The end of what a command said, as text that can be stored."""
    text = readable(text).replace("\0", "�").strip()
    return text if len(text) <= LONGEST_OUTPUT else f"…{text[-LONGEST_OUTPUT:]}"
