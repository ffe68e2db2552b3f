"""Pointsman: a durable orchestrator in which everything moves only along declared transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["__version__", "load_lifecycle", "load_machine"]

if TYPE_CHECKING:
    from pointsman.lifecycles import load_lifecycle, load_machine


def __getattr__(name: str) -> object:
    """Load on first use, so that `pointsman --help` does not pay for what it does not need."""
    if name in ("load_lifecycle", "load_machine"):
        from pointsman import lifecycles

        return getattr(lifecycles, name)
    raise AttributeError(f"module 'pointsman' has no attribute '{name}'")
