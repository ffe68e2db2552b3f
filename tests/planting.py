"""Plant bugs: change a few characters of the engine or of its SQL while they are loaded.

The process must not have imported the engine yet. The old text must occur exactly once. So when you rewrite that code, you must
move its bugs too, or planting fails.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Patch:
    place: str
    """A module (`engine.claims`), a query of a store (`sqlite:release_dependents`), or its migrations (`sqlite:schema`)."""
    old: str
    new: str

    @property
    def module(self) -> str:
        """The module that must be loaded for the change to take effect."""
        store, is_sql, _ = self.place.partition(":")
        return f"pointsman.store.{store}.store" if is_sql else f"pointsman.{self.place}"

    def apply(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise LookupError(f"{self.place}: found {text.count(self.old)} times instead of once: {self.old!r}")
        return text.replace(self.old, self.new)


def plant(*patches: Patch) -> None:
    """Import the engine with these changes."""
    loaded = [patch.module for patch in patches if patch.module in sys.modules]
    if loaded:
        raise LookupError(f"{loaded} were imported before the bug could be planted")
    sys.meta_path.insert(0, _Finder([patch for patch in patches if ":" not in patch.place]))
    _patch_scripts({patch.place: patch for patch in patches if ":" in patch.place})
    for patch in patches:
        importlib.import_module(patch.module)


def _patch_scripts(patches: dict[str, Patch]) -> None:
    """Stores read their SQL when they are loaded, and their schema when they migrate. Change both texts."""
    from pointsman.store import scripts

    read_queries, read_migrations = scripts.read_queries, scripts.read_migrations

    def read_changed_queries(package: str) -> dict[str, str]:
        store = package.rpartition(".")[-1]
        return {name: _apply(patches.get(f"{store}:{name}"), text) for name, text in read_queries(package).items()}

    def read_changed_migrations(package: str) -> list[scripts.Migration]:
        migrations = read_migrations(package)
        patch = patches.get(f"{package.rpartition('.')[-1]}:schema")
        if patch is None:
            return migrations
        # What an early migration lays, a later one may have laid anew: the last one counts.
        patch.apply(next((each.sql for each in reversed(migrations) if patch.old in each.sql), ""))
        return [migration._replace(sql=migration.sql.replace(patch.old, patch.new)) for migration in migrations]

    vars(scripts).update(read_queries=read_changed_queries, read_migrations=read_changed_migrations)


def _apply(patch: Patch | None, text: str) -> str:
    return patch.apply(text) if patch else text


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules to patch, and loads them with the changed text."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = {patch.module: patch for patch in patches}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.get(fullname)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec
        assert spec.origin
        spec.loader = _Loader(fullname, spec.origin, patch)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, patch: Patch) -> None:
        super().__init__(fullname, path)
        self._patch = patch

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compile the patched text, and never use a cache."""
        return compile(self._patch.apply(Path(self.get_filename(fullname)).read_text("utf-8")), self.path, "exec")
