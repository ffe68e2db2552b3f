"""How often one command reads the files of its user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pointsman import lifecycles

COUNTER = """\
import os, sys
_log = os.open(os.environ["READS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def _hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        os.write(_log, f"{os.path.abspath(arguments[0])}\\n".encode())
sys.addaudithook(_hook)
"""


def test_a_run_reads_its_flow_its_lifecycle_and_each_settings_file_once(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(COUNTER)
    project = tmp_path / "project"
    project.mkdir()
    own = Path(lifecycles.__file__).with_name("standard.yaml").read_text("utf-8")
    (project / "own.yaml").write_text(own.replace("lifecycle: standard", "lifecycle: own"))
    (project / "flow.yaml").write_text("name: x\nlifecycle: own.yaml\ntimeout: 1m\ntasks: {a: {command: [one], tool: echo}}\n")
    (project / "pointsman.toml").write_text('slots = 2\n[tools.echo]\ncommand = ["echo"]\n')
    (project / "pyproject.toml").write_text('[tool.pointsman]\nlease_seconds = "20s"\n')
    reads = tmp_path / "reads"
    result = subprocess.run(
        [sys.executable, "-m", "pointsman", "run", "flow.yaml"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "hook"), "READS": str(reads)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    counts = Counter(Path(line).name for line in reads.read_text().splitlines() if Path(line).parent == project)
    assert {name: counts[name] for name in ("flow.yaml", "own.yaml", "pointsman.toml", "pyproject.toml")} == {
        "flow.yaml": 1,
        "own.yaml": 1,
        "pointsman.toml": 1,
        "pyproject.toml": 1,
    }
