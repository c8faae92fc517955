"""The entry point of a process: `rmq-lake`, spark-submit.sh, `spark-submit jobs/main.py`, and a driver on a cluster."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process."""
    _open_standard_streams()
    _import_from_the_root()
    from jobs.launch.no_pandas import hide_pandas

    hide_pandas()
    from jobs.command import cli

    sys.exit(cli.main(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Open what was closed (`>&-`) as nothing: else the first files of the lake would take these numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - as the others are
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def _import_from_the_root() -> None:
    """
    Make `spark-submit jobs/main.py` import what `python -m jobs.main` does.

    Python puts a script's own directory first, where `inspect` is ours and not the standard library's.
    """
    here = Path(__file__).resolve().parent
    if (here / "command").is_dir():
        sys.path[:] = [
            str(here.parent),
            *(path for path in sys.path if path in {"", "."} or Path(path).resolve() != here),
        ]


if __name__ == "__main__":
    main()
