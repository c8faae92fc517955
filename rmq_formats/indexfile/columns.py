"""Entries of index files as Arrow columns, each with its key."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrays import dtype_of
from rmq_formats.arrow import column, required
from rmq_formats.compiled import compiled
from rmq_formats.indexfile.build import KEY_KINDS
from rmq_formats.indexfile.layout import ENTRY, Geometry
from rmq_formats.kernels.integers import Bytes, as_int64, number_at
from rmq_formats.kernels.text import copy_as_java_text, java_text_size

STORED_ENTRY = dtype_of(ENTRY)


SCHEMA = pa.schema(
    [
        required("index_file", pa.int64(), "ordinal of the index file, counted from the first one in the lake"),
        required("entry", pa.int32(), "number of the entry in its file, from 1"),
        required("slot", pa.int32(), "number of the entry's hash slot"),
        required("key_hash", pa.int32(), "Java's hash of topic#key, made non-negative"),
        required("physical_offset", pa.int64(), "offset of the message"),
        required(
            "time_diff_s",
            pa.int32(),
            "seconds from the file's begin_timestamp to the message's store time, as the broker wrote it",
        ),
        required("prev_entry", pa.int32(), "number of the previous entry of the slot; 0 for none"),
        column(
            "topic", pa.string(), "topic of the message; NULL if the message was deleted before it could be ingested"
        ),
        column("key", pa.string(), "unique key, one word of KEYS, or the full TAGS; NULL if topic is NULL"),
        column("kind", pa.string(), "unique, key, or tag (5.4.0+)"),
        column("store_timestamp", pa.int64(), "store time of the message, in ms; NULL if topic is NULL"),
    ]
)
_KINDS = pa.array([kind.value for kind in KEY_KINDS])
# The texts of keys; `kind` is the index of the kind in `KEY_KINDS`.
KEY_TEXT_SCHEMA = pa.schema([("topic", pa.string()), ("key", pa.string()), ("kind", pa.int32())])


def key_texts(places: NDArray[np.void], buffer: Bytes) -> pa.RecordBatch:
    """Return the texts of keys whose *places* in *buffer* were noted as they were packed."""
    texts = [text_array(buffer, places[name], places[f"{name}_end"]) for name in ("topic", "key")]
    return pa.RecordBatch.from_arrays([*texts, pa.array(np.ascontiguousarray(places["kind"]))], schema=KEY_TEXT_SCHEMA)


def entry_batch(
    index_file: int,
    first_entry: int,
    geometry: Geometry,
    entries: NDArray[np.void],
    store_timestamps: NDArray[np.int64] | None = None,
    texts: pa.RecordBatch | None = None,
) -> pa.RecordBatch:
    """Return rows of consecutive *entries*; without times and *texts* (`KEY_TEXT_SCHEMA`), these columns are NULL."""
    count = len(entries)
    native = {name: entries[name].astype(entries[name].dtype.newbyteorder("=")) for name in STORED_ENTRY.names or ()}
    columns: dict[str, Any] = {
        "index_file": np.full(count, index_file, np.int64),
        "entry": np.arange(first_entry, first_entry + count, dtype=np.int32),
        "slot": native["key_hash"] % np.int32(geometry.hash_slots),
        **native,
    }
    if texts is not None:
        columns |= {"topic": texts["topic"], "key": texts["key"], "kind": _KINDS.take(texts["kind"])}
        columns["store_timestamp"] = store_timestamps
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def text_array(buffer: Bytes, starts: NDArray[np.int32], ends: NDArray[np.int32]) -> pa.Array:
    """Return slices of *buffer* as the texts that Java reads in them."""
    first, last = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
    offsets = np.zeros(len(first) + 1, np.int32)
    _measure(buffer, first, last, offsets)
    data = np.empty(int(offsets[-1]), np.uint8)
    _copy(buffer, first, last, data)
    return pa.StringArray.from_buffers(len(first), pa.py_buffer(offsets), pa.py_buffer(data))


@compiled
def _measure(buffer: Bytes, starts: NDArray[np.int32], ends: NDArray[np.int32], offsets: NDArray[np.int32]) -> None:
    size = 0
    for i in range(starts.size):
        size += java_text_size(buffer, number_at(starts, i), number_at(ends, i))
        offsets[i + 1] = size


@compiled
def _copy(buffer: Bytes, starts: NDArray[np.int32], ends: NDArray[np.int32], data: Bytes) -> None:
    to = as_int64(0)
    for i in range(starts.size):
        to = copy_as_java_text(buffer, number_at(starts, i), number_at(ends, i), data, to)
