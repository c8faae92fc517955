"""Entries of index files as Arrow columns, each with its key."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrays import dtype_of
from rmq_formats.arrow import REPEATED_TEXT, column, required
from rmq_formats.compiled import compiled
from rmq_formats.indexfile.build import KEY_KINDS
from rmq_formats.indexfile.layout import ENTRY, Geometry
from rmq_formats.kernels.integers import Bytes, Sizes, as_int64, copy_by_words, number_at
from rmq_formats.kernels.text import (
    MAX_TEXT_GROWTH,
    TABLE_FULL,
    TextTable,
    copy_as_java_text,
    find_or_add_text,
    is_ascii,
    new_text_table,
)

STORED_ENTRY = dtype_of(ENTRY)
_SLOTS = 1 << 10  # the initial number of slots for distinct topics
_HEAP_SIZE = 1 << 15  # a topic has less
_GROWTH = 4


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
            "topic", REPEATED_TEXT, "topic of the message; NULL if the message was deleted before it could be ingested"
        ),
        column("key", pa.string(), "unique key, one word of KEYS, or the full TAGS; NULL if topic is NULL"),
        column("kind", REPEATED_TEXT, "unique, key, or tag (5.4.0+)"),
        column("store_timestamp", pa.int64(), "store time of the message, in ms; NULL if topic is NULL"),
    ]
)
_KINDS = pa.array([kind.value for kind in KEY_KINDS])
KEY_TEXT_SCHEMA = pa.schema([("topic", REPEATED_TEXT), ("key", pa.string()), ("kind", REPEATED_TEXT)])


def key_texts(places: NDArray[np.void], buffer: Bytes) -> pa.RecordBatch:
    """Return the texts of keys whose *places* in *buffer* were noted as they were packed."""
    kinds = pa.array(np.ascontiguousarray(places["kind"]))
    texts = [
        _repeated_texts(buffer, places["topic"], places["topic_end"]),
        text_array(buffer, places["key"], places["key_end"]),
        pa.DictionaryArray.from_arrays(kinds, _KINDS, safe=False),
    ]
    return pa.RecordBatch.from_arrays(texts, schema=KEY_TEXT_SCHEMA)


def _repeated_texts(buffer: Bytes, starts: NDArray[np.int32], ends: NDArray[np.int32]) -> pa.DictionaryArray:
    """Return slices of *buffer*, most of which have the same bytes as another one, as the texts that Java reads."""
    first, last = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
    numbers = np.empty(len(first), np.int32)
    slots, heap_size = _SLOTS, _HEAP_SIZE
    while True:
        texts = new_text_table(slots, heap_size)
        if _number_texts(buffer, first, last, texts, numbers):
            break
        slots, heap_size = _GROWTH * slots, _GROWTH * heap_size
    bounds = texts.ends[: texts.text_count + 1]
    # Different bytes may be the same text, and Parquet's writer needs a dictionary without duplicates.
    distinct = text_array(texts.heap, bounds[:-1], bounds[1:]).dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.to_numpy()[numbers], distinct.dictionary, safe=False)


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
        columns |= {name: texts[name] for name in KEY_TEXT_SCHEMA.names}
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
    data = np.empty(int((last - first).sum(dtype=np.int64)), np.uint8)
    if not _copy_ascii(buffer, first, last, offsets, data):
        data = np.empty(MAX_TEXT_GROWTH * data.size, np.uint8)
        _copy(buffer, first, last, data, offsets)
    return pa.StringArray.from_buffers(len(first), pa.py_buffer(offsets), pa.py_buffer(data[: offsets[-1]]))


@compiled
def _number_texts(
    buffer: Bytes, starts: NDArray[np.int32], ends: NDArray[np.int32], texts: TextTable, numbers: NDArray[np.int32]
) -> bool:
    """Write the number of each text; return False if the table is full."""
    number = as_int64(0)
    for i in range(starts.size):
        start = number_at(starts, i)
        if i == 0 or start != number_at(starts, i - 1):  # keys of one message share its topic
            number = find_or_add_text(texts, buffer, start, number_at(ends, i))
        if number == TABLE_FULL:
            return False
        numbers[i] = number
    return True


@compiled
def _copy_ascii(
    buffer: Bytes, starts: NDArray[np.int32], ends: NDArray[np.int32], offsets: NDArray[np.int32], data: Bytes
) -> bool:
    """Copy texts of ASCII characters; return False, with nothing of use in *offsets* and *data*, if one has others."""
    to = as_int64(0)
    for i in range(starts.size):
        start, end = number_at(starts, i), number_at(ends, i)
        if not is_ascii(buffer, start, end):
            return False
        to = copy_by_words(buffer, start, end, data, to)
        offsets[i + 1] = to
    return True


@compiled
def _copy(buffer: Bytes, starts: Sizes, ends: Sizes, data: Bytes, offsets: Sizes) -> None:
    to = as_int64(0)
    for i in range(starts.size):
        to = copy_as_java_text(buffer, number_at(starts, i), number_at(ends, i), data, to)
        offsets[i + 1] = to
