"""`python -m pipeline.sandbox`: the sandbox alone, in a process of its own."""

import argparse
import sys

from pipeline.sandbox.arguments import add_arguments, settings_from
from pipeline.sandbox.server import run


def main() -> int:
    """Serve as the command line says; exit code 2 when it can't be understood."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.sandbox", description="Simulated model servers.")
    add_arguments(parser)
    args = parser.parse_args()
    try:
        settings = settings_from(args)
    except ValueError as error:
        parser.error(str(error))
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
