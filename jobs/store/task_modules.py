"""The modules of tasks, which a process imports before it forks its workers."""

import copyreg
import gc
import sys
from contextlib import suppress
from importlib import import_module
from types import MappingProxyType

from jobs.console.process import hide_pandas
from rmq_formats.warm_up import load_compiled_parts

# They import everything that the other tasks need from other libraries as well.
_TASK_MODULES = ("jobs.products.messages", "jobs.products.queues.product", "jobs.products.index.product")


def _make_read_only(values: dict[object, object]) -> MappingProxyType[object, object]:
    return MappingProxyType(values)


# Default values of settings, which tasks and results contain.
copyreg.pickle(MappingProxyType, lambda proxy: (_make_read_only, (dict(proxy),)))


def list_imported_task_modules() -> list[str]:
    """Return the names of the modules that this command has imported and that the tasks of its later phases need."""
    names = list(sys.modules)  # in one step, because tasks in threads import modules
    return [name for name in names if name.startswith("jobs.products.")]


def import_task_modules(*modules: str) -> None:
    """
    Import *modules* of tasks, or all, and load their compiled functions.

    Otherwise each worker would spend a second of CPU time on the same imports, and keep a separate copy in memory. An
    import may start threads, which are lost in a fork. On Linux, these imports start none except jemalloc's, which it
    restarts itself after a fork.
    """
    hide_pandas()
    with suppress(Exception):  # the task that needs the module fails with the same error, and reports it
        for module in modules or _TASK_MODULES:
            import_module(module)
        load_compiled_parts()  # the driver has compiled those that are needed
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages that all workers share
