"""
Explains empty answers, and finds the ends of half messages, which explain some of them.

mqadmin only prints that there is no message. These functions check whether the text is a key of any message, in which
topic, of which kind, and when, and whether the broker's own index would have found it.
"""

from collections.abc import Iterable
from datetime import UTC
from operator import attrgetter

from jobs.query import MAX_TIME, MIN_TIME, KeyQuery, ListConditions, Message
from jobs.query.mqadmin import HALF_TOPIC, OffsetRange, host_port_text, time_text
from jobs.query.source import EXPLAINED_S, MAX_OCCURRENCES, Occurrence, Reason, ReasonKind, Source
from jobs.store.selection import list_similar_topics
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import Host
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, SCHEDULE_TOPIC
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.message_id import OffsetId, decode_offset_id
from rmq_formats.properties import REAL_TOPIC
from rmq_formats.rocksdb import layout as rocksdb_rows

TIMER_TOPIC = "rmq_sys_wheel_timer"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_OPS_READ = 4096  # newest op messages that are read

_HIGHEST_PORT = 65535
_NOT_AN_OFFSET_ID = "is not an offset id (32 or 56 hexadecimal digits that encode host, port and offset)"
_ONLY = {
    KeyKind.KEY: (ReasonKind.ONLY_IN_KEYS, "is only a key (KEYS) in this topic; `query by-key` finds it"),
    KeyKind.UNIQUE: (ReasonKind.ONLY_UNIQUE_KEY, "is only a unique key in this topic; `query by-unique-key` finds it"),
    KeyKind.TAG: (ReasonKind.ONLY_TAG, "is only a tag in this topic; `query by-key -p T` finds it"),
}


def explain_no_message_with_key(source: Source, wanted: KeyQuery) -> Reason:
    """Explain why no message was found under a key."""
    topic, key = wanted.topic, wanted.key
    age = attrgetter("message.record.store_timestamp", "message.record.physical_offset")
    seen = list(source.occurrences(key))
    if len(seen) >= MAX_OCCURRENCES and all(one.message.topic != topic for one in seen):  # others used up the limit
        found = ((next(source.by_key(KeyQuery(kind, topic, key)), None), kind) for kind in KeyKind)
        seen += [Occurrence(message, kind, is_indexed=True) for message, kind in found if message is not None]
    seen.sort(key=age)
    is_part = len(seen) >= MAX_OCCURRENCES or not source.searches_all or source.search_stopped_at is not None
    here = [occurrence for occurrence in seen if occurrence.message.topic == topic]
    same_kind = [occurrence for occurrence in here if occurrence.kind is wanted.kind]
    if same_kind:
        return _explain_unindexed_key(same_kind, wanted, is_part=is_part)
    if here:
        kinds = {occurrence.kind for occurrence in here}
        only, sentence = next(words for kind, words in _ONLY.items() if kind in kinds)  # in a fixed order
        return Reason(only, f"{key!r} {sentence} ({_places(here, is_part=is_part)})")
    names = ", ".join(sorted({occurrence.message.topic for occurrence in seen}))
    if not source.has_topic(topic):
        reason = explain_unknown_topic(source, topic)
        return Reason(reason.kind, f"{reason.text}; the key {key!r} occurs in {names}") if seen else reason
    waiting = next((one for one in seen if one.message.properties.get(REAL_TOPIC) == topic), None)
    if waiting:
        return _explain_waiting_message(source, waiting.message, topic, key)
    if seen:
        places = _places(seen, is_part=is_part)
        return Reason(ReasonKind.OTHER_TOPIC, f"the key {key!r} occurs in {names}, not in {topic} ({places})")
    return explain_no_message_in_any_topic(source, key, wanted.kind)


def _explain_unindexed_key(seen: list[Occurrence], wanted: KeyQuery, *, is_part: bool) -> Reason:
    """Explain why a query does not find messages that have its key although they are in the log."""
    key = wanted.key
    if all(one.is_hidden_by_batch_id for one in seen):
        message = seen[0].message
        text = (
            f"{key} is the id of a message in a batch, but the id of the batch, {message.unique_key}, comes later in "
            f"the properties, so only that one is indexed; `query by-id -i {message.offset_id}` finds the message"
        )
        return Reason(ReasonKind.SHADOWED, text)
    if all(one.message.transaction is TransactionType.ROLLBACK for one in seen):
        places = _places(seen, is_part=is_part)
        return Reason(ReasonKind.ROLLED_BACK, f"the message with the key {key!r} was rolled back ({places})")
    times = [one.message.record.store_timestamp for one in seen]
    inside = [one for one, time in zip(seen, times, strict=True) if wanted.begin <= time <= wanted.end]
    if not inside:
        stored = f"from {_format_time(min(times))} to {_format_time(max(times))}"
        text = f"the messages with the key {key!r} were stored {stored}, outside the requested time range"
        return Reason(ReasonKind.OUTSIDE_TIMES, text)
    if not any(one.is_indexed for one in inside):
        text = (
            f"the key {key!r} is in the log but not in the index, so mqadmin would have found nothing; `verify` shows "
            f"why, and --scan-log finds the message ({_places(inside, is_part=is_part)})"
        )
        return Reason(ReasonKind.NOT_INDEXED, text)
    text = (
        f"the index has a time outside the requested range for the key {key!r}: its times are whole seconds, and wrong "
        f"if the broker's clock was changed; --scan-log finds the message ({_places(inside, is_part=is_part)})"
    )
    return Reason(ReasonKind.NOT_INDEXED, text)


def _explain_waiting_message(source: Source, message: Message, topic: str, key: str) -> Reason:
    stored = message.topic
    kind, text = ReasonKind.OTHER_TOPIC, f"the message with the key {key!r} is in {stored}, not in {topic}"
    if stored in (SCHEDULE_TOPIC, TIMER_TOPIC):
        kind = ReasonKind.DELAYED
        text = f"the message with the key {key!r} is in {stored}, and has not been delivered to {topic} yet"
    elif stored in (HALF_TOPIC, rocksdb_rows.ROCKSDB_HALF_TOPIC):
        kind = ReasonKind.HALF
        half = f"the message with the key {key!r} is a half message in {stored}"
        text = f"{half}: its transaction has not been committed to {topic}"
        if find_half_message_end(source, message)[0] is not None:
            kind = ReasonKind.ROLLED_BACK
            text = f"the message with the key {key!r} was rolled back; its half message is in {stored}"
    return Reason(kind, f"{text} ({_describe_place(message)})")


def explain_no_message_in_any_topic(source: Source, key: str, kind: KeyKind) -> Reason:
    """Explain that no message in any topic has *key*."""
    named = parse_offset_id(key) if kind is KeyKind.UNIQUE else None
    if named is not None and named.host in source.hosts() and source.by_offset(named.physical_offset):
        text = f"{key} is an offset id of this broker, not a unique key; `query by-id` finds it"
        return Reason(ReasonKind.WRONG_KIND_OF_ID, text)
    lacks = f"; {source.damage_text}" if source.damage_text else ""
    hint = other_case_hint(source, key)
    if source.search_stopped_at is not None and not hint:
        text = (
            f"the key {key!r} was not found. The search for it in other topics and spellings stopped after "
            f"{EXPLAINED_S:g} s: messages before offset {source.search_stopped_at:,} were not searched"
        )
        return Reason(ReasonKind.NOT_ALL_SEARCHED, f"{text}{lacks}")
    return Reason(ReasonKind.NOT_ON_DISK, f"no message has the key {key!r}{hint}; {coverage_text(source)}{lacks}")


def other_case_hint(source: Source, key: str) -> str:
    """Return a hint if the key exists in upper or lower case."""
    others = sorted({key.upper(), key.lower()} - {key})
    found = next((other for other in others if next(iter(source.occurrences(other)), None)), None)
    return f"; did you mean {found!r}? Keys are case-sensitive" if found else ""


def parse_offset_id(text: str) -> OffsetId | None:
    """Return the host and the offset in an offset id; None for any other text."""
    try:
        return decode_offset_id(text)
    except FormatError:
        return None


def coverage_text(source: Source) -> str:
    """Describe the available part of the history."""
    coverage = source.coverage()
    if coverage.first_time is None or coverage.last_time is None:
        return "there are no stored messages"
    return (
        f"the stored messages are from {_format_time(coverage.first_time)} to {_format_time(coverage.last_time)}, "
        f"offsets {coverage.first_offset:,} to {coverage.end_offset:,}"
    )


def explain_unknown_topic(source: Source, topic: str) -> Reason:
    """Explain that a topic was deleted, or never existed, and suggest similar names."""
    stored = source.find_first_and_last(topic)
    if stored is not None and source.knows_topics:
        first, last = stored
        text = (
            f"the topic {topic} was deleted: the broker has neither its queues nor its configuration. Its messages are "
            f"still in the log, from {_describe_place(first)}, to {_describe_place(last)}; --scan-log finds them"
        )
        return Reason(ReasonKind.TOPIC_DELETED, text)
    if topic.startswith(LMQ_PREFIX) and source.is_lake:
        text = f"{topic} is a light queue: a lake has its units in the table consume_queue, and its messages only under"
        return Reason(ReasonKind.TOPIC_UNKNOWN, f"{text} the topics that they were sent to")
    near = list_similar_topics(topic, source.topics())
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    if not source.knows_topics:
        text = f"the log has no message of {topic}, and the broker's topics are in RocksDB, which cannot be read"
        return Reason(ReasonKind.TOPIC_UNKNOWN, f"{text}, so it is unknown whether the topic exists{hint}")
    return Reason(ReasonKind.TOPIC_UNKNOWN, f"topic {topic} not found (no messages, queues or settings){hint}")


def explain_invalid_offset_id(text: str) -> Reason:
    """Explain that a text cannot be an offset id."""
    return Reason(ReasonKind.WRONG_KIND_OF_ID, f"{text!r} {_NOT_AN_OFFSET_ID}")


def explain_unknown_id(text: str) -> Reason:
    """Explain that a text cannot be an offset id, and that no message with this unique key was found."""
    return Reason(
        ReasonKind.WRONG_KIND_OF_ID, f"no message with the unique key {text!r} was found, and this {_NOT_AN_OFFSET_ID}"
    )


def explain_other_broker(source: Source, text: str, offset_id: OffsetId, known: Iterable[Host]) -> Reason:
    """Explain that an offset id belongs to another broker, or is not an offset id at all."""
    if not 0 < offset_id.host.port <= _HIGHEST_PORT:
        hint = other_case_hint(source, text)
        if hint:
            return Reason(ReasonKind.WRONG_KIND_OF_ID, f"no message has the id {text!r}{hint}")
        text = (
            f"no message has this id: as an offset id, it would contain port {offset_id.host.port}, which is not "
            f"valid, and as a unique key, it was not found in {source.place_of_unique_keys}"
        )
        return Reason(ReasonKind.WRONG_KIND_OF_ID, text)
    ours = ", ".join(map(host_port_text, known)) or "none"
    text = (
        f"the id belongs to the broker {host_port_text(offset_id.host)} (offset {offset_id.physical_offset:,}), but "
        f"this store has messages of {ours}; to read this offset anyway, pass --ignore-host"
    )
    return Reason(ReasonKind.OTHER_BROKER, text)


def confirms_offset_id(reason: Reason | None) -> bool:
    """Return whether an id is certainly an offset id of this broker."""
    others = (ReasonKind.OTHER_BROKER, ReasonKind.WRONG_KIND_OF_ID)
    return reason is not None and reason.kind not in others


def explain_no_message_at_offset(
    source: Source, topic: str, queue_id: int, queue_offset: int, offsets: OffsetRange | None
) -> Reason:
    """Explain why a queue has no message with this queue offset."""
    if not source.has_topic(topic):
        return explain_unknown_topic(source, topic)
    if offsets is None:
        ids = ", ".join(map(str, source.queue_ids(topic))) or "none"
        text = f"{topic} has no queue {queue_id}; its queues: {ids}"
        if any(message.record.queue_id == queue_id for message in source.find_first_and_last(topic) or ()):
            text += "; the log has messages of this queue, but its files are lost: --scan-log finds them in the log"
        return Reason(ReasonKind.QUEUE_UNKNOWN, text)
    queue = f"queue {queue_id} of {topic} has {offsets}"
    lacks = f"; {source.damage_text}" if source.damage_text else ""
    if queue_offset >= offsets.maximum:
        return Reason(ReasonKind.OFFSET_ABOVE_MAX, f"offset {queue_offset:,} does not exist yet: {queue}{lacks}")
    if queue_offset < offsets.minimum:
        is_gone = "no longer exists" if queue_offset >= 0 else "is negative"
        return Reason(ReasonKind.OFFSET_BELOW_MIN, f"offset {queue_offset:,} {is_gone}: {queue}{lacks}")
    if source.is_lake:
        return Reason(ReasonKind.UNIT_DANGLES, f"the queue has no message at offset {queue_offset:,}: {queue}{lacks}")
    text = f"unit {queue_offset:,} of queue {queue_id} does not point to a message; --scan-log searches the log"
    return Reason(ReasonKind.UNIT_DANGLES, text)


def _format_time(milliseconds: int) -> str:
    return f"{time_text(milliseconds, UTC)} UTC"


def _places(seen: list[Occurrence], *, is_part: bool) -> str:
    """Describe the number of distinct messages, and the oldest one; for a part of them, any one."""
    count = len({(one.message.record.physical_offset) for one in seen})
    number, which = (f"at least {min(count, MAX_OCCURRENCES)}", "one of them") if is_part else (f"{count}", "the first")
    return f"{number} found, {which}: {_describe_place(seen[0].message)}"


def _describe_place(message: Message) -> str:
    return f"offset id {message.offset_id}, stored {_format_time(message.record.store_timestamp)}"


def explain_other_broker_name(source: Source, broker: str | None) -> Reason | None:
    """Explain that a query is about another broker; None if it is not, or if the store's broker is unknown."""
    if broker is None or source.broker in {None, broker}:
        return None
    return Reason(ReasonKind.OTHER_BROKER, f"this store belongs to the broker {source.broker}, not {broker}")


def explain_empty_page(
    source: Source, wanted: ListConditions, next_end_offset: int | None, end_offset: int | None, seconds: float
) -> Reason:
    """Explain why a page of the messages before *end_offset* has no *wanted* ones."""
    if wanted.topic is not None and not source.has_topic(wanted.topic):
        return explain_unknown_topic(source, wanted.topic)
    if next_end_offset is not None:
        text = f"nothing was found in {seconds:g} s, and the search stopped before the end"
        return Reason(ReasonKind.NOT_ALL_SEARCHED, f"{text}; to continue, add --before {next_end_offset}")
    if end_offset is not None:
        return Reason(
            ReasonKind.NO_MATCH,
            f"no message{_describe_owner(wanted)} before position {end_offset:,}{_describe_conditions(wanted)}",
        )
    if wanted.key is not None and (wanted.tag, wanted.body_text) == (None, None):
        return _no_key(source, wanted, wanted.key)
    return _no_match(source, wanted)


def _no_key(source: Source, wanted: ListConditions, key: str) -> Reason:
    seen = [one for one in source.occurrences(key) if wanted.topic in {None, one.message.topic}]
    is_unique = any(one.kind is KeyKind.UNIQUE for one in seen)
    kind = KeyKind.UNIQUE if is_unique else KeyKind.KEY
    topic = wanted.topic or next((one.message.topic for one in seen if one.kind is kind), None)
    if topic is None:
        return explain_no_message_in_any_topic(source, key, kind)
    return explain_no_message_with_key(source, KeyQuery(kind, topic, key, wanted.begin, wanted.end))


def _no_match(source: Source, wanted: ListConditions) -> Reason:
    in_times = "" if (wanted.begin, wanted.end) == (MIN_TIME, MAX_TIME) else " in the requested time range"
    number = source.count(wanted)
    if number == 0 or not wanted.is_search:
        kind = ReasonKind.OUTSIDE_TIMES if in_times else ReasonKind.NO_MATCH
        return Reason(kind, f"no message{_describe_owner(wanted)} was stored{in_times}; {coverage_text(source)}")
    if number is None:
        text = f"no message{_describe_owner(wanted)}{in_times}{_describe_conditions(wanted)}; {coverage_text(source)}"
        return Reason(ReasonKind.NO_MATCH, text)
    stored = f" stored{in_times}" if in_times else ""
    if number == 1:
        only = f"the only message{_describe_owner(wanted)}{stored}{_describe_conditions(wanted, 'does not have')}"
        return Reason(ReasonKind.NO_MATCH, only)
    return Reason(
        ReasonKind.NO_MATCH,
        f"none of the {number:,} messages{_describe_owner(wanted)}{stored}{_describe_conditions(wanted)}",
    )


def _describe_owner(wanted: ListConditions) -> str:
    return "" if wanted.topic is None else f" of {wanted.topic}"


def _describe_conditions(wanted: ListConditions, verb: str = "has") -> str:
    asked = (
        f"the key {wanted.key!r}" if wanted.key is not None else "",
        f"the tag {wanted.tag!r}" if wanted.tag is not None else "",
        f"{wanted.body_text!r} in its body" if wanted.body_text is not None else "",
    )
    named = " and ".join(filter(None, asked))
    return f" {verb} {named}" if named else ""


# the ends of half messages, by the queue of op messages


def find_open_half_messages(source: Source, newest_per_queue: int) -> tuple[list[Message], bool]:
    """Find open half messages among the newest ones of each queue, newest first; True if some were not read."""
    found: dict[str, Message] = {}
    was_cut_short = False
    known = source.topics()
    for topic, op_topic in ((HALF_TOPIC, OP_TOPIC), (rocksdb_rows.ROCKSDB_HALF_TOPIC, rocksdb_rows.ROCKSDB_OP_TOPIC)):
        if topic not in known:
            continue
        ended: dict[int, set[str]] = {}  # numbers of ended half messages, by queue
        for queue_id in source.queue_ids(op_topic):
            ops, is_part = _newest(source, op_topic, queue_id, _OPS_READ)
            was_cut_short |= is_part
            for op in source.by_queue(op_topic, queue_id, *ops):
                if op is not None:
                    ended.setdefault(queue_id, set()).update(_ended_numbers(op))
        for queue_id in source.queue_ids(topic):
            halves, is_part = _newest(source, topic, queue_id, newest_per_queue)
            was_cut_short |= is_part
            for half in source.by_queue(topic, queue_id, *halves):
                if half is None:
                    continue
                # Each check of a half message writes it once more: the newest one of a message counts.
                name = half.unique_key or half.offset_id
                found.pop(name, None)
                if _number(half) not in ended.get(queue_id, ()):
                    found[name] = half
    newest = sorted(found.values(), key=lambda half: half.record.physical_offset, reverse=True)
    return newest, was_cut_short


def find_half_message_end(source: Source, half: Message) -> tuple[Message | None, bool]:
    """Find the op message that commits or rolls back a half message; True if older op messages were not read."""
    is_in_rocksdb = half.topic == rocksdb_rows.ROCKSDB_HALF_TOPIC
    topic, queue_id = (rocksdb_rows.ROCKSDB_OP_TOPIC, 0) if is_in_rocksdb else (OP_TOPIC, half.record.queue_id)
    ops, is_part = _newest(source, topic, queue_id, _OPS_READ)
    for number in reversed(range(*ops)):
        op = source.by_queue_offset(topic, queue_id, number)
        # An op message is written after its half message, so the first older op message ends the search. Some may be
        # lost.
        if op is None:
            continue
        if op.record.physical_offset < half.record.physical_offset:
            return None, False
        if _number(half) in _ended_numbers(op):
            return op, False
    return None, is_part


def _newest(source: Source, topic: str, queue_id: int, limit: int) -> tuple[OffsetRange, bool]:
    """Return the offsets of the newest *limit* messages of a queue, and whether it has older ones."""
    held = source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
    oldest = max(held.minimum, held.maximum - limit)
    return OffsetRange(oldest, held.maximum), oldest > held.minimum


def _number(half: Message) -> str:
    """Return the number with which op messages refer to a half message: its queue offset, in RocksDB its log offset."""
    record = half.record
    return str(record.physical_offset if half.topic == rocksdb_rows.ROCKSDB_HALF_TOPIC else record.queue_offset)


def _ended_numbers(op: Message) -> list[str]:
    """Return the numbers of the half messages that an op message ends: since 5.1.0 there may be several."""
    named = op.properties.get(rocksdb_rows.TRANS_OFFSET) or (op.body or b"").decode("ascii", "replace")
    return named.split(",")
