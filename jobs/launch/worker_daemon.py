"""
The process that Spark forks its Python workers from, with the modules of their tasks imported once for all of them.

Spark's own daemon imports nothing of ours: each worker then takes a second of its core for the same modules. It leaves
that to them because an import may start threads, which a fork loses. Ours start none on Linux but jemalloc's, which it
replaces itself after a fork.
"""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module

from jobs.console.process import hide_pandas

MODULE = "RMQ_LAKE_WORKER_MODULE"  # the environment variable with the name of the module to import
_READS_LOGS = "rmq_formats.commitlog.scan"
IS_SAFE = sys.platform == "linux"  # elsewhere libraries of the system may not be used after a fork


def prepare() -> None:
    """Import the module that tasks need; an error here is ignored, because the task raises and reports it again."""
    hide_pandas()
    with suppress(Exception):  # the task that needs the module fails with the same error, and reports it
        import_module(os.environ[MODULE])
        if _READS_LOGS in sys.modules:
            _load_compiled()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages that all workers share


def _load_compiled() -> None:
    """Load compiled functions; those that are not compiled yet the driver has compiled before the first task."""
    from rmq_formats import compiled, warm_up

    if not compiled.IS_FIRST_USE:
        warm_up.compile_messages()
        warm_up.compile_queues_and_index()


if __name__ == "__main__":
    from pyspark.daemon import manager

    prepare()
    manager()
