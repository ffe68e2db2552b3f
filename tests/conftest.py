"""What holds for all tests: machines are shared and noisy, so no example fails for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pointsman", deadline=None)
settings.load_profile("pointsman")
