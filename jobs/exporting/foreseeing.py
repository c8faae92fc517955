"""What an export would read, as Spark plans it: names, sizes and statistics are looked at, and no message."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame

from jobs.datasource import RangePartition
from jobs.lake.commit import open_table
from jobs.lake.reading import files
from jobs.lake.tables import MESSAGES
from jobs.source.listing import list_store
from jobs.source.planning import Range
from jobs.storage.locations import normalise

_SCAN = "BatchScanExec"  # how Spark calls the reading of a data source


class Reading(NamedTuple):
    """Of how many files, and bytes, how many may hold what is wanted."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int


def reading_of_lake(chosen: DataFrame, lake: str, options: Mapping[str, str]) -> Reading:
    """Return what is read of a lake's messages; files whose statistics forbid a hit are not."""
    snapshot = open_table(normalise(lake), MESSAGES.name, options)
    stored = files(snapshot) if snapshot is not None else []
    names = {_name(path) for path in chosen.inputFiles()}
    return _reading([file.size for file in stored if _name(file.path) in names], [file.size for file in stored])


def reading_of_store(chosen: DataFrame, store: str, commitlog: Sequence[str], options: Mapping[str, str]) -> Reading:
    """Return what is read of a store's log; segments before or behind what is wanted are not."""
    segments = list_store(store, commitlog=commitlog, options=options).segments
    ranges = list(_ranges(chosen))
    read = _reading([range_.end - range_.start for range_ in ranges], [segment.readable for segment in segments])
    return read._replace(files=len({range_.location for range_ in ranges}))


def _ranges(chosen: DataFrame) -> Iterator[Range]:
    """Yield the ranges that the data source has planned for the tasks, taken out of Spark's plan."""
    leaves = chosen._jdf.queryExecution().sparkPlan().collectLeaves()  # noqa: SLF001 - there is no other way to a plan
    for leaf in map(leaves.apply, range(leaves.size())):
        if leaf.getClass().getSimpleName() == _SCAN:
            parts = leaf.inputPartitions()
            for number in range(parts.size()):
                planned: RangePartition = pickle.loads(parts.apply(number).pickedPartition())  # noqa: S301 - our own
                yield planned.range


def _reading(read: Sequence[int], there: Sequence[int]) -> Reading:
    return Reading(len(read), len(there), sum(read), sum(there))


def _name(path: str) -> str:
    return path.rpartition("/")[2]
