"""A store as a data source of Spark: all of it in a batch, or new messages in micro-batches."""

from jobs.source.options import FORMAT_NAME, NO_READ_BOUNDS, ReadOptions

__all__ = [
    "FORMAT_NAME",
    "NO_READ_BOUNDS",
    "ReadOptions",
]
