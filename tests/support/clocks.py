"""Stores whose broker had a wrong clock: the store times of their records are changed where they are."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rmq_formats.commitlog.layout import HOST_BITS, RECORD
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import PieceKind
from tests.rmq_formats.stores import read_segment, segment_files, walked_segments


class Placed(NamedTuple):
    """A record of a store, and where it is."""

    record: MessageRecord
    path: Path
    position: int


def placed_records(store: Path) -> list[Placed]:
    """Return the records of a store that is whole, in the order of its log."""
    paths = {read_segment(path).base_offset: path for path in segment_files(store)}
    found = []
    for segment, pieces in walked_segments(store):
        for piece in pieces:
            if piece.kind is PieceKind.RECORD:
                record = segment.record_at(piece.offset - segment.base_offset)
                position = record.physical_offset - segment.base_offset
                found.append(Placed(record, paths[segment.base_offset], position))
    return found


def set_store_times(store: Path, time_of: Callable[[int, MessageRecord], int]) -> list[int]:
    """Give each record, by its number and what it is, another store time; no CRC of a body covers it."""
    times = []
    for number, (record, path, position) in enumerate(placed_records(store)):
        times.append(time_of(number, record))
        at = position + RECORD[record.sys_flag & HOST_BITS].offset("store_timestamp")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(times[-1].to_bytes(8, "big", signed=True))
    return times
