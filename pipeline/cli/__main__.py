"""`python -m pipeline.cli`: the same as the console script `tokenweir`."""

import sys

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
