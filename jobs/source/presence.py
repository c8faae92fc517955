"""
Segments as the executors see them, through Spark's `binaryFile` source.

The driver's listing says what is there; this asks the machines that will read it. Content is pruned: a segment of a
gigabyte does not fit a row, tasks read ranges of it. Paths are explicit and escaped, so that no name is taken for a
pattern.
"""

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobs.source.listing import Segment
from jobs.storage.locations import is_local

_GLOB = re.compile(r"([\[\]{}*?\\])")
_MANY = 64  # paths: beyond, whole directories are listed, which costs one look each


def segment_sizes(spark: SparkSession, segments: Sequence[Segment]) -> Mapping[str, int]:
    """Return the length of each segment that executors can see; of a store elsewhere, there is one view alone."""
    segments = [segment for segment in segments if is_local(segment.location)]
    if not segments:
        return {}
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
        return segment_sizes(spark, left)
    found = files.select("path", "length").toArrow().to_pydict()
    return {_location(path): length for path, length in zip(found["path"], found["length"], strict=True)}


def _location(path: str) -> str:
    """Return the program's spelling of Spark's `path`."""
    return unquote(path.removeprefix("file:")) if path.startswith("file:/") else path


def unseen(segments: Sequence[Segment], sizes: Mapping[str, int]) -> list[Segment]:
    """Return the segments that the driver sees and the executors do not."""
    return [segment for segment in segments if segment.location not in sizes and os.path.exists(segment.location)]  # noqa: PTH110
