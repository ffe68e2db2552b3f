"""What a user of Prefect would write: a flow whose tasks start the same command, mapped over numbers, in so many threads.

python -P bench/peers/prefect_flow.py COUNT THREADS
"""

from __future__ import annotations

import subprocess
import sys

from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner


@task
def spawn(_: int) -> None:
    subprocess.run(["true"], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def main() -> None:
    count, threads = map(int, sys.argv[1:])

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=threads))
    def many() -> None:
        spawn.map(range(count)).result()

    many()


if __name__ == "__main__":
    main()
