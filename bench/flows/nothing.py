"""A function that does nothing, for tasks that call one."""

from __future__ import annotations


def nothing() -> None:
    pass
