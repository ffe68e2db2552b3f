from __future__ import annotations

from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene


@pytest.fixture
def scene(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Scene:
    """An empty project."""
    return Scene(tmp_path, capfd)


@pytest.fixture
def scene_on_postgres(tmp_path: Path, capfd: pytest.CaptureFixture[str], postgres_url: str) -> Scene:
    return Scene(tmp_path, capfd, postgres_url)
