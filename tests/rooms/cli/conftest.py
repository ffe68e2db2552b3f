from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene


@pytest.fixture
def scene(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    """An empty project."""
    import os

    if os.environ.get("VIA_SERVER"):
        from tests.system.server.harness import start

        url = f"sqlite:///{tmp_path}/.pointsman/state.db"
        import tempfile

        with tempfile.TemporaryDirectory() as f, start("serve", Path(f), url) as (client, _):
            yield Scene(tmp_path, capfd, url, client.url)
        return
    yield Scene(tmp_path, capfd)


@pytest.fixture
def scene_on_postgres(tmp_path: Path, capfd: pytest.CaptureFixture[str], postgres_url: str) -> Scene:
    return Scene(tmp_path, capfd, postgres_url)
