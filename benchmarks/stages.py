"""
Where the CPU seconds of an ingest go: one process that does ever more of the work on the same log.

    python -m benchmarks.stages [--mib N] [--record-size BYTES] [--runs N] [--compressible] [--folder DIR]
                                [--scratch DIR]

Each stage does what the one before it does, and one thing more; what that costs is the difference. They take turns, and
the best of each one's runs counts. The log is in the page cache. The last stage is a whole run without Spark, its files
and its commit included; what Spark adds is in the results of `benchmarks.ingest`.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.floor import batches_of
from benchmarks.lakes import bring
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range, plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.scan import Records
from rmq_formats.compiled import compiled
from rmq_formats.kernels.integers import Bytes, Integers, number_at

_BUFFER = np.empty(16 << 20, np.uint8)  # as a task has it, which numpy lays on large pages


def read(ranges: Sequence[Range]) -> None:
    """Read every byte once, as a task does."""
    for range_ in ranges:
        with range_.open() as file:
            for at in range(range_.start, range_.end, _BUFFER.size):
                file.read_into(at, _BUFFER.data[: range_.end - at])


def scan(ranges: Sequence[Range]) -> Iterator[Records]:
    """Find the records."""
    for range_ in ranges:
        yield from (item for item in RangeReader(range_).pieces() if isinstance(item, Records))


def check(ranges: Sequence[Range]) -> None:
    """Find the records, and compare their bodies with their checksums."""
    if sum(_count_wrong(records.buffer, records.positions) for records in scan(ranges)):
        raise SystemExit("a body is not what was written")


@compiled
def _count_wrong(buffer: Bytes, positions: Integers) -> int:
    wrong = 0
    for i in range(positions.size):
        wrong += 0 if kernels.has_right_crc(buffer, number_at(positions, i)) else 1
    return wrong


def decode(ranges: Sequence[Range]) -> None:
    """Make all columns of `messages`, which checks bodies too."""
    for range_ in ranges:
        for _ in batches_of(range_):
            pass


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=1024, record_size=1024, runs=5, compressible=False, folder=FOLDER, scratch=Path)
    store = make_store(Recipe(given.mib << 20, given.record_size, compressible=given.compressible), given.folder)
    scratch = (given.scratch or given.folder) / "rocketmq-lake-stages"
    ranges = plan_ranges(list_store(str(store)))
    stages: dict[str, Callable[[], object]] = {
        "reading": lambda: read(ranges),
        "finding records": lambda: sum(records.positions.size for records in scan(ranges)),
        "checking bodies": lambda: check(ranges),
        "making columns": lambda: decode(ranges),
        "writing Parquet, commit": lambda: bring(store, scratch, OneByOne()),
    }
    best = dict.fromkeys(stages, float("inf"))
    for turn in range(given.runs + 1):
        for name, run in stages.items():
            began = time.process_time()
            run()
            if turn:  # the first turn warms up
                best[name] = min(best[name], time.process_time() - began)
    shutil.rmtree(scratch)
    per_gib = {name: seconds / given.mib * 1024 for name, seconds in best.items()}
    result = {"record_size": given.record_size, "mib": given.mib, **_figures(per_gib)}
    answer(result)


def _figures(per_gib: dict[str, float]) -> dict[str, object]:
    """Return what each stage adds, from what each took with all those before it."""
    added = [after - before for before, after in pairwise([0.0, *per_gib.values()])]
    own = dict(zip(per_gib, added, strict=True))
    decoding = per_gib["making columns"] - per_gib["reading"]
    return {
        "core_s_per_gib": {name: round(seconds, 3) for name, seconds in own.items()},
        "core_s_per_gib_of_all": round(per_gib["writing Parquet, commit"], 3),
        "decode_gb_per_core_s": round((1 << 30) / 1e9 / decoding, 2),
        "decode_gb_per_core_s_without_crc": round((1 << 30) / 1e9 / (decoding - own["checking bodies"]), 2),
    }


if __name__ == "__main__":
    main()
