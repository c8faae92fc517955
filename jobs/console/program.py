"""The command as this user typed it: each line to paste begins with it."""

import os
import shutil
import sys
from pathlib import Path
from shlex import quote

_TYPED = "RMQ_LAKE_PROGRAM"  # set by spark-submit.sh and the console script of its environment: their own names
CONSOLE_SCRIPT = "rmq-lake"


def program() -> str:
    """
    Return the words that start this tool where this user is.

    `./spark-submit.sh` in a checkout, `rmq-lake` where it is on the path, else the path that was typed; and Spark's own
    `spark-submit jobs/main.py`. Whoever calls this code from Python gets `rmq-lake`.
    """
    typed = os.environ.get(_TYPED) or sys.argv[0]
    path = Path(typed)
    if path.name == CONSOLE_SCRIPT:
        return CONSOLE_SCRIPT if _is_on_path(path) else quote(typed)
    if _TYPED in os.environ:
        return quote(typed)
    if path.parts[-2:] == ("jobs", "main.py"):
        return f"spark-submit {quote(typed)}" if "PYSPARK_GATEWAY_PORT" in os.environ else "python -m jobs.main"
    return CONSOLE_SCRIPT


def _is_on_path(script: Path) -> bool:
    found = shutil.which(CONSOLE_SCRIPT)
    return found is not None and script.exists() and Path(found).samefile(script)
