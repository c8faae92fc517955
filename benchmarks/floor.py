"""
The floor of an ingest: rows that lie ready in memory are written as `messages` has them, and nothing else is timed.

It neither reads, decodes nor checks. Processes of their own write, one alone or several at once: busy cores share
memory and clock, so each second of theirs does less than a second of one that is alone. Each prepares a range while
nobody's clock runs, waits for the others and writes; their timed parts begin together. Who is done first prepares its
next range, so that no core is idle beside one that still writes.
"""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from benchmarks.measuring import Measured
from jobs.lake.table_file import parquet_writer
from jobs.lake.tables import MESSAGES
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import DEFAULT_RANGE_SIZE, Range, plan_ranges
from jobs.store.store import list_store
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.schema import SCHEMA
from rmq_formats.properties import PropertyParser

_PATIENCE = 600  # seconds that a process waits for the others, of whom one may have failed
_MEETING: list[Barrier] = []  # of a writing process: where it waits for the others


class Written(NamedTuple):
    """One timed write: two readings of the clock that all processes share, and the CPU seconds of its own."""

    began: float
    ended: float
    cpu_s: float


def batches_of(range_: Range) -> Iterator[pa.RecordBatch]:
    """Decode one range."""
    for group in RangeReader(range_).pieces():
        if isinstance(group, Records):
            yield message_batch(group, PropertyParser.SCAN)[0]


def floor(store: Path, size: int, folder: Path, processes: int = 1, as_is: Collection[str] = ()) -> Measured:
    """Write a log of *size* bytes with so many processes at once, the columns *as_is* without a codec."""
    context = get_context("spawn")  # this process has threads and a JVM
    barrier = context.Barrier(processes, timeout=_PATIENCE)
    with ProcessPoolExecutor(processes, context, initializer=_meet_at, initargs=(barrier,)) as pool:
        write_share = partial(_write_share, folder=folder, as_is=as_is)
        rounds = list(zip(*pool.map(write_share, _shares(store, size, processes)), strict=True))
    return Measured(
        wall_s=sum(max(one.ended for one in writes) - min(one.began for one in writes) for writes in rounds),
        cpu_s=sum(one.cpu_s for writes in rounds for one in writes),
    )


def _shares(store: Path, size: int, processes: int) -> list[tuple[Range | None, ...]]:
    """Cut the log so that each process gets as many ranges as the others, and deal them out."""
    rounds = -(-size // (processes * DEFAULT_RANGE_SIZE))
    ranges = plan_ranges(list_store(str(store)), range_size=-(-size // (processes * rounds)))
    return list(zip(*zip_longest(*[iter(ranges)] * processes), strict=True))


def _meet_at(barrier: Barrier) -> None:
    _MEETING.append(barrier)


def _write_share(share: Sequence[Range | None], folder: Path, as_is: Collection[str]) -> list[Written]:
    (barrier,) = _MEETING
    writes: list[Written] = []
    for number, range_ in enumerate(share):
        batches = list(batches_of(range_)) if range_ else []
        path = folder / f"{os.getpid()}-{number}.parquet"
        if not writes:
            _write(batches, path, as_is)  # the first one warms up: it also makes its process's memory
        barrier.wait()
        writes.append(_write(batches, path, as_is))
    return writes


def _write(batches: Sequence[pa.RecordBatch], path: Path, as_is: Collection[str]) -> Written:
    began, cpu = time.perf_counter(), time.process_time()
    if batches:  # a range of a file that is not written to its end may hold nothing
        with parquet_writer(path, SCHEMA, MESSAGES, batches[0].num_rows, as_is) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return Written(began, time.perf_counter(), time.process_time() - cpu)
