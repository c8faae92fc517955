"""
Ranges of the log that earlier runs found missing or damaged, and that a store may have again after a repair.

A range is filled by segment. A part of a segment is read if the store is the one that the lake knows, the part begins
with a record, and the records next to it are those of the lake: their offsets, sizes and checksums. The run that reads
it accepts it only if its records form a chain up to its end. Bytes that are still damaged are quarantined again.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow.dataset as ds

from jobs.lake.commit import read_rows
from jobs.lake.identity import read_first_record
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore, read_gaps_and_filled
from jobs.lake.manifest import OPEN_RANGES_KEY
from jobs.lake.tables import MESSAGES, QUARANTINE, RECORD_CRC
from jobs.products.log_pieces import ENTRY_HEADER_SIZE
from jobs.store.intervals import Interval, merge_intervals, subtract_intervals
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import Store
from rmq_formats.commitlog.record import decode_record
from rmq_formats.errors import FormatError, is_disk_error

_HEADERS = (0, ENTRY_HEADER_SIZE)  # a record of DLedger follows the header of its entry
MAX_OPEN_RANGES = 4096  # that a manifest keeps; more are read from the tables


class Part(NamedTuple):
    """The part of an open range that is in one segment."""

    start: int
    end: int
    range: Range


def list_open_ranges(lake: Lake, lake_store: LakeStore) -> list[Interval]:
    """Return the ranges before the watermark that runs found missing or damaged, and that no run has filled."""
    assert lake_store.newest_manifest is not None
    stored = lake_store.newest_manifest.state.get(OPEN_RANGES_KEY)
    if isinstance(stored, list | tuple):
        found = [(int(start), int(end)) for start, end in stored]
    else:
        gaps, filled = read_gaps_and_filled(lake, lake_store)
        found = subtract_intervals(((gap["from"], gap["to"]) for gap in gaps), filled)
        found += _read_quarantined(lake, lake_store)
    expired = [(0, lake_store.expiry.to_offset)] if lake_store.expiry is not None else []
    return merge_intervals(
        (start, min(end, lake_store.newest_manifest.to_offset)) for start, end in subtract_intervals(found, expired)
    )


def _read_quarantined(lake: Lake, lake_store: LakeStore) -> list[Interval]:
    rows = read_rows(lake, QUARANTINE.name, ("physical_offset", "length"), ds.field("store_id") == lake_store.store_id)
    return [(start, start + length) for start, length in rows if start is not None and length is not None]


def count_quarantined(lake: Lake, lake_store: LakeStore, ranges: Sequence[Interval]) -> int:
    """Return the number of damaged ranges of a store that begin in these ranges."""
    damaged = _read_quarantined(lake, lake_store)
    return sum(any(start <= begin < end for start, end in ranges) for begin, _ in damaged)


def find_sound_parts(lake: Lake, lake_store: LakeStore, store: Store, ranges: Sequence[Interval]) -> Iterator[Part]:
    """Yield the parts of *ranges* that the store seems to have, by segment."""
    planned = plan_ranges(store, 0, WHOLE_SEGMENTS)
    for start, end in ranges:
        for whole in planned:
            begin, stop = max(start, whole.start_offset), min(end, whole.end_offset)
            if begin >= stop:
                continue
            part = replace(
                whole, start=begin - whole.base_offset, end=stop - whole.base_offset, final=True, starts_anywhere=False
            )
            try:
                if _begins_with_record(part) and _agrees_with_lake(lake, lake_store, store, part):
                    yield Part(begin, stop, part)
            except FileNotFoundError:  # retention has deleted the segment meanwhile
                continue
            except OSError as error:  # still unreadable
                if not is_disk_error(error):
                    raise


def _begins_with_record(part: Range) -> bool:
    first = read_first_record(part)
    return first is not None and bool(first.values) and first.fingerprint.offset - part.start_offset in _HEADERS


def _agrees_with_lake(lake: Lake, lake_store: LakeStore, store: Store, part: Range) -> bool:
    """Return whether the records before and after a part, in its segment, are those of the lake."""
    offset = ds.field("physical_offset")
    segment_end = part.base_offset + part.segment_size
    here = (ds.field("store_id") == lake_store.store_id) & (offset >= part.base_offset) & (offset < segment_end)
    rows = sorted(read_rows(lake, MESSAGES.name, ("physical_offset", "total_size", "body_crc", RECORD_CRC), here))
    before = [row for row in rows if row[0] < part.start_offset][-1:]
    after = [row for row in rows if row[0] >= part.end_offset][:1]
    return all(_has_record(store, *row) for row in (*before, *after))


def _has_record(store: Store, offset: int, size: int, body_crc: int, record_crc: int | None) -> bool:
    segment = store.segment_at(offset)
    if segment is None:
        return False
    data = bytes(store.read(segment, offset - segment.base_offset, size))
    if record_crc is not None:
        return len(data) == size and zlib.crc32(data) == record_crc
    try:
        found = decode_record(data, 0, offset)
    except FormatError:
        return False
    return (size, body_crc) == (found.total_size, found.body_crc)
