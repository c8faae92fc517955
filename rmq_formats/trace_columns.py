"""
Traces as Arrow columns: decodes the lines of many bodies in one batch, without Python code for each line.

Lines with unusual fields are decoded by `rmq_formats.trace`, which gives the same result for the other lines.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.arrow import column, required_column
from rmq_formats.properties import decode_java_text
from rmq_formats.trace import (
    BOOLEAN_FIELDS,
    FIELD_END,
    LINE_END,
    MAX_FIELDS,
    MESSAGE_TYPE_COUNT,
    NUMBER_BITS,
    TRANSACTION_STATES,
    TraceKind,
    decode_trace_line,
    trace_field_names,
)

_TEXT, _INT, _LONG, _FLAG = pa.string(), pa.int32(), pa.int64(), pa.bool_()

SCHEMA = pa.schema((
    required_column(
        "kind",
        _TEXT,
        "Pub: sent; SubBefore: received by a consumer; SubAfter: consumed; EndTransaction: transaction state reported; "
        "Recall: delivery cancelled",
    ),
    column("message_id", _TEXT, "the producer's id: UNIQ_KEY in messages; in an EndTransaction possibly the offset id"),
    column("event_timestamp", _LONG, "ms, the client's clock; NULL in a SubAfter of clients up to 4.7.1, and of 4.9.1"),
    column("region_id", _TEXT, "region of the broker"),
    column("client_group", _TEXT, "group of the producer or the consumer; NULL where event_timestamp is NULL"),
    column("topic", _TEXT, "topic of the message; NULL in SubBefore and SubAfter"),
    column("tags", _TEXT, "TAGS of the message; the string `null` if it has none"),
    column("keys", _TEXT, "KEYS of the message; the string `null` if it has none"),
    column("store_host", _TEXT, "address:port of the broker that stored the message"),
    column("client_host", _TEXT, "address that clients of 4.8.0 wrote in a Pub; otherwise see born_host"),
    column("body_length", _INT, "number of bytes of the message's body"),
    column("cost_ms", _INT, "duration of sending or consuming, in ms"),
    column("message_type", _INT, "0 normal, 1 half, 2 committed, 3 delayed, 4 ordered"),
    column("offset_message_id", _TEXT, "the broker's id: offset_msg_id in messages"),
    column("is_success", _FLAG, "whether sending, consuming or recalling succeeded"),
    column("request_id", _TEXT, "id that a SubBefore and its SubAfter share"),
    column("retry_times", _INT, "number of times that the message had been returned for retry"),
    column("context_code", _INT, "result of consuming: 0 success, 1 timeout, 2 exception, 3 null, 4 failed"),
    column("transaction_id", _TEXT, "id of the transaction, in an EndTransaction"),
    column("transaction_state", _TEXT, "COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW"),
    column("is_from_check", _FLAG, "whether the producer ended the transaction because the broker checked its state"),
    column("error", _TEXT, "name of the first missing or invalid field, which is then NULL"),
))  # fmt: skip
_KINDS = pa.array([kind.value for kind in TraceKind])
# Numbers that Arrow's casts read as Java does; all others are parsed one by one.
_PLAIN_NUMBERS = {64: "^-?[0-9]{1,18}$", 32: "^-?[0-9]{1,9}$"}
_PLAIN_TYPE = f"^[0-{MESSAGE_TYPE_COUNT - 1}]$"


_LINES_AT_ONCE = 1 << 16


def decode_trace_bodies(bodies: pa.Array) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], pa.RecordBatch]]:
    """
    Yield the lines that `decode_traces` yields of each body (as sent: decompressed), some at a time.

    Each part is the number of each line's body, the index of each line in its body, and rows with the columns of
    `SCHEMA`.
    """
    split = pc.split_pattern(_texts(bodies), LINE_END)
    lines, parents = split.flatten(), np.asarray(pc.list_parent_indices(split))
    kinds = pc.list_element(pc.split_pattern(lines, FIELD_END, max_splits=1), 0)
    known = pc.is_in(kinds, value_set=_KINDS)
    lines, parents = lines.filter(known), parents[np.asarray(known)].astype(np.int64)
    numbers = np.arange(len(lines)) - np.searchsorted(parents, parents)
    for start in range(0, len(lines), _LINES_AT_ONCE):
        some = slice(start, start + _LINES_AT_ONCE)
        yield parents[some], numbers[some], _decode_lines(lines[some])


def _texts(bodies: pa.Array) -> pa.Array:
    """Return bodies as Java reads them, which is as UTF-8 where they are."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if body is None else decode_java_text(body) for body in bodies.to_pylist()], pa.string())


def _decode_lines(lines: pa.Array) -> pa.RecordBatch:
    fields = pc.split_pattern(pc.utf8_rtrim(lines, characters=FIELD_END), FIELD_END, max_splits=MAX_FIELDS)
    parts = list(_plain_lines(fields))
    places = [places for places, _ in parts]
    is_odd = np.ones(len(lines), np.bool_)
    for plain in places:
        is_odd[plain] = False
    odd = np.flatnonzero(is_odd)
    traces = (decode_trace_line(line) for line in lines.take(pa.array(odd)).to_pylist())
    rows = pa.RecordBatch.from_pylist([trace._asdict() for trace in traces if trace is not None], schema=SCHEMA)
    together = pa.concat_batches([*(rows for _, rows in parts), rows])
    return together.take(pa.array(np.argsort(np.concatenate([*places, odd]))))


def _plain_lines(fields: pa.Array) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
    """Yield rows of lines that have the same fields, with their numbers; only of lines with usual fields."""
    counts = np.asarray(pc.list_value_length(fields))
    values = pc.list_slice(fields, 0, MAX_FIELDS, 1, return_fixed_size_list=True).flatten()
    codes = np.asarray(pc.index_in(values.take(pa.array(np.arange(len(fields)) * MAX_FIELDS)), value_set=_KINDS))
    for code, kind in enumerate(TraceKind):
        for count in np.flatnonzero(np.bincount(counts[codes == code])).tolist():
            every = trace_field_names(kind, count)
            names, missing = every[: count - 1], every[count - 1 : count]
            places = np.flatnonzero((codes == code) & (counts == count))
            columns = {
                name: _plain(name, values.take(pa.array(places * MAX_FIELDS + number)))
                for number, name in enumerate(names, start=1)
            }
            is_plain = np.ones(places.size, np.bool_)
            for array in columns.values():
                is_plain &= np.asarray(pc.is_valid(array))
            plain, rows = pa.array(is_plain), int(is_plain.sum())
            columns = {name: array.filter(plain) for name, array in columns.items()}
            columns["kind"] = pa.repeat(kind.value, rows)
            if missing:
                columns["error"] = pa.repeat(f"{missing[0]} is missing", rows)
            arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in SCHEMA]
            yield places[is_plain], pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _plain(name: str, texts: pa.Array) -> pa.Array:
    """Return the values of a field; NULL for a value that needs the scalar decoder."""
    if name in BOOLEAN_FIELDS:
        return pc.equal(pc.utf8_lower(texts), "true")
    if name in NUMBER_BITS:
        pattern = _PLAIN_TYPE if name == "message_type" else _PLAIN_NUMBERS[NUMBER_BITS[name]]
        plain = pc.if_else(pc.match_substring_regex(texts, pattern), texts, None)
        return plain.cast(SCHEMA.field(name).type)
    if name == "transaction_state":
        known = pc.is_in(texts, value_set=pa.array(sorted(TRANSACTION_STATES)))
        return pc.if_else(known, texts, None)
    return texts
