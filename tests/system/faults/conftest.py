"""Faults are real ones: processes that are killed, servers that are stopped, disks that are full."""

from __future__ import annotations

from tests.rooms.engine.conftest import clock

__all__ = ["clock"]
