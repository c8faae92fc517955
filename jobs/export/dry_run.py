"""What an export would read, as Spark plans it: names, sizes and statistics are looked at, and no message."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pyspark.sql import DataFrame

from jobs.export.datasource import planned_in
from jobs.lake.commit import open_table
from jobs.lake.snapshot_files import files
from jobs.lake.tables import MESSAGES
from jobs.storage.locations import normalise
from jobs.store.listing import list_store


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


def reading_of_store(
    chosen: Callable[[str], DataFrame], store: str, commitlog: Sequence[str], options: Mapping[str, str]
) -> Reading:
    """
    Return what is read of a store's log; segments before or behind what is wanted are not.

    *chosen* makes the frame, with the file that the data source shall write its plan to.
    """
    segments = list_store(store, commitlog=commitlog, options=options).segments
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        chosen(str(plan)).rdd.getNumPartitions()  # has Spark plan, and start nothing
        planned = planned_in(plan)
    read = _reading([part.end - part.start for part in planned], [segment.readable for segment in segments])
    return read._replace(files=len({part.location for part in planned}))


def _reading(read: Sequence[int], there: Sequence[int]) -> Reading:
    return Reading(len(read), len(there), sum(read), sum(there))


def _name(path: str) -> str:
    return path.rpartition("/")[2]
