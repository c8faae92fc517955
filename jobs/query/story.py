"""
The history of a message, from half message to consumption: its copies in log order, its traces, and its state.

Copies of a message share its unique key. A broker moves a message by writing a new record: a half message is committed,
a delayed one is delivered, a failed one waits for its retry, is delivered to the group's retry topic, and after the
last retry becomes a dead letter. So a history is the list of these records, classified by their topics.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from enum import StrEnum, unique
from heapq import merge
from itertools import accumulate, chain, islice
from typing import NamedTuple

from jobs.query import KeyQuery, Message, lookups
from jobs.query.json_text import iso_time
from jobs.query.mqadmin import HALF_TOPIC, address_text, host_port_text, time_text
from jobs.query.reasons import TIMER_TOPIC, find_half_message_end
from jobs.query.source import (
    Answer,
    FactOrigin,
    KeyFact,
    PointerCheck,
    QueueFact,
    Remarks,
    Sentence,
    Source,
    parse_whole_number,
)
from jobs.store.broker_config import ConsumerKind, ConsumerProgress
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.consumequeue.dispatch import ABANDONED_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.properties import DELAY, REAL_QID, REAL_TOPIC, UNIQ_KEY
from rmq_formats.rocksdb import layout as rocksdb_rows
from rmq_formats.trace import TRACE_TOPIC, Trace, TraceKind, decode_traces

HALF_TOPICS = frozenset({HALF_TOPIC, rocksdb_rows.ROCKSDB_HALF_TOPIC})
_WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
_MOST_TRACES = 256
_UNIQUE_KEY_IS = f"{UNIQ_KEY}\1".encode()
_MOST_COPIES = 1024  # a producer that gives every message the same id must not fill the memory


@unique
class Role(StrEnum):
    """The role of a copy in the history of its message. The values are part of the JSON format."""

    SENT = "sent"
    SENT_AGAIN = "sent_again"
    HALF = "half"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    ABANDONED = "abandoned"
    DELAYED = "delayed"
    TIMED = "timed"
    DELIVERED = "delivered"
    RETRY_WAITING = "retry_waiting"
    RETRIED = "retried"
    DEAD_LETTER = "dead_letter"


_READ_BY_CONSUMERS = frozenset({Role.SENT, Role.SENT_AGAIN, Role.COMMITTED, Role.DELIVERED, Role.RETRIED})
_WAITING = frozenset({Role.HALF, Role.DELAYED, Role.TIMED, Role.RETRY_WAITING})
# The text for each role. The {topic} and {queue} of a waiting copy are those to which it will be delivered.
_TEMPLATES = {
    Role.SENT: "sent by {host} to {topic} queue {queue}, offset {number:,}",
    Role.SENT_AGAIN: "sent again by {host} to {topic} queue {queue}, offset {number:,}",
    Role.HALF: "half message of the producer group {group} for {topic} queue {queue}",
    Role.COMMITTED: "committed to {topic} queue {queue}, offset {number:,}",
    Role.ROLLED_BACK: "rolled back, in {topic} queue {queue}, offset {number:,}",
    Role.ABANDONED: (
        "abandoned: the producer gave no definite answer to any check; moved to {topic} queue {queue}, offset "
        "{number:,}"
    ),
    Role.DELAYED: "delayed: waiting at level {level} for delivery to {topic} queue {queue}",
    Role.TIMED: "timed: waiting for delivery to {topic} queue {queue}",
    Role.DELIVERED: "delivered to {topic} queue {queue}, offset {number:,}",
    Role.RETRY_WAITING: "not consumed by {group}: retry {tries} is pending",
    Role.RETRIED: "retry {tries} for {group}, in {topic} queue {queue}, offset {number:,}",
    Role.DEAD_LETTER: (
        "dead letter of {group} after {tries} attempts, from {origin}, in {topic} queue {queue}, offset {number:,}"
    ),
}
_BY_TRANSACTION = {
    TransactionType.PREPARED: Role.HALF,  # brokers up to 4.2.0 put half messages under the real topic
    TransactionType.COMMIT: Role.COMMITTED,
    TransactionType.ROLLBACK: Role.ROLLED_BACK,
}
_TRACES = {
    TraceKind.SENT: "sent by the group {group} on {host}",
    TraceKind.RECEIVED: "received by the group {group} on {host}, attempt {tries}",
    TraceKind.CONSUMED: "consumed by the group {group}",
    TraceKind.TRANSACTION_ENDED: "transaction ended by the group {group}: {state}",
    TraceKind.RECALLED: "recalled by the group {group}",
}


@unique
class ConsumptionState(StrEnum):
    """Whether a group has consumed a copy, at the time of the snapshot."""

    CONSUMED = "consumed"
    FAILED = "failed"  # the group received the copy and sent it back: a later copy is the retry
    IN_FLIGHT = "in_flight"
    NOT_YET = "not_yet"


_CONSUMED = {
    ConsumptionState.CONSUMED: Sentence("consumed"),
    ConsumptionState.FAILED: Sentence("received the message and sent it back for a retry"),
    ConsumptionState.IN_FLIGHT: Sentence("received the message, but has not consumed it yet"),
    ConsumptionState.NOT_YET: Sentence("not yet consumed"),
}


class GroupFact(NamedTuple):
    """The position of a consumer group relative to a copy."""

    group: str
    state: ConsumptionState
    next_offset: int
    place: FactOrigin


@dataclass(slots=True)
class Copy:
    """One record of the message, with facts about it."""

    message: Message
    role: Role
    text: Sentence
    place: FactOrigin
    queues: list[QueueFact] = field(default_factory=list)
    keys: list[KeyFact] = field(default_factory=list)
    groups: list[GroupFact] = field(default_factory=list)
    due: int | None = None  # ms: when a waiting copy is delivered
    ended_by: Message | None = None  # for a half message, the op message that ends it
    removal: Sentence | None = None
    broker: str | None = None  # of a history on several brokers

    @property
    def is_superseded(self) -> bool:
        """Whether a later run of a lake found other bytes at its offset."""
        return self.message.superseded_by_run is not None

    @property
    def offset(self) -> int:
        """The offset of its record."""
        return self.message.record.physical_offset


# A line of a trace, its text, and the origin of the message whose body it is in.
TraceReport = tuple[Trace, Sentence, FactOrigin]


@dataclass(slots=True)
class Story:
    """The history of one message."""

    unique_key: str | None
    copies: list[Copy]
    reports: list[TraceReport]
    state: Sentence
    unknown: list[Sentence]


@lookups.one_question
def find_copies_by_id(source: Source, text: str, topic: str | None, *, ignore_host: bool = False) -> Answer:
    """Find the message with an id, even if it is still in a system topic, or was truncated."""
    return _or_elsewhere(source, lookups.by_any_id(source, text, topic, ignore_host=ignore_host), topic, text)


@lookups.one_question
def find_copies_by_key(source: Source, topic: str, key: str) -> Answer:
    """Find the messages of *topic* with a key, including waiting and truncated ones."""
    return _or_elsewhere(source, lookups.by_key(source, topic, key), topic, key)


def _or_elsewhere(source: Source, answer: Answer, topic: str | None, text: str) -> Answer:
    if answer.messages:
        return answer
    for seen in ((one.message for one in source.occurrences(text)), source.list_superseded_copies(text)):
        found = [one for one in seen if topic is None or topic in {one.topic, one.properties.get(REAL_TOPIC)}]
        if found:
            return replace(answer, messages=found, reason=None)
    return answer


def find_stories(source: Source, seeds: Iterable[Message]) -> Iterator[Story]:
    """Yield the history of each message of which *seeds* are copies, once."""
    seen: set[int] = set()
    for seed in seeds:
        if seed.record.physical_offset in seen:
            continue
        unknown = source.list_unknown_facts()
        copies: list[Copy] = []
        for _, message in sorted(_copies(source, seed, unknown).items()):
            role = _find_role(message, copies)
            copies.append(Copy(message, role, _role_text(message, role), source.origin_of(message)))
        consumers = list(source.consumer_progress(sorted({copy.message.topic for copy in copies})))
        for number, copy in enumerate(copies):
            _add_facts(source, copy, copies, unknown)
            if not copy.is_superseded:
                copy.groups = list(_list_group_facts(copy, copies[number + 1 :], consumers))
        reports = list_reports(source, seed.unique_key, unknown) if seed.unique_key else []
        yield Story(seed.unique_key, copies, reports, _state_text(copies), unknown)
        seen |= {copy.offset for copy in copies}


# the copies on several brokers


def find_joined_stories(
    parts: Sequence[tuple[Source, Sequence[Message]]], sources: Sequence[Source], remarks: Remarks
) -> Iterator[tuple[Sequence[str], Story]]:
    """
    Yield the history of each message once, with its brokers; *remarks* receives those of the sources.

    *parts* are copies that some *sources* have; those of the same messages on the others are searched.
    """
    told = []
    for source, seeds in parts:
        asked = source.begin_question()
        told += [(source.broker or source.name, one) for one in find_stories(asked, seeds)]
        remarks.include(asked.remarks)
    found = {source.name for source, _ in parts}
    told += _find_on_other_brokers([one for one in sources if one.name not in found], told)
    yield from _join_stories(told)


def _join_stories(told: Sequence[tuple[str, Story]]) -> Iterator[tuple[Sequence[str], Story]]:
    """
    Yield one history for all copies of a message, with their brokers: a client sends to another one after a failure.

    Messages of a batch share the unique key of the batch: their histories stay apart.
    """
    by_key: dict[str | int, list[tuple[str, Story]]] = {}
    for number, (broker, story) in enumerate(told):
        by_key.setdefault(number if story.unique_key is None else story.unique_key, []).append((broker, story))
    for own in by_key.values():
        brokers = [broker for broker, _ in own]
        if len(own) > 1 and len(set(brokers)) == len(own):
            yield brokers, _join(own)
        else:
            yield from (([broker], story) for broker, story in own)


def _find_on_other_brokers(sources: Sequence[Source], told: Sequence[tuple[str, Story]]) -> Iterator[tuple[str, Story]]:
    """Yield the histories of the same messages on other brokers; add the traces that those have to the known ones."""
    by_key = {story.unique_key: story for _, story in reversed(told) if story.unique_key is not None}
    for source in sources:
        asked = source.begin_question()
        for unique_key, story in by_key.items():
            copies = list(islice(asked.copies(unique_key, ()), _MOST_COPIES))
            yield from ((source.broker or source.name, one) for one in find_stories(asked, copies))
            if not copies:
                story.reports += list_reports(asked, unique_key, story.unknown)


def _join(told: Sequence[tuple[str, Story]]) -> Story:
    copies: list[Copy] = []
    for _, broker, copy in merge(*(_list_by_age(*one) for one in told), key=lambda aged: aged[0]):
        copy.broker = broker
        if copy.role is Role.SENT and copies:
            copy.role = Role.SENT_AGAIN
            copy.text = _role_text(copy.message, copy.role)
        copy.text = Sentence("{broker}: {event}", broker=broker, event=copy.text)
        copies.append(copy)
    stories = [story for _, story in told]
    reports = [report for story in stories for report in story.reports]
    unknown = list(dict.fromkeys(text for story in stories for text in story.unknown))
    return Story(stories[0].unique_key, copies, reports, _state_text(copies), unknown)


def _list_by_age(broker: str, story: Story) -> list[tuple[int, str, Copy]]:
    """Return copies with times that keep the order of the log."""
    ages = accumulate((copy.message.record.store_timestamp for copy in story.copies), max)
    return [(age, broker, copy) for age, copy in zip(ages, story.copies, strict=True)]


# the copies of a message


def _copies(source: Source, seed: Message, unknown: list[Sentence]) -> dict[int, Message]:
    """Return the copies of a message by offset; add missing facts to *unknown*."""
    found = {seed.record.physical_offset: seed}
    if seed.unique_key:
        # Search the message's own topics, the topics in which messages wait, and retry and dead-letter topics.
        own = filter(None, (seed.topic, seed.properties.get(REAL_TOPIC), seed.properties.get("RETRY_TOPIC")))
        moved = (topic for topic in source.topics() if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
        for other in source.copies(seed.unique_key, sorted({*own, *moved, *HALF_TOPICS, *_WAITING_TOPICS})):
            if len(found) >= _MOST_COPIES:
                unknown.append(Sentence("only {count:,} messages with this id are shown", count=_MOST_COPIES))
                break
            found.setdefault(other.record.physical_offset, other)
        if any(map(_own_key, found.values())):
            found = {offset: other for offset, other in found.items() if _is_copy(seed, other)}
    else:
        unknown.append(Sentence("the message has no unique key: other copies of it cannot be found"))
    half = found[max(found)].record.prepared_transaction_offset
    if half and half not in found:
        prepared = source.by_offset(half)
        if prepared is not None and prepared.unique_key == seed.unique_key:
            found[half] = prepared
    return found


def _own_key(message: Message) -> bytes | None:
    """Return the producer's id of a message in a batch, if the broker added the batch's id, which all share."""
    named = [part for part in message.record.properties_raw.split(b"\2") if part.startswith(_UNIQUE_KEY_IS)]
    return named[0] if len(named) > 1 else None


def _is_copy(seed: Message, other: Message) -> bool:
    """Return whether one message of a batch is a copy of the other: a retry only has the batch's id."""
    if _own_key(seed) and _own_key(other):
        return _own_key(seed) == _own_key(other)
    return (seed.record.body, seed.keys, seed.tags) == (other.record.body, other.keys, other.tags)


def _find_role(message: Message, before: Sequence[Copy]) -> Role:
    topic = message.topic
    if topic in HALF_TOPICS:
        return Role.HALF
    if topic == ABANDONED_TOPIC:
        return Role.ABANDONED
    if topic in _WAITING_TOPICS:
        is_retry = message.properties.get(REAL_TOPIC, "").startswith((RETRY_PREFIX, DLQ_PREFIX))
        return Role.RETRY_WAITING if is_retry else Role.DELAYED if topic == SCHEDULE_TOPIC else Role.TIMED
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return Role.RETRIED if topic.startswith(RETRY_PREFIX) else Role.DEAD_LETTER
    sent = Role.SENT_AGAIN if before else Role.SENT
    if any(_is_delivery(copy, message) for copy in before):
        sent = Role.DELIVERED
    return _BY_TRANSACTION.get(message.transaction, sent)


def _is_delivery(waiting: Copy, message: Message) -> bool:
    """Return whether *message* may be the delivery of a *waiting* copy: it has the topic to which that one is sent."""
    return waiting.message.topic in _WAITING_TOPICS and waiting.message.properties.get(REAL_TOPIC) == message.topic


def _role_text(message: Message, role: Role) -> Sentence:
    about, record, template = message.properties, message.record, _TEMPLATES[role]
    topic, queue = message.topic, str(record.queue_id)
    if role in _WAITING:
        topic, queue = about.get(REAL_TOPIC, topic), about.get(REAL_QID, queue)
    checks, rolls = about.get("TRANSACTION_CHECK_TIMES"), about.get("TIMER_ROLL_TIMES")
    if role is Role.HALF and checks:
        template += ", returned to the queue after transaction check {checks}"
    elif role is Role.TIMED and rolls:
        template += ", re-enqueued by the timer {rolls} times"
    elif role is Role.RETRY_WAITING and topic.startswith(DLQ_PREFIX):  # older brokers delay dead letters like retries
        template = "not consumed by {group} after {tries} attempts: waiting to be moved to the dead-letter queue"
    return Sentence(
        template,
        topic=topic,
        queue=queue,
        number=record.queue_offset,
        host=host_port_text(record.born_host),
        group=about.get("PGROUP", "?") if role is Role.HALF else _group_of(topic),
        tries=record.reconsume_times,
        origin=about.get("DLQ_ORIGIN_TOPIC", about.get("RETRY_TOPIC", "?")),
        level=about.get(DELAY, "?"),
        checks=checks,
        rolls=rolls,
    )


def _group_of(topic: str) -> str | None:
    prefix = next((one for one in (RETRY_PREFIX, DLQ_PREFIX) if topic.startswith(one)), None)
    return None if prefix is None else topic.removeprefix(prefix)


def _add_facts(source: Source, copy: Copy, copies: Sequence[Copy], unknown: list[Sentence]) -> None:
    """Add to a copy the facts that queues, index files, op messages and consumers have about it."""
    message = copy.message
    copy.removal = source.removal_sentence(message)
    if not copy.is_superseded:  # else it has no units or index entries, and other messages have its queue offset
        copy.queues, copy.keys = source.queue_facts(message), source.key_facts(message)
    if copy.role is Role.HALF:
        copy.ended_by, was_cut_short = (
            find_half_message_end(source, message) if message.topic in HALF_TOPICS else (None, False)
        )
        copy.text = Sentence("{half}: {state}", half=copy.text, state=_half_state(copy, copies))
        if was_cut_short:
            unknown.append(
                Sentence("only the newest 4,096 op messages were read: an older one may have ended the transaction")
            )
    elif message.topic in _WAITING_TOPICS:
        # The delivery time is in a property (timer message) or in the unit (delayed message).
        codes = (fact.tags_code for fact in copy.queues if fact.tags_code is not None)
        is_timed = message.topic == TIMER_TOPIC
        copy.due = parse_whole_number(message.properties.get("TIMER_OUT_MS", "")) if is_timed else next(codes, None)
        later = (one.message for one in copies if one.message.record.store_timestamp >= message.record.store_timestamp)
        if not any(_is_delivery(copy, one) for one in later):
            copy.text = Sentence("{waiting}; the delivered message was not found", waiting=copy.text)


def _half_state(copy: Copy, copies: Sequence[Copy]) -> Sentence:
    ends = [one.role for one in copies if one.message.record.prepared_transaction_offset == copy.offset]
    if Role.COMMITTED in ends:
        return Sentence("committed")
    later = [one.offset for one in copies if one.role is Role.HALF and one.offset > copy.offset]
    if later:
        return Sentence("returned to the queue for another transaction check at offset {offset:,}", offset=later[0])
    if copy.ended_by is not None or Role.ROLLED_BACK in ends:
        return Sentence("rolled back")
    if any(one.role is Role.ABANDONED for one in copies):
        return Sentence("abandoned")
    return Sentence("neither committed nor rolled back yet")


# traces of clients, and progress of consumer groups


def list_reports(source: Source, unique_key: str, unknown: list[Sentence]) -> list[TraceReport]:
    """Return the traces of a message in the trace topics of one store; add missing facts to *unknown*."""
    topics = sorted(name for name in source.topics() if name == TRACE_TOPIC or name.startswith("rmq_sys_TRACE_DATA_"))
    found = chain.from_iterable(source.by_key(KeyQuery(KeyKind.KEY, topic, unique_key)) for topic in topics)
    messages = list(islice(found, _MOST_TRACES))
    if next(found, None) is not None:
        unknown.append(Sentence("only {count:,} messages with traces were read", count=_MOST_TRACES))
    traces = [
        (trace, message)
        for message in messages
        for trace in decode_traces(message.body_within() or message.record.body)
        if trace.message_id == unique_key
    ]
    # A SubAfter line may name no group; the SubBefore line of the same request does.
    groups = {trace.request_id: trace.client_group for trace, _ in traces if trace.request_id and trace.client_group}
    return [
        (trace, _trace_text(trace, message, groups.get(trace.request_id or "", "?")), source.origin_of(message))
        for trace, message in traces
    ]


def _trace_text(trace: Trace, message: Message, group: str) -> Sentence:
    event = Sentence(
        _TRACES[trace.kind],
        group=trace.client_group or group,
        host=address_text(message.record.born_host),
        tries=(trace.retry_times or 0) + 1,
        state=trace.transaction_state,
    )
    if trace.cost_ms is not None and trace.kind in {TraceKind.SENT, TraceKind.CONSUMED}:
        event = Sentence("{event} in {cost} ms", event=event, cost=trace.cost_ms)
    if trace.is_success is not None and trace.kind not in {TraceKind.RECEIVED, TraceKind.TRANSACTION_ENDED}:
        event = Sentence("{event}, success" if trace.is_success else "{event}, failed", event=event)
    return Sentence("trace: {event}", event=event)


def _list_group_facts(
    copy: Copy, later: Sequence[Copy], consumers: Sequence[tuple[ConsumerProgress, FactOrigin]]
) -> Iterator[GroupFact]:
    waiting = (
        one.message.properties.get(REAL_TOPIC, "") if one.role is Role.RETRY_WAITING else one.message.topic
        for one in later
    )
    retried = set(map(_group_of, waiting))
    queue, number = (copy.message.topic, copy.message.record.queue_id), copy.message.record.queue_offset
    here = [(consumer, place) for consumer, place in consumers if (consumer.topic, consumer.queue_id) == queue]
    pulled = {
        consumer.consumer_group: consumer.next_offset for consumer, _ in here if consumer.kind is ConsumerKind.PULL
    }
    for consumer, place in here:
        if consumer.kind is ConsumerKind.CONSUMER and consumer.consumer_group:
            state = ConsumptionState.NOT_YET
            if consumer.next_offset > number:
                state = ConsumptionState.FAILED if consumer.consumer_group in retried else ConsumptionState.CONSUMED
            elif pulled.get(consumer.consumer_group, -1) > number:
                state = ConsumptionState.IN_FLIGHT
            yield GroupFact(consumer.consumer_group, state, consumer.next_offset, place)


def _state_text(copies: Sequence[Copy]) -> Sentence:
    if all(copy.is_superseded for copy in copies):
        return Sentence("lost: its broker truncated the log")
    last = copies[-1]
    dead = {str(_group_of(copy.message.topic)) for copy in copies if copy.role is Role.DEAD_LETTER}
    if dead:
        return Sentence("dead letter of {groups}", groups=", ".join(sorted(dead)))
    if last.role is Role.HALF:
        return _half_state(last, [copy for copy in copies if copy.broker == last.broker])
    state = Sentence("waiting for its delivery time" if last.role in _WAITING else last.role.value.replace("_", " "))
    if last.role not in _READ_BY_CONSUMERS:
        return state
    facts = [fact for copy in copies if copy.role in _READ_BY_CONSUMERS for fact in copy.groups]
    done = {fact.group for fact in facts if fact.state is ConsumptionState.CONSUMED}
    others = {fact.group for fact in facts} - done
    if not facts:
        return Sentence("{state}; no consumer group has an offset in its queue", state=state)
    if done:
        state = Sentence("{state}, consumed by {groups}", state=state, groups=", ".join(sorted(done)))
    if others:
        state = Sentence("{state}, not yet consumed by {groups}", state=state, groups=", ".join(sorted(others)))
    return state


# the history as text and as JSON


class TimelineLine(NamedTuple):
    """A line of the timeline, and its sub-lines."""

    time: int | None
    text: Sentence
    place: FactOrigin
    below: Sequence[Sentence]
    physical_offset: int | None = None  # the offset of a copy of the message; None for a client's report
    broker: str | None = None  # of this copy, in a history on several brokers


def story_lines(story: Story, zone: tzinfo | None) -> Iterator[str]:
    """Yield the lines of a history: the state first, then the events in log and time order."""
    message = story.copies[0].message
    keys = f", keys {' '.join(message.keys)}" if message.keys else ""
    tags = f", tag {message.tags}" if message.tags else ""
    yield f"{message.message_id}{keys}{tags}: {story.state}"
    for line in timeline_lines(story, zone):
        time = "time unknown            " if line.time is None else time_text(line.time, zone)
        yield f"{time}  {line.text}"
        yield f"    source: {line.place}"
        yield from (f"    {text}" for text in line.below)
    yield from (f"unknown: {text}" for text in story.unknown)


def timeline_lines(story: Story, zone: tzinfo | None) -> list[TimelineLine]:
    """Return the events of a history in log and time order."""
    # Copies keep the order of the log even where the clock was reset; reports of clients are sorted by their time.
    timed: list[tuple[int, TimelineLine]] = []
    newest = 0
    for copy in story.copies:
        time = copy.message.record.store_timestamp
        newest = max(newest, time)
        below = list(_detail_lines(copy, zone))
        timed.append((newest, TimelineLine(time, copy.text, copy.place, below, copy.offset, copy.broker)))
    for trace, text, place in story.reports:
        reported = trace.event_timestamp
        timed.append((newest if reported is None else reported, TimelineLine(reported, text, place, ())))
    return [line for _, line in sorted(timed, key=lambda pair: pair[0])]


def _detail_lines(copy: Copy, zone: tzinfo | None) -> Iterator[Sentence]:
    yield Sentence("offset {offset:,}, offset id {id}", offset=copy.offset, id=copy.message.offset_id)
    if copy.due is not None:
        yield Sentence("due {time}", time=time_text(copy.due, zone))
    if copy.ended_by is not None:
        yield Sentence("ended by the op message at offset {offset:,}", offset=copy.ended_by.record.physical_offset)
    for unit in copy.queues:
        template = _QUEUES[unit.check]
        yield Sentence(template, topic=unit.topic, queue=unit.queue_id, number=unit.queue_offset, place=str(unit.place))
    found = [fact for fact in copy.keys if fact.check is PointerCheck.LEADS_THERE]
    if found:
        places = ", ".join(dict.fromkeys(str(fact.place) for fact in found))
        keys = ", ".join(dict.fromkeys(fact.key for fact in found))
        yield Sentence("index: found under {keys} ({places})", keys=keys, places=places)
    for fact in copy.keys:
        if fact.check is PointerCheck.MISSING:
            template = _NOT_FOUND if fact.place is None else _NOT_FOUND_IN
            kind = "unique key" if fact.kind == KeyKind.UNIQUE else fact.kind
            yield Sentence(template, kind=kind, key=fact.key, place=str(fact.place))
    if any(fact.check is PointerCheck.NOT_KNOWN for fact in copy.keys):
        yield Sentence("index: cannot be searched")
    for group in copy.groups:
        yield Sentence(
            "group {group}: {state}; the group's next offset is {offset:,} ({place})",
            group=group.group,
            state=_CONSUMED[group.state],
            offset=group.next_offset,
            place=str(group.place),
        )
    if copy.removal is not None:
        yield copy.removal


_QUEUES = {
    PointerCheck.LEADS_THERE: "queue {topic}/{queue}: unit {number:,} points to this message ({place})",
    PointerCheck.ELSEWHERE: "queue {topic}/{queue}: unit {number:,} POINTS ELSEWHERE ({place})",
    PointerCheck.MISSING: "queue {topic}/{queue}: unit {number:,} IS MISSING ({place})",
    PointerCheck.NOT_KNOWN: "queue {topic}/{queue}: unit {number:,} cannot be read ({place})",
}
_NOT_FOUND, _NOT_FOUND_IN = (
    "index: NOT FOUND under the {kind} {key}",
    "index: NOT FOUND under the {kind} {key} in {place}",
)
# The sub-lines of a timeline that report damage of a queue or the index, by their templates.
DAMAGE_TEMPLATES = {_QUEUES[PointerCheck.ELSEWHERE], _QUEUES[PointerCheck.MISSING], _NOT_FOUND, _NOT_FOUND_IN}


def story_object(story: Story) -> dict[str, object]:
    """Return a history in its JSON form."""
    return {
        "unique_key": story.unique_key,
        "state": story.state,
        "copies": list(map(_copy_object, story.copies)),
        "traces": [
            {**trace._asdict(), "text": text, "known_from": place._asdict()} for trace, text, place in story.reports
        ],
        "not_known": story.unknown,
    }


def _copy_object(copy: Copy) -> dict[str, object]:
    record = copy.message.record
    return {
        **({} if copy.broker is None else {"broker": copy.broker}),
        "role": copy.role.value,
        "text": copy.text,
        "physical_offset": record.physical_offset,
        "offset_id": copy.message.offset_id,
        "topic": copy.message.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "reconsume_times": record.reconsume_times,
        "store_time": iso_time(record.store_timestamp),
        "due_time": None if copy.due is None else iso_time(copy.due),
        "ended_by_offset": None if copy.ended_by is None else copy.ended_by.record.physical_offset,
        "retention": copy.removal,
        "known_from": copy.place._asdict(),
        "queues": list(map(_fact_object, copy.queues)),
        "keys": list(map(_fact_object, copy.keys)),
        "groups": list(map(_fact_object, copy.groups)),
    }


def _fact_object(fact: QueueFact | KeyFact | GroupFact) -> dict[str, object]:
    return {**fact._asdict(), "place": None if fact.place is None else fact.place._asdict()}
