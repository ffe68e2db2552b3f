"""Two short tours: `make run` takes the one of a flow, `make tour` the one of the shipped machines."""

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
        ("A flow is a file with tasks and what they wait for:", f"flow draw {FLOW}", 0),
        ("Run it. One task for each station, and the archive fails at first:", f"run {FLOW}", 0),
        ("How it went, task by task:", "status latest", 0),
        ("What one of them has written:", "logs latest report", 0),
    ),
    "machines": (
        ("Six lifecycles ship with Pointsman:", "machine list", 0),
        ("A lifecycle is verified whenever it is loaded, yours as well as ours:", "machine check", 0),
        (
            "Anything that is declared can be drawn (also as SVG, Mermaid and Markdown):",
            "machine draw orchestrated.workstream --state executing",
            0,
        ),
        ("A log of a system that kept to the rules:", f"validate {shlex.quote(str(HERE / 'transitions.jsonl'))}", 0),
        ("And one of a system that did not:", f"validate {shlex.quote(str(HERE / 'careless.jsonl'))}", 1),
    ),
}
NEXT = {
    "flow": f"""\
source .venv/bin/activate                   # so that `pointsman` is found
pointsman run {FLOW} -i unlucky=9   # break it, and find out why
README.md goes on from here; examples/ has flows that people would really write.""",
    "machines": "README.md has the commands; `pointsman --help` starts from the top (.venv/bin/pointsman here).",
}


def main(tour: str) -> int:
    """Go to every stop; 0 when each ended as it should."""
    pointsman = Path(sys.executable).with_name("pointsman")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for title, command, expected in TOURS[tour]:
        print(f"\n── {title}\n\n$ pointsman {command}", flush=True)
        if subprocess.run([pointsman, *shlex.split(command)], check=False).returncode != expected:
            print(f"error: this should have ended with exit code {expected}", file=sys.stderr)
            return 1
    print(f"\n── What next?\n\n{NEXT[tour]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "flow"))
