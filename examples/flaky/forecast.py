"""A service that fails at first. build/failures contains the number of calls that fail."""

import argparse
import fcntl
import json
import sys
from pathlib import Path

FAILURES = Path("build/failures")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--city", required=True)
    city = parser.parse_args().city
    with FAILURES.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # calls run at the same time
        left = int(file.read())
        file.seek(0)
        file.truncate()
        file.write(str(max(left - 1, 0)))
    if left > 0:
        print("503 Service Unavailable", file=sys.stderr)
        return 22
    print(json.dumps({"city": city, "celsius": 4 + len(city)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
