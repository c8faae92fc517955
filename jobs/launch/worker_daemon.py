"""
The process from which Spark forks its Python workers, with the modules of tasks imported in advance.

Spark's own daemon imports none of our modules, so each worker spends a second of CPU on the same imports. Spark leaves
imports to the workers because an import may start threads, which are lost in a fork. On Linux, our imports start none
except jemalloc's, which it restarts itself after a fork.
"""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module

from jobs.console.process import hide_pandas

MODULE_VARIABLE = "RMQ_LAKE_WORKER_MODULE"  # the environment variable with the name of the module to import
_READS_LOGS = "rmq_formats.commitlog.scan"
IS_SAFE = sys.platform == "linux"  # elsewhere libraries of the system may not be used after a fork


def import_task_module() -> None:
    """Import the module of the tasks, and load compiled functions; errors are left to the task, which reports them."""
    hide_pandas()
    with suppress(Exception):  # the task that needs the module fails with the same error, and reports it
        import_module(os.environ[MODULE_VARIABLE])
        if _READS_LOGS in sys.modules:
            from rmq_formats import compiled, warm_up

            if not compiled.CACHE_WAS_EMPTY:  # else the driver compiles before the first task
                warm_up.compile_messages()
                warm_up.compile_queues_and_index()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages that all workers share


if __name__ == "__main__":
    from pyspark.daemon import manager

    import_task_module()
    manager()
