"""Records of a store's log that the lake has, for products that continue after the log lost them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import read_rows_where
from jobs.lake.tables import STORED_MESSAGES
from rmq_formats.commitlog.record import encode_record, record_from_row
from rmq_formats.commitlog.scan import RawRecords

_AT_ONCE = 4096  # rows
_WINDOW = 1 << 17  # rows without bodies
_GROUP_SIZE = 16 << 20  # bytes of the log: rows may be far from each other
_BUT_BODIES = [field.name for field in STORED_MESSAGES.schema if field.name != "body"]


def read_committed_records(lake: Lake, store_id: str, start: int, end: int) -> Iterator[RawRecords]:
    """
    Yield the records of a store's log that begin in [start, end), from `messages`, in log order.

    Bodies are replaced by zeros of the same length: callers only use properties and positions. If another engine has
    written files, they may overlap, and their rows may be in any order.
    """
    snapshot = open_table(lake, STORED_MESSAGES.name)
    if snapshot is None:
        return
    known = read_rows_where(lake, snapshot, ["physical_offset"], _rows_between(store_id, start, end))
    offsets = np.sort(known.column("physical_offset").to_numpy())
    for part in np.split(offsets, range(_WINDOW, offsets.size, _WINDOW)):
        if part.size:
            here = _rows_between(store_id, int(part[0]), int(part[-1]) + 1)
            yield from _encode_in_groups(read_rows_where(lake, snapshot, _BUT_BODIES, here).sort_by("physical_offset"))


def _rows_between(store_id: str, start: int, end: int) -> pc.Expression:
    offset = pc.field("physical_offset")
    return (pc.field("store_id") == store_id) & (offset >= start) & (offset < end)


def _encode_in_groups(ordered: pa.Table | pa.RecordBatch) -> Iterator[RawRecords]:
    for start in range(0, ordered.num_rows, _AT_ONCE):
        rows, first = ordered.slice(start, _AT_ONCE).to_pylist(), 0
        for at in range(1, len(rows) + 1):
            begins = rows[first]["physical_offset"]
            if at == len(rows) or rows[at]["physical_offset"] + rows[at]["total_size"] - begins > _GROUP_SIZE:
                yield _encode_rows(rows[first:at])
                first = at


def _encode_rows(rows: Sequence[Mapping[str, Any]]) -> RawRecords:
    encoded = [encode_record(record_from_row({**row, "body": bytes(row["body_length"])})) for row in rows]
    base = rows[0]["physical_offset"]
    positions = np.array([row["physical_offset"] - base for row in rows], np.int64)
    sizes = np.array([len(data) for data in encoded], np.int32)
    buffer = np.zeros(int(positions[-1]) + len(encoded[-1]), np.uint8)
    for position, data in zip(positions.tolist(), encoded, strict=True):
        buffer[position : position + len(data)] = np.frombuffer(data, np.uint8)
    return RawRecords(buffer, base, positions, sizes)
