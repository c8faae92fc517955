"""
Traces: one row for each line that clients report, made from the messages of the trace topic while these are written.

A batch of messages names its topics once: one without traces costs a look at those names.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import with_inflated
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED
from rmq_formats.trace import is_trace_topic
from rmq_formats.trace_columns import decode_bodies

_LARGEST = 4 << 20  # bytes of a decompressed body; clients put 128,000 into one
_OF_MESSAGE = ("physical_offset", "store_timestamp", "born_host")


def trace_rows(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `traces` that a batch of messages has; a body that cannot be decompressed has none."""
    topics = messages.column("topic")
    wanted = [topic for topic in topics.dictionary.to_pylist() if is_trace_topic(topic)]
    if not wanted:
        return
    of_topic = pc.is_in(topics.cast(pa.string()), value_set=pa.array(wanted))
    for rows in with_inflated(messages.filter(of_topic), limit=_LARGEST):
        readable = rows.filter(pc.is_null(rows.column(BODY_ERROR)))
        for traces in decode_bodies(pc.coalesce(readable.column(BODY_INFLATED), readable.column("body"))):
            parents = readable.select(_OF_MESSAGE).take(pa.array(traces.bodies))
            columns = {name: parents.column(name) for name in _OF_MESSAGE}
            columns["born_host"] = columns["born_host"].cast(pa.string())
            columns["line"] = pa.array(traces.numbers, pa.int32())
            columns |= {field.name: traces.rows.column(field.name) for field in traces.rows.schema}
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
