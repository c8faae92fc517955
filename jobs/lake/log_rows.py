"""
The log once more, from the rows that the lake has of it: for what retention deleted between two looks.

Bodies are left out: nobody takes anything but properties and places from these records, and zeros are as long.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import files
from jobs.lake.tables import MESSAGES
from rmq_formats.commitlog.record import encode_record
from rmq_formats.commitlog.row import record_of_row
from rmq_formats.commitlog.scan import Records

_AT_ONCE = 4096  # rows
_GROUP_SIZE = 16 << 20  # bytes of the log: rows may stand far from each other
_COLUMNS = [field.name for field in MESSAGES.schema if field.name != "body"]


def message_files(lake: Lake, store_id: str, start: int, end: int) -> list[str]:
    """Name the committed files that may hold rows of [start, end), in the order of the log."""
    snapshot = open_table(lake, MESSAGES.name)
    found = [
        (file.low("physical_offset", start), file.path)
        for file in (files(snapshot) if snapshot is not None else ())
        if file.may_hold(store_id)
        and file.low("physical_offset", start) < end
        and file.high("physical_offset", start) >= start
    ]
    return [path for _, path in sorted(found)]


def records(start: int, end: int, *, lake: Lake, names: Sequence[str], store_id: str) -> Iterator[Records]:
    """Yield the records of a store's log that begin in [start, end), as far as these files of `messages` hold them."""
    offset = pc.field("physical_offset")
    wanted = (pc.field("store_id") == store_id) & (offset >= start) & (offset < end)
    for name in names:
        with lake.arrow_file(f"{MESSAGES.name}/{name}") as source:
            for batch in pq.ParquetFile(source).iter_batches(_AT_ONCE, columns=_COLUMNS):
                rows = batch.filter(wanted).sort_by("physical_offset").to_pylist()
                yield from _groups(rows)


def _groups(rows: Sequence[Mapping[str, Any]]) -> Iterator[Records]:
    """Yield rows that lie near each other as records in one buffer."""
    first = 0
    for at in range(1, len(rows) + 1):
        begins = rows[first]["physical_offset"]
        if at == len(rows) or rows[at]["physical_offset"] + rows[at]["total_size"] - begins > _GROUP_SIZE:
            yield _group(rows[first:at])
            first = at


def _group(rows: Sequence[Mapping[str, Any]]) -> Records:
    encoded = [encode_record(record_of_row({**row, "body": bytes(row["body_length"])})) for row in rows]
    base = rows[0]["physical_offset"]
    positions = np.array([row["physical_offset"] - base for row in rows], np.int64)
    sizes = np.array([len(data) for data in encoded], np.int32)
    buffer = np.zeros(int(positions[-1]) + len(encoded[-1]), np.uint8)
    for position, data in zip(positions.tolist(), encoded, strict=True):
        buffer[position : position + len(data)] = np.frombuffer(data, np.uint8)
    return Records(buffer, base, positions, sizes)
