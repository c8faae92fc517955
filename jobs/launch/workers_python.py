"""The Python of a cluster's workers: whether it has the packages that our tasks import, and the remedies."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark import SparkContext

from jobs.launch.errors import SetupError

_IMPORTED = ("click", "deltalake", "numba", "numpy", "pyarrow")  # what tasks import of what pyproject.toml names


class Lack(NamedTuple):
    """The modules that one worker's Python lacks."""

    host: str
    python: str
    modules: tuple[str, ...]

    def __str__(self) -> str:
        return f"worker {self.host}: its Python, {self.python}, has no {', '.join(self.modules)}. {remedies()}"


def remedies() -> str:
    """Return the two ways to give workers a Python with packages, to be pasted."""
    return (
        "Name one that has them, before the verb: --conf spark.pyspark.python=PATH; or pack this environment with "
        "venv-pack2, and add, before the verb: --archives environment.tar.gz#environment "
        "--conf spark.pyspark.python=./environment/bin/python"
    )


def lacks(context: SparkContext, modules: Sequence[str] = _IMPORTED) -> list[Lack]:
    """Return the modules that workers lack, by one small task a core, which needs none of them."""

    def look(part: Iterable[int]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        import socket
        import sys
        from importlib.util import find_spec

        del part
        missing = tuple(name for name in modules if find_spec(name) is None)
        if missing:
            yield socket.gethostname(), sys.executable, missing

    count = max(context.defaultParallelism, 1)
    found = context.parallelize(range(count), count).mapPartitions(look).collect()
    return [Lack(*some) for some in sorted(set(found))]


def check(context: SparkContext) -> None:
    """Refuse to begin where a worker's Python could not do any task: a run would fail a minute later, in its words."""
    found = lacks(context)
    if found:
        raise SetupError(str(found[0]))
