"""`python -m pipeline.demo`: the same as `tokenweir demo`."""

import argparse
import sys

from pipeline.demo import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pipeline.demo", description="With and without tokenweir.")
    add_arguments(parser)
    try:
        code = run(parser.parse_args())
    except KeyboardInterrupt:  # before the demo listens for it itself
        code = 130
    sys.exit(code)
