"""
Traces of messages as their clients report them: the bodies of the trace topic's messages.

A body is text: lines end with U+0002, fields with U+0001. The first field names the action. The fields that follow
depend on the action, and at the end of a line on the client's release. A producer may write anything to the topic, so
each field is parsed separately: a missing field, or one that is not a number, is None. `error` names the first such
field, at which mqadmin's decoder fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum, unique
from typing import NamedTuple

from rmq_formats.properties import decode_java_text, parse_java_integer

# TopicValidator#RMQ_SYS_TRACE_TOPIC, TraceConstants#TRACE_TOPIC_PREFIX
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_CLOUD_PREFIX = "rmq_sys_TRACE_DATA_"  # followed by a region
FIELD_END, LINE_END = "\x01", "\x02"  # TraceConstants calls them CONTENT_SPLITOR and FIELD_SPLITOR
MAX_FIELDS = 15


@unique
class TraceKind(StrEnum):
    """The kinds of lines."""

    SENT = "Pub"
    RECEIVED = "SubBefore"
    CONSUMED = "SubAfter"
    TRANSACTION_ENDED = "EndTransaction"
    RECALLED = "Recall"


class Trace(NamedTuple):
    """One line. Fields that its kind does not have are None, and so are those that could not be read."""

    kind: TraceKind
    message_id: str | None = None
    event_timestamp: int | None = None  # ms: when it was sent, received, consumed, ended or recalled
    region_id: str | None = None
    client_group: str | None = None  # a producer group or a consumer group
    topic: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    client_host: str | None = None  # written only by clients of 4.8.0, when sending
    body_length: int | None = None
    cost_ms: int | None = None  # the duration of the operation
    message_type: int | None = None  # MessageType: 0 normal, 1 half, 2 commit, 3 delayed, 4 ordered
    offset_message_id: str | None = None
    is_success: bool | None = None
    request_id: str | None = None  # identical in a SubBefore and its SubAfter
    retry_times: int | None = None
    context_code: int | None = None  # how consumption ended: 0 success, 1 timeout, 2 exception, 3 null, 4 failed
    transaction_id: str | None = None
    transaction_state: str | None = None
    is_from_check: bool | None = None
    error: str | None = None


_START = ("event_timestamp", "region_id", "client_group")
_MESSAGE = ("topic", "message_id", "tags", "keys", "store_host")
# The fields after the kind, as TraceDataEncoder#decoderFromTraceDataString reads them.
_FIELDS: Mapping[TraceKind, Sequence[str]] = {
    TraceKind.SENT: (*_START, *_MESSAGE, "body_length", "cost_ms", "message_type"),
    TraceKind.RECEIVED: (*_START, "request_id", "message_id", "retry_times", "keys"),
    TraceKind.CONSUMED: ("request_id", "message_id", "cost_ms", "is_success", "keys"),
    TraceKind.TRANSACTION_ENDED: (
        *(*_START, *_MESSAGE, "message_type"),
        *("transaction_id", "transaction_state", "is_from_check"),
    ),
    TraceKind.RECALLED: (*_START, "topic", "message_id", "is_success"),
}
# Further fields of lines with at least this many fields, including the kind.
_LATER_FIELDS: Mapping[TraceKind, Sequence[tuple[int, Sequence[str]]]] = {
    TraceKind.SENT: (
        (15, ("offset_message_id", "is_success", "client_host")),
        (14, ("offset_message_id", "is_success")),
        (13, ("is_success",)),
    ),
    TraceKind.CONSUMED: ((9, ("context_code", "event_timestamp", "client_group")), (7, ("context_code",))),
}
_KINDS = {kind.value: kind for kind in TraceKind}
BOOLEAN_FIELDS = frozenset({"is_success", "is_from_check"})
NUMBER_BITS = {"event_timestamp": 64} | dict.fromkeys(
    ("body_length", "cost_ms", "message_type", "retry_times", "context_code"), 32
)
MESSAGE_TYPE_COUNT = 5
TRANSACTION_STATES = frozenset({"COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"})


def is_trace_topic(topic: str) -> bool:
    """Return whether clients report to *topic* unless they are given another one."""
    return topic == TRACE_TOPIC or topic.startswith(_CLOUD_PREFIX)


def decode_traces(body: bytes) -> Iterator[Trace]:
    """Yield each line of a trace message's body (as sent: decompressed), in order."""
    text = decode_java_text(body)
    start = 0
    while start < len(text):
        end = text.find(LINE_END, start)
        end = len(text) if end < 0 else end
        trace = decode_trace_line(text[start:end])
        if trace is not None:
            yield trace
        start = end + 1


def decode_trace_line(line: str) -> Trace | None:
    """Decode a line without its end; None for an unknown kind, which clients skip."""
    # String#split leaves out empty fields at the end.
    parts = line.rstrip(FIELD_END).split(FIELD_END, MAX_FIELDS)
    kind = _KINDS.get(parts[0])
    if kind is None:
        return None
    values: dict[str, str | int | bool | None] = {}
    errors: list[str] = []
    names = trace_field_names(kind, len(parts))
    for number, name in enumerate(names, start=1):
        if number >= len(parts):
            errors.append(f"{name} is missing")
            break
        value = _value(name, parts[number])
        values[name] = value
        if value is None:
            errors.append(f"{name} is {parts[number][:40]!r}")
    _, *between, _ = Trace._fields
    return Trace._make([kind, *map(values.get, between), errors[0] if errors else None])


def trace_field_names(kind: TraceKind, count: int) -> Sequence[str]:
    """Return the names of the fields of a line with *count* fields, including the kind; some of them may be missing."""
    later = (names for least, names in _LATER_FIELDS.get(kind, ()) if count >= least)
    return (*_FIELDS[kind], *next(later, ()))


def _value(name: str, text: str) -> str | int | bool | None:
    if name in BOOLEAN_FIELDS:
        return text.lower() == "true"
    if name in NUMBER_BITS:
        number = parse_java_integer(text, NUMBER_BITS[name])
        is_known = name != "message_type" or number in range(MESSAGE_TYPE_COUNT)
        return number if is_known else None
    if name == "transaction_state" and text not in TRANSACTION_STATES:
        return None
    return text
