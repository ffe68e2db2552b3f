"""Views are made from engines on a manual clock."""

from __future__ import annotations

from tests.rooms.engine.conftest import clock

__all__ = ["clock"]
