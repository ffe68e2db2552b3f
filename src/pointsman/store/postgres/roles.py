"""The roles for programs that are not the owner of the tables."""

from __future__ import annotations

from importlib.resources import files


def read_roles() -> str:
    """SQL that grants `pointsman_app` and `pointsman_read` what they need, and nothing else."""
    return (files(__package__) / "roles.sql").read_text("utf-8")
