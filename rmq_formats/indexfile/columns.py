"""Entries of index files as Arrow columns, each with its key."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrays import dtype_of
from rmq_formats.arrow import REPEATED_TEXT, column, required_column
from rmq_formats.indexfile.build import KEY_KINDS, KeyTexts
from rmq_formats.indexfile.layout import ENTRY, Geometry
from rmq_formats.properties import decode_java_text

STORED_ENTRY = dtype_of(ENTRY)


SCHEMA = pa.schema(
    [
        required_column("index_file", pa.int64(), "ordinal of the index file, counted from the first one in the lake"),
        required_column("entry", pa.int32(), "number of the entry in its file, from 1"),
        required_column("slot", pa.int32(), "number of the entry's hash slot"),
        required_column("key_hash", pa.int32(), "Java's hash of topic#key, made non-negative"),
        required_column("physical_offset", pa.int64(), "offset of the message"),
        required_column(
            "time_diff_s",
            pa.int32(),
            "seconds from the file's begin_timestamp to the message's store time, as the broker wrote it",
        ),
        required_column("prev_entry", pa.int32(), "number of the previous entry of the slot; 0 for none"),
        column(
            "topic", REPEATED_TEXT, "topic of the message; NULL if the message was deleted before it could be ingested"
        ),
        column("key", pa.string(), "unique key, one word of KEYS, or the full TAGS; NULL if topic is NULL"),
        column("kind", REPEATED_TEXT, "unique, key, or tag (5.4.0+)"),
        column("store_timestamp", pa.int64(), "store time of the message, in ms; NULL if topic is NULL"),
    ]
)
_ENTRY_SCHEMA = SCHEMA.remove(0)  # without `index_file`
_KINDS = pa.array([kind.value for kind in KEY_KINDS])
KEY_TEXT_SCHEMA = pa.schema([("topic", REPEATED_TEXT), ("key", pa.string()), ("kind", REPEATED_TEXT)])


def key_texts(texts: KeyTexts, count: int) -> pa.RecordBatch:
    """Return the *texts* of a block of *count* packed keys."""
    # Different bytes may be the same topic, and Parquet's writer needs a dictionary without duplicates.
    topics = pa.array(map(decode_java_text, texts.topics.list_texts()), pa.string()).dictionary_encode()
    ends = texts.ends[: count + 1]
    arrays = [
        _dictionary_array(topics.indices.to_numpy()[texts.topic_numbers[:count]], topics.dictionary),
        pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(texts.data[: ends[-1]])),
        _dictionary_array(texts.kinds[:count], _KINDS),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=KEY_TEXT_SCHEMA)


def _dictionary_array(numbers: NDArray[np.int32], texts: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(numbers), texts, safe=False)


def entry_batch(
    first_entry: int,
    geometry: Geometry,
    entries: NDArray[np.void],
    store_timestamps: NDArray[np.int64] | None = None,
    texts: pa.RecordBatch | None = None,
) -> pa.RecordBatch:
    """
    Return rows of consecutive *entries* of one index file, without the column of its ordinal.

    Without times and *texts* (`KEY_TEXT_SCHEMA`), these columns are NULL.
    """
    count = len(entries)
    native = {name: entries[name].astype(entries[name].dtype.newbyteorder("=")) for name in STORED_ENTRY.names or ()}
    columns: dict[str, Any] = {
        "entry": np.arange(first_entry, first_entry + count, dtype=np.int32),
        "slot": native["key_hash"] % np.int32(geometry.hash_slots),
        **native,
    }
    if texts is not None:
        columns |= {name: texts[name] for name in KEY_TEXT_SCHEMA.names}
        columns["store_timestamp"] = store_timestamps
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in _ENTRY_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ENTRY_SCHEMA)
