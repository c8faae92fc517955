"""
Segments as the executors see them, through Spark's `binaryFile` source.

The driver's listing says what is there; this asks the machines that will read it. Content is pruned: a segment of a
gigabyte does not fit a row, tasks read ranges of it. Paths are explicit and escaped, so that no name is taken for a
pattern.
"""

import os
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobs.storage.locations import is_local
from jobs.store.store import Segment

_GLOB = re.compile(r"([\[\]{}*?\\])")
_MANY = 64  # paths: beyond, whole directories are listed, which costs one look each


def seen_by_executors(spark: SparkSession, segments: Sequence[Segment]) -> set[str]:
    """Return the locations of segments that executors can see; of a store elsewhere, there is one view alone."""
    segments = [segment for segment in segments if is_local(segment.location)]
    if not segments:
        return set()
    locations = [segment.location for segment in segments]
    if len(locations) > _MANY:
        locations = sorted({location.rpartition("/")[0] for location in locations})
    try:
        paths = [_GLOB.sub(r"\\\1", location) for location in locations]
        # A segment may be deleted between Spark's own listing and its look at the file.
        files = spark.read.format("binaryFile").option("ignoreMissingFiles", "true").load(paths)
    except AnalysisException as error:
        # Retention may have deleted the oldest segments since the driver listed them.
        left = [segment for segment in segments if os.path.exists(segment.location)]  # noqa: PTH110 - str is what we have
        if error.getCondition() != "PATH_NOT_FOUND" or len(left) == len(segments):
            raise
        return seen_by_executors(spark, left)
    # What Spark itself has listed is enough where it is one process: the first query of a session takes seconds.
    if is_one_process(spark):
        return {_location(unquote(path)) for path in files.inputFiles()}
    return {_location(path) for path in files.select("path").toArrow()["path"].to_pylist()}


def is_one_process(spark: SparkSession) -> bool:
    """Return whether executors are in the driver's own process."""
    return re.match(r"local(\[|$)", spark.sparkContext.master or "") is not None


def _location(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:/") else path


def unseen(segments: Sequence[Segment], seen: AbstractSet[str]) -> list[Segment]:
    """Return the segments that the driver sees and the executors do not."""
    return [segment for segment in segments if segment.location not in seen and os.path.exists(segment.location)]  # noqa: PTH110
