"""
The process from which Spark forks its Python workers on this machine, with the modules of tasks imported in advance.

Spark's own daemon imports none of our modules, and leaves imports to the workers. It also uses the sources of pyspark
in a ZIP: compiling them takes half a second of CPU time, and each worker reads the table of that ZIP many times.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def use_installed_pyspark() -> None:
    """Remove Spark's ZIP files from the path of modules, unless pyspark is not installed."""
    before = [*sys.path]
    archives = Path(os.environ["SPARK_HOME"], "python", "lib")
    sys.path[:] = [entry for entry in before if Path(entry).parent != archives]
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = before


def run_daemon() -> None:
    """Fork workers for the JVM that has started this process, until the JVM ends."""
    use_installed_pyspark()
    from pyspark.daemon import manager

    from jobs.store.task_modules import import_task_modules

    import_module("jobs.store.spark_workers")
    import_task_modules()
    manager()


if __name__ == "__main__":
    run_daemon()
