"""Where a process begins: `rmq-lake`, spark-submit.sh, and a driver that spark-submit starts on a cluster."""

import sys
from typing import NoReturn

from jobs.command import cli


def main() -> NoReturn:
    """Run the command line of this process."""
    sys.exit(cli.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
