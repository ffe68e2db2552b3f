"""Whether a Python function exists, found out without running any code of the user.

The standard library is imported. Other modules are only parsed: a function that such a module may define while it is executed
counts as existing, and so does everything in a module that is not on this machine.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from pointsman.errors import nearest

_NOISY = frozenset(("this", "antigravity", "idlelib", "turtle", "turtledemo"))
"""Modules of the standard library that do something when they are imported."""


def explain_missing(function: str, folders: Sequence[Path]) -> tuple[str, str] | None:
    """What is missing of `module:function`, and advice. Modules are looked for in the folders first."""
    module, _, path = function.partition(":")
    first = path.partition(".")[0]
    found = [file for folder in folders if (file := _find_source(module, [str(folder)]))]
    if not found and module.partition(".")[0] in sys.stdlib_module_names - _NOISY:
        return _explain_standard(module, path)
    if not found and (installed := _find_source(module, sys.path)):
        found = [installed]
    names: set[str] = set()
    for file in found:
        defined = _list_names(file, file.stat().st_mtime_ns)
        if defined is None:
            return None
        names |= defined
    return _without(module, first, names) if found and first not in names else None


def _without(owner: str, name: str, names: Collection[str]) -> tuple[str, str]:
    meant = nearest(name, names)
    return f"{owner} has no '{name}'.", f"Did you mean {' or '.join(meant)}?" if meant else "Name a function that it has."


def _explain_standard(module: str, path: str) -> tuple[str, str] | None:
    try:
        owner: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return f"There is no module '{error.name}'.", "Name a module that exists."
    except ImportError:  # a part of the standard library that this Python was built without
        return None
    shown = module
    for name in path.split("."):
        if not hasattr(owner, name):
            return _without(shown, name, dir(owner))
        owner, shown = getattr(owner, name), f"{shown}.{name}"
    return None if callable(owner) else (f"{shown} is not a function.", "Name a function.")


def _find_source(module: str, places: Sequence[str] | None) -> Path | None:
    """The file of a module; None where there is none, or where it is not Python."""
    name, file = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            return None
        file, places = spec.origin, spec.submodule_search_locations
    return Path(file) if file and file.endswith(".py") else None


@lru_cache
def _list_names(file: Path, _changed_at: int) -> frozenset[str] | None:
    """The names that a module defines; None if it may define others when it is executed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    names = frozenset(name for statement in tree.body for name in _names_in(statement))
    return None if names & {"*", "__getattr__"} else names


def _names_in(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds, in whatever branch."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    else:
        yield from _names_below(statement)
    for node in ast.walk(statement):
        match node:
            case ast.Global(names=names):
                yield from names
            case ast.Call(func=ast.Name(id="globals" | "exec")):
                yield "*"


def _names_below(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        match node:
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Call(func=ast.Name(id="setattr" | "vars" | "locals")):
                yield "*"
