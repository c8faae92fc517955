"""
Leave out messages of excluded topics wherever the broker has put them.

A delayed, transactional, timed, retried or dead message lies under a topic of the broker's own. A property names the
topic that it was sent to. A message of the trace topic reports on others, with their keys and tags. Where such a
message does not say which topic it comes from, it is left out.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jobs.lake.bodies import decoded
from jobs.store.selection import Selection, carries_other_topics
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.properties import REAL_TOPIC, PropertyParser, java_text
from rmq_formats.trace import LINE_END, decode_line, is_trace_topic

# MessageConst: REAL_TOPIC of delayed and half messages, RETRY_TOPIC of retried ones, the last one of dead ones.
_ORIGINS = pa.array([REAL_TOPIC, "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])
_FIRST_POP_TIME = "1ST_POP_TIME"  # of a message that was popped: its retry topic ends with its own topic
_LARGEST_REPORT = 4 << 20  # bytes of a decompressed trace body, as for the table `traces`


def without_excluded(records: Records, parser: PropertyParser, selection: Selection) -> Records:
    """Return the records without those that carry a message of an excluded topic; all of them if none is excluded."""
    if not selection.exclude_topics or not records.positions.size:
        return records
    # Columns are made only then: Arrow's dictionaries of a filtered batch would still hold the excluded values.
    messages, _ = message_batch(records, parser, takes=selection.takes)
    offsets = messages.column("physical_offset").to_numpy()[excluded(messages, selection)]
    stays = ~np.isin(records.positions + records.base_offset, offsets)
    return records._replace(positions=records.positions[stays], sizes=records.sizes[stays])


def excluded(messages: pa.RecordBatch, selection: Selection) -> NDArray[np.bool_]:
    """Return which of some messages carry one of an excluded topic, or may do so."""
    topics = messages.column("topic").cast(pa.string()).to_pylist()
    is_excluded, has_origin = _by_origin(messages, selection)
    bodies, flags = messages.column("body"), messages.column("sys_flag")
    for number, topic in enumerate(topics):
        if is_trace_topic(topic):
            body = decoded(bodies[number].as_py(), flags[number].as_py(), _LARGEST_REPORT)
            is_excluded[number] |= body.error is not None or not _reports_on_others(body.data, selection)
        elif carries_other_topics(topic) and not has_origin[number]:
            is_popped = _FIRST_POP_TIME in dict(messages.column("properties")[number].as_py())
            is_excluded[number] |= not is_popped or _names_excluded_topic(topic, selection)
    return is_excluded


def _by_origin(messages: pa.RecordBatch, selection: Selection) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which messages name an excluded topic as their origin, and which name the topic they were sent to."""
    properties = messages.column("properties")
    counts = np.diff(properties.offsets.to_numpy())
    of_origin = np.asarray(pc.is_in(properties.keys.cast(pa.string()), value_set=_ORIGINS))
    rows = np.repeat(np.arange(messages.num_rows), counts)[of_origin]
    names = properties.items.filter(pa.array(of_origin)).to_pylist()
    is_excluded, has_origin = np.zeros(messages.num_rows, np.bool_), np.zeros(messages.num_rows, np.bool_)
    for row, name in zip(rows.tolist(), names, strict=True):
        is_excluded[row] |= selection.excludes(name)
        has_origin[row] |= not carries_other_topics(name)
    return is_excluded, has_origin


def _names_excluded_topic(topic: str, selection: Selection) -> bool:
    """Return whether a retry topic of popped messages, `%RETRY%GROUP_TOPIC` or `…+TOPIC`, may end with such a topic."""
    ends = (topic[at + 1 :] for at, character in enumerate(topic) if character in "_+")
    return any(selection.excludes(end) for end in ends)


def _reports_on_others(body: bytes | None, selection: Selection) -> bool:
    """Return whether each line of a trace names a topic that is not excluded; consumers' lines name none."""
    if body is None:
        return False
    lines = [decode_line(line) for line in java_text(body).split(LINE_END) if line]
    return all(
        line is not None
        and line.topic is not None
        and not carries_other_topics(line.topic)
        and not selection.excludes(line.topic)
        for line in lines
    )
