"""From a command line to a running verb: Python, Java, Delta's JARs and Spark's options, prepared once, then fast."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process."""
    from jobs import cli

    sys.exit(cli.main(sys.argv[1:]))
