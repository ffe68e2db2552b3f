"""Submodules of worktrees.

The submodules of a linked worktree are repositories of their own, which vanish with it. They are made from those of the
repository, without the network, and what was committed there goes back before the worktree is removed.

    REPOSITORY/modules/NAME  ── add_submodules ──▶  WORKTREE/PATH  ── save_submodules ──▶  a branch in REPOSITORY/modules/NAME
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pointsman.worker.git import Git

FROM_FILES = {"protocol.file.allow": "always"}
"""A submodule is cloned from the folder of the same repository."""


@dataclass(frozen=True, slots=True)
class Submodule:
    name: str
    folder: Path
    module: Path
    """The repository that the main checkout uses for it."""

    @property
    def is_used(self) -> bool:
        return (self.folder / ".git").exists()


def list_submodules(folder: Path, repository: Path) -> Iterator[Submodule]:
    """The submodules that .gitmodules of a worktree declares."""
    if not (folder / ".gitmodules").is_file():
        return
    declared = Git(folder).try_("config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$")
    for entry in (declared or "").split("\0"):
        key, found, path = entry.partition("\n")
        if found:
            name = key.removeprefix("submodule.").removesuffix(".path")
            yield Submodule(name, folder / path, repository / "modules" / name)


def add_submodules(folder: Path, repository: Path) -> None:
    """Check out the submodules that the main checkout uses, and theirs."""
    git = Git(folder)
    for submodule in list_submodules(folder, repository):
        if not (submodule.module / "HEAD").is_file():
            continue
        if not submodule.is_used:
            config = {**FROM_FILES, f"submodule.{submodule.name}.url": str(submodule.module)}
            git.ask("submodule", "--quiet", "update", "--init", "--", str(submodule.folder), config=config)
            if origin := Git(submodule.module).try_("config", "remote.origin.url"):
                Git(submodule.folder).run("remote", "set-url", "origin", origin)
        add_submodules(submodule.folder, submodule.module)


def list_used(folder: Path, repository: Path) -> Iterator[Submodule]:
    """All submodules that are checked out, the innermost first."""
    for submodule in list_submodules(folder, repository):
        if submodule.is_used:
            yield from list_used(submodule.folder, submodule.module)
            yield submodule


def save_submodules(folder: Path, repository: Path, branch: str) -> str | None:
    """Keep the commits of all submodules in the repository; the reason if that is impossible."""
    for submodule in list_used(folder, repository):
        head = Git(submodule.folder).commit_of("HEAD")
        if head is None:
            continue
        if not (submodule.module / "HEAD").is_file():
            return f"the submodule {submodule.name} was added there, and the repository has no copy of it"
        module = Git(submodule.module)
        if module.try_("for-each-ref", "--count=1", "--contains", head):
            continue
        target = f"+{head}:refs/heads/{branch}"
        ran = module.run("fetch", "--quiet", "--no-recurse-submodules", str(submodule.folder), target, config=FROM_FILES)
        if ran.code != 0:
            return f"commits of the submodule {submodule.name} cannot be copied: {ran.err.strip()}"
    return None
