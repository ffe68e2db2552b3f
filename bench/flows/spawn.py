"""The floor: two threads that start the same command again and again, and keep nothing.

    python bench/flows/spawn.py COUNT THREADS COMMAND …

Whatever anybody does beyond that is what keeping track of tasks costs.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def main() -> None:
    count, threads, *command = sys.argv[1:]

    def spawn(_: int) -> None:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)

    with ThreadPoolExecutor(int(threads)) as pool:
        list(pool.map(spawn, range(int(count))))


if __name__ == "__main__":
    main()
