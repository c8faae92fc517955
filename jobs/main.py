"""The entry point for `rmq-lake`, spark-submit.sh, `spark-submit jobs/main.py`, and a driver on a cluster."""

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Run the command line of this process."""
    _import_from_the_root()
    has_default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if has_default_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback of the imports
    from jobs.console.process import exit_process, hide_pandas, prepare_standard_streams, save_address_space

    save_address_space()
    # This program computes no matrices, and worker processes can only be forked quickly without other threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    prepare_standard_streams()
    os.environ.setdefault("RUST_LOG", "error")  # else `deltalake` also writes warnings of Amazon's client to stderr
    hide_pandas()
    from jobs.command_line import cli

    if has_default_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_process(cli.main(sys.argv[1:]))


def _import_from_the_root() -> None:
    """
    Give `spark-submit jobs/main.py` the same import path as `python -m jobs.main`.

    Python puts a script's own directory first, in which `inspect` is our package and not the standard library's.
    """
    here = Path(__file__).resolve().parent
    if (here / "inspect").is_dir():
        sys.path[:] = [
            str(here.parent),
            *(path for path in sys.path if path in {"", "."} or Path(path).resolve() != here),
        ]


if __name__ == "__main__":
    main()
