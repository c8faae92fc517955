"""
Compile the scans once, before workers of pytest start: `python -m tests.support.warm`. Does nothing where that is done.

Each worker would compile them for itself, half a minute each. Two processes compile what different commands use.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rmq_formats.compiled import IS_FIRST_USE
from tests.golden import unpack

_COMMANDS = (("ingest", "--lake"), ("rebuild-consumequeue", "--out"), ("rebuild-index", "--out"))


def main() -> int:
    with TemporaryDirectory() as folder:
        store = unpack("b551-types", Path(folder))
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "jobs.main", verb, str(store), option, f"{folder}/{verb}", "--engine", "here"],
                stdout=subprocess.DEVNULL,
            )
            for verb, option in _COMMANDS
        ]
        return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main() if IS_FIRST_USE else 0)
