"""Any division of a log into ranges gives the same pieces, for any bytes."""

import errno
import random
from collections.abc import Sequence
from contextlib import ExitStack
from heapq import heapreplace
from itertools import accumulate
from pathlib import Path

import pytest

from jobs.console.result import Severity
from jobs.store.chain import read_chained
from jobs.store.ranges import (
    Range,
    balance_ranges,
    find_truncated_segments,
    plan_ranges,
    usual_segment_size,
    written_sizes,
)
from jobs.store.store import Segment, list_store
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import encode_record
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece
from rmq_formats.store import file_name_of_offset
from tests.golden import GOLDEN, StoreOf
from tests.rmq_formats.builders import make_record
from tests.support.lakes import ingest_into_own_lake
from tests.support.meanwhile import fail_reads_of_first_segment
from tests.support.stores import log_folders, read_store_records

SEGMENT = 1 << 14


class _Offsets:
    def __init__(self, _range: Range, _files: ExitStack) -> None:
        self._found: list[int] = []

    def add(self, item: RawRecords | Piece) -> None:
        if not isinstance(item, Piece):
            self._found += [item.base_offset + int(position) for position in item.positions]

    def finish(self) -> list[int]:
        return self._found


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_any_division_of_a_real_log_yields_its_records_in_order(name: str, golden: StoreOf) -> None:
    root = golden(name)
    store = list_store(str(root), commitlog=log_folders(root))
    expected = [record.physical_offset for record, _ in read_store_records(root)]

    ranges = plan_ranges(store)
    divisions = [plan_ranges(store, 0, range_size) for range_size in (97, 1000, 5000, 1 << 20)]
    for width in (2, 3, 16):
        cut, sizes = balance_ranges(ranges, written_sizes(ranges), width, min_size=1000)

        assert sum(written_sizes(ranges)) == sum(sizes)
        divisions.append(cut)

    assert len(divisions[-1]) > len(ranges)
    for division in divisions:
        outcomes = read_chained(SerialWorkers(), division, [_Offsets])

        assert expected == [offset for outcome in outcomes for offset in outcome.payload[0]], len(division)


def _log(tmp_path: Path, content: bytes) -> Path:
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    (directory / file_name_of_offset(0)).write_bytes(content)
    return tmp_path / "store"


def _records_as_body(offset: int, body_size: int) -> bytes:
    """Return a body for the record at *offset* that consists of records with their correct physical offsets."""
    inner = len(encode_record(make_record(b"bait")))
    start = offset + 88
    baits = [make_record(b"bait", physical_offset=start + number * inner) for number in range(body_size // inner)]
    return b"".join(map(encode_record, baits)).ljust(body_size, b"\0")


@pytest.mark.parametrize("range_size", [64, 333, 1024, 4096])
def test_records_inside_bodies_are_not_read_as_records(tmp_path: Path, range_size: int) -> None:
    content = b""
    expected = []
    while len(content) < SEGMENT - 2500:
        expected.append(len(content))
        record = make_record(_records_as_body(len(content), 1800), physical_offset=len(content))
        content += encode_record(record)

    store = _log(tmp_path, content.ljust(SEGMENT, b"\0"))
    fooled: list[tuple[list[int]]] = []
    outcomes = read_chained(
        SerialWorkers(), plan_ranges(list_store(str(store)), 0, range_size), [_Offsets], fooled.append
    )

    assert expected == [offset for outcome in outcomes for offset in outcome.payload[0]]
    assert any(offset not in expected for (offsets,) in fooled for offset in offsets)


def _seconds(sizes: Sequence[int], width: int) -> float:
    """Return the end of the last task, if tasks read 128 MiB per second and start in 0.02 s."""
    workers = [0.0] * width
    for size in sizes:
        heapreplace(workers, workers[0] + 0.02 + size / (128 << 20))
    return max(workers)


@pytest.mark.parametrize("width", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("gib", [6, 7, 24, 25, 500])
def test_all_workers_finish_at_about_the_same_time(gib: int, width: int) -> None:
    """With ranges of 256 MiB, 8 of 16 workers were idle during the second wave of a log of 6 GiB."""
    segment = 1 << 30
    ranges = [
        Range(
            file_name_of_offset(base), base, segment, start, start + (256 << 20), starts_anywhere=start > 0, final=True
        )
        for base in range(0, gib * segment, segment)
        for start in range(0, segment, 256 << 20)
    ]
    cut, sizes = balance_ranges(ranges, [range_.size for range_ in ranges], width)

    starts = [0, *accumulate(sizes)][:-1]

    assert [(range_.start_offset, range_.size) for range_ in cut] == list(zip(starts, sizes, strict=True))
    ideal = gib * segment / (128 << 20) / width

    assert _seconds(sizes, width) < ideal * 1.1 + 0.25 + 0.02
    assert len(cut) <= len(ranges) + 12 * width


@pytest.mark.parametrize(
    ("files", "size", "cut"),
    [
        ({0: 32768, 32768: 32768, 65536: 1000}, 32768, [65536]),
        ({0: 32768, 32768: 1000}, 32768, [32768]),
        ({0: 40000, 32768: 40001}, 32768, []),  # overlaps the next file
        ({0: 18746, 32768: 16838}, 32768, [0, 32768]),  # both are truncated: the name is not a multiple of another size
        ({0: 18746, 65536: 16838}, 18746, []),  # the size may be 65,536 or 32,768 bytes
        ({0: 16384, 30000: 16384}, 16384, []),  # a wrong name
        ({0: 40000, 65536: 32768}, 32768, []),  # two sizes are equally frequent, and a name confirms one of them
        ({32768: 1000}, 1000, []),
    ],
)
def test_the_segment_size_is_that_of_most_segments_or_of_all_names(
    files: dict[int, int], size: int, cut: list[int]
) -> None:
    segments = [Segment(file_name_of_offset(base), base, length, base + length) for base, length in files.items()]

    assert usual_segment_size(segments)[0] == size
    assert [one.base_offset for one, _ in find_truncated_segments(segments)] == cut


@pytest.mark.parametrize("body", [random.Random(1).randbytes(10_000), bytes(3 << 20)], ids=["random", "zeros"])
def test_a_dry_run_counts_all_messages_and_not_the_preallocated_rest_of_the_last_segment(
    body: bytes, tmp_path: Path
) -> None:
    first = encode_record(make_record(body))
    data = first + encode_record(make_record(b"last", physical_offset=len(first)))
    store = _log(tmp_path, data + bytes((64 << 20) - len(data)))

    def plan_bytes() -> int:
        plan = ingest_into_own_lake(store, dry_run=True, range_size=16 << 20).plan
        return -1 if plan is None or plan["bytes"] is None else plan["bytes"]

    assert len(data) <= plan_bytes() < len(data) + 4096
    ingest_into_own_lake(store)

    assert plan_bytes() == 0


def test_a_dry_run_reports_what_the_disk_cannot_read(tmp_path: Path) -> None:
    """It printed a larger size, and ended with exit code 0."""
    store = _log(tmp_path, encode_record(make_record(b"one")) + bytes(1 << 20))
    with fail_reads_of_first_segment(errno.EIO, lambda at, _: at >= 1 << 18):
        summary = ingest_into_own_lake(store, dry_run=True)

    assert [f"{store}/commitlog/{0:020}: Input/output error"] == summary.unreadable
    assert summary.severity is Severity.DAMAGE
