"""Inspect a store: heads and tails of its files, or with `--deep` the whole log; without Spark and numba."""

from jobs.inspect.report import (
    IndexReport,
    LogReport,
    Problem,
    Problems,
    QueueReport,
    QueuesReport,
    RocksReport,
    SegmentReport,
    StateReport,
    StoreReport,
)

__all__ = [
    "IndexReport",
    "LogReport",
    "Problem",
    "Problems",
    "QueueReport",
    "QueuesReport",
    "RocksReport",
    "SegmentReport",
    "StateReport",
    "StoreReport",
]
