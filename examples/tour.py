"""Two short tours: `make run` shows a flow, `make tour` shows the shipped machines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from io import TextIOWrapper
from pathlib import Path

HERE = Path(__file__).parent
FLOW = shlex.quote(os.path.relpath(HERE / "demo.yaml"))
TOURS = {
    "flow": (
        ("A flow is a file with tasks and their dependencies:", f"flow draw {FLOW}", 0),
        ("Run it. Each station gets a subtask, and the archive fails at first:", f"run {FLOW}", 0),
        ("The result of each task:", "status latest", 0),
        ("The output of one task:", "logs latest report", 0),
    ),
    "machines": (
        ("Six lifecycles ship with Pointsman:", "machine list", 0),
        ("Pointsman verifies every lifecycle when it loads it, yours as well as ours:", "machine check", 0),
        (
            "Every machine can be drawn (also as SVG, Mermaid and Markdown):",
            "machine draw orchestrated.workstream --state executing",
            0,
        ),
        ("The log of a system that followed the rules:", f"validate {shlex.quote(str(HERE / 'transitions.jsonl'))}", 0),
        ("The log of a system that did not:", f"validate {shlex.quote(str(HERE / 'careless.jsonl'))}", 1),
    ),
}
NEXT = {
    "flow": f"""\
source .venv/bin/activate                   # puts `pointsman` on your path
pointsman run {FLOW} -i unlucky=9   # make it fail, and find out why
README.md continues from here; examples/ has realistic flows.""",
    "machines": "README.md describes the commands, and `.venv/bin/pointsman --help` lists them.",
}


def main(tour: str) -> int:
    """Run every command of a tour; return 0 if each exits as expected."""
    pointsman = Path(sys.executable).with_name("pointsman")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for title, command, expected in TOURS[tour]:
        print(f"\n── {title}\n\n$ pointsman {command}", flush=True)
        if subprocess.run([pointsman, *shlex.split(command)], check=False).returncode != expected:
            print(f"error: this command should exit with {expected}", file=sys.stderr)
            return 1
    print(f"\n── What next?\n\n{NEXT[tour]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "flow"))
