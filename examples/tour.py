"""A short tour, as `make run` shows it: list the shipped machines, check them, draw one, hold two logs against them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from io import TextIOWrapper
from pathlib import Path

HERE = Path(__file__).parent
STOPS = (
    ("Six lifecycles ship with Pointsman:", "machine list", 0),
    ("A lifecycle is verified whenever it is loaded, yours as well as ours:", "machine check", 0),
    (
        "Anything that is declared can be drawn (also as SVG, Mermaid and Markdown):",
        "machine draw orchestrated.workstream --state executing",
        0,
    ),
    ("A log of a system that kept to the rules:", f"validate {shlex.quote(str(HERE / 'transitions.jsonl'))}", 0),
    ("And one of a system that did not:", f"validate {shlex.quote(str(HERE / 'careless.jsonl'))}", 1),
)


def main() -> int:
    """Run every stop; 0 when each ended as it should."""
    pointsman = Path(sys.executable).with_name("pointsman")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for title, command, expected in STOPS:
        print(f"\n── {title}\n\n$ pointsman {command}", flush=True)
        if subprocess.run([pointsman, *shlex.split(command)], check=False).returncode != expected:
            print(f"error: this should have ended with exit code {expected}", file=sys.stderr)
            return 1
    print("\n── What next?\n\nREADME.md has the commands; `pointsman --help` starts from the top (.venv/bin/pointsman here).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
