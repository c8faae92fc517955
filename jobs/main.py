"""What spark-submit runs where the driver itself runs on the cluster (`--deploy-mode cluster`)."""

import sys

from jobs import cli

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
