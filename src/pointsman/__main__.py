"""`python -m pointsman` is `pointsman`."""

import sys

from pointsman.cli import main

sys.exit(main())
