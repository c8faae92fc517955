"""One store of a lake: the same questions as of its files, also weeks after the broker has deleted them."""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby, pairwise

from jobs.launch.arguments import file_system_options
from jobs.query.lake_facts import LakeFacts
from jobs.query.lake_tables import INDEX_ENTRIES, MESSAGES, OURS, LakeStore, LakeTables, one_of, text
from jobs.query.lake_view import TOGETHER
from jobs.query.message import MAX_TIME, MIN_TIME, KeyWanted, Message, Wanted, entries_under, says
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import (
    EXPLAINED_BY,
    Coverage,
    Occurrence,
    OtherBrokerError,
    Reason,
    ReasonKind,
)
from rmq_formats.commitlog.record import Host
from rmq_formats.commitlog.row import parse_host
from rmq_formats.consumequeue.unit import QueueRules, Unit, expected_units
from rmq_formats.flags import COMPRESSED
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import KeyKind, key_text
from rmq_formats.release import Release

_DECOMPRESSED = 500  # messages that are read together to search their bodies
_FIRST_ROWS = 200_000  # of a first window
_WITH_UNIT = "transaction_type NOT IN ('prepared', 'rollback')"


class LakeSource(LakeFacts):
    """The messages of one store in a lake."""

    # messages

    def by_offset(self, physical_offset: int) -> Message | None:
        """Return the message that begins at an offset."""
        return self.first(f"physical_offset = {physical_offset}")

    def by_key(
        self, kind: KeyKind, topic: str, key: str, begin: int = MIN_TIME, end: int = MAX_TIME
    ) -> Iterator[Message]:
        """Yield the messages under a key, newest first, once for every time the broker indexed them under it."""
        self.asked_of(topic)
        self.lack_damage()
        wanted = KeyWanted(kind, topic, key)
        for message in self._candidates(kind, topic, key, _window(begin, end)):
            if wanted.has_key(message):
                yield from [message] * wanted.times_indexed(message)

    def _candidates(self, kind: KeyKind, topic: str, key: str, window: Sequence[str]) -> Iterator[Message]:
        of_topic = (f"topic = {text(topic)}", *window)
        if kind is KeyKind.UNIQUE:
            return self.newest_first(MESSAGES, f"uniq_key = {text(key)}", *of_topic)
        if kind is KeyKind.TAG:
            return self.newest_first(MESSAGES, f"tags = {text(key)}", *of_topic)
        if not self._through_log and self.tables.has(INDEX_ENTRIES):
            key_hash = index_key_hash(key_text(topic, key))
            return self.newest_first(INDEX_ENTRIES, f"key_hash = {key_hash}", f"key = {text(key)}", *of_topic)
        if not self._through_log:
            self.say("the lake has no table index_entries: every message's keys are looked at")
        return self.newest_first(MESSAGES, f"array_has(keys, {text(key)})", *of_topic)

    def by_entry(self, topic: str, key: str, begin: int = MIN_TIME, end: int = MAX_TIME) -> Iterator[Message]:
        """Yield the message of every index entry under a key's hash, in the broker's order, also of other keys."""
        self.asked_of(topic)
        if self._through_log or not self.tables.has(INDEX_ENTRIES):
            yield from self.by_key(KeyKind.KEY, topic, key, begin, end)
            return
        self.lack_damage()
        key_hash = index_key_hash(key_text(topic, key))
        for message in self.newest_first(INDEX_ENTRIES, f"key_hash = {key_hash}", *_window(begin, end)):
            yield from [message] * entries_under(message, key_hash)

    def by_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield the messages of a queue by their numbers; of several with one number, the one that was stored first."""
        for start in range(begin, end, TOGETHER):
            stop = min(start + TOGETHER, end)
            numbers = (f"queue_offset >= {start}", f"queue_offset < {stop}")
            found = self.newest_first(MESSAGES, *_in_queue(topic, queue_id), *numbers)
            by_number = {message.record.queue_offset: message for message in found}
            yield from (by_number.get(number) for number in range(start, stop))

    def in_queue(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number; of several, the one that was stored first."""
        return self.first(*_in_queue(topic, queue_id), f"queue_offset = {queue_offset}")

    def by_time(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """
        Yield messages that are stored before an offset of the log, the newest first.

        A large table is read in parts of the log that grow, as the statistics of its files cut them: a first page
        reads the newest files alone.
        """
        self.asked_of(wanted.topic, is_search=wanted.is_search)
        if wanted.key is not None and self.tables.has(INDEX_ENTRIES):
            found = self.placed(self._offsets_under(wanted, before))
            yield from ((message.record.physical_offset, message) for message in found)
            return
        conditions = list(self._conditions(wanted))
        together = limit + 1 if wanted.words is None else max(limit + 1, _DECOMPRESSED)
        for low in self._lower_bounds(before):
            inside = [f"physical_offset >= {low}"] if low else []
            offsets = self.offsets(MESSAGES, OURS, *conditions, *inside, before=before, together=together)
            yield from ((message.record.physical_offset, message) for message in self.placed(offsets))
            if low:
                yield low, None
            before = low

    def _offsets_under(self, wanted: Wanted, before: int) -> Iterator[int]:
        """Return the offsets of messages with a key, by the index, or with it as their producer's id, descending."""
        topics = [wanted.topic] if wanted.topic is not None else sorted(self.topics())
        hashes = {index_key_hash(key_text(topic, wanted.key or "")) for topic in topics}
        window = _window(wanted.begin, wanted.end)
        of_topic = [f"topic = {text(wanted.topic)}"] if wanted.topic is not None else []
        has_id = f"uniq_key = {text(wanted.key or '')}"
        found = [self.offsets(MESSAGES, has_id, OURS, *of_topic, *window, before=before)]
        if topics:
            entries = (one_of("key_hash", hashes), one_of("topic", topics), f"key = {text(wanted.key or '')}", *window)
            found.append(self.offsets(INDEX_ENTRIES, *entries, before=before))
        return (offset for offset, _ in groupby(merge(*found, reverse=True)))

    def _conditions(self, wanted: Wanted) -> Iterator[str]:
        yield from _window(wanted.begin, wanted.end)
        if wanted.topic is not None:
            yield f"topic = {text(wanted.topic)}"
        if wanted.queue_id is not None:
            yield f"queue_id = {wanted.queue_id}"
        if wanted.tag is not None:
            yield f"tags = {text(wanted.tag)}"
        if wanted.key is not None:
            yield f"(uniq_key = {text(wanted.key)} OR array_has(keys, {text(wanted.key)}))"
        if wanted.words is not None:
            # Bodies are any bytes: SQL compares their digits, and the caller the bytes of each message that is found.
            digits = text(wanted.words.encode().hex())
            inflated = "body_inflated" in self.tables.kinds(f"SELECT * FROM {MESSAGES}")  # noqa: S608 - a name of ours
            found = [f"contains(encode({name}, 'hex'), {digits})" for name in ("body", "body_inflated")[: 1 + inflated]]
            # What no run has decompressed is decompressed by the caller.
            packed = f"sys_flag & {COMPRESSED} = {COMPRESSED}{' AND body_inflated IS NULL' if inflated else ''}"
            yield f"({' OR '.join(found)} OR ({packed}))"

    def _lower_bounds(self, high: int) -> Iterator[int]:
        """Yield offsets, descending, to which the messages before *high* are read part by part, each part larger."""
        files = [file for file in self.tables.files(MESSAGES, "physical_offset") if file.low is None or file.low < high]
        wanted, rows = _FIRST_ROWS, 0
        for file, following in pairwise(files):
            rows += file.rows or 0
            # Messages after the following file's last offset can only be in the files that are passed.
            low = None if following.high is None else following.high + 1
            if low is not None and rows >= wanted and low < high and file.high is not None:
                yield low
                high, wanted, rows = low, wanted * 4, 0
        yield 0

    # queues and topics

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return which offsets a queue holds; None when the queue does not exist."""
        self.asked_of(topic)
        columns = "min(queue_offset) AS first, max(queue_offset) AS last"
        row = self.select(columns, MESSAGES, *_in_queue(topic, queue_id))[0]
        return None if row["first"] is None else OffsetRange(row["first"], row["last"] + 1)

    def complete_queues(self, topic: str) -> None:
        """Note why the queues of a topic may lack messages: a lake has no other source than its rows."""
        del topic
        self.lack_damage()

    def next_number(self, topic: str, queue_id: int, number: int) -> int:
        """Return the next number of a queue that has a message, this one or a later one; this one without any."""
        conditions = (*_in_queue(topic, queue_id), f"queue_offset >= {number}")
        row = self.select("min(queue_offset) AS number", MESSAGES, *conditions)[0]
        return number if row["number"] is None else int(row["number"])

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return the unit that a broker makes of a message."""
        message = self.in_queue(topic, queue_id, queue_offset)
        if message is None:
            return None
        made = next(expected_units(message.record, QueueRules(((0, self.release),))), None)
        return made.unit if made and isinstance(made.unit, Unit) else None

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues that have messages."""
        self.asked_of(topic)
        return sorted(self.tables.values("queue_id", self.condition(f"topic = {text(topic)}", _WITH_UNIT)))

    def has_topic(self, topic: str) -> bool:
        """Return whether *topic* has messages."""
        self.asked_of(topic)
        return topic in self.topics()

    def topics(self) -> frozenset[str]:
        """Name every topic that has messages."""
        self.asked_of(None)
        return frozenset(self.tables.values("topic", self.condition(OURS)))

    def topics_of(self, unique_key: str) -> frozenset[str]:
        """Name the topics that have a message with a producer's id."""
        rows = self.select("DISTINCT topic", MESSAGES, f"uniq_key = {text(unique_key)}", OURS)
        if not rows:
            self.lack_left_out()
        return frozenset(row["topic"] for row in rows)

    def stored_of(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and the last message of *topic*."""
        first, last = (self.first(f"topic = {text(topic)}", order=order) for order in ("ASC", "DESC"))
        return (first, last) if first and last else None

    # to explain an empty answer

    def occurrences(self, text_: str) -> Iterator[Occurrence]:
        """Yield messages that have a text as a key of any kind, under any topic; to explain an empty answer."""
        quoted = text(text_)
        condition = f"(uniq_key = {quoted} OR tags = {quoted} OR array_has(keys, {quoted}))"
        oldest_first = f"ORDER BY store_timestamp, physical_offset LIMIT {EXPLAINED_BY}"
        places = self.select("store_timestamp, physical_offset", MESSAGES, condition, rest=oldest_first)
        for message in self.placed(place["physical_offset"] for place in places):
            for kind in KeyKind:
                if says(message, kind, text_):
                    yield Occurrence(message, kind, self._is_indexed(message, kind, text_))

    def _is_indexed(self, message: Message, kind: KeyKind, key: str) -> bool:
        found = self.by_key(kind, message.topic, key)
        return any(other.record.physical_offset == message.record.physical_offset for other in found)

    def taken_back(self, text_: str) -> Iterator[Message]:
        """Yield the messages that their broker took back, with a text as an id or as a key."""
        quoted = text(text_)
        ids = f"uniq_key = {quoted} OR offset_msg_id = {text(text_.upper())}"
        return self.superseded(f"({ids} OR array_has(keys, {quoted}))")

    def place(self, physical_offset: int) -> Reason:
        """Return the reason why no message begins at an offset."""
        columns, is_before = "physical_offset, total_size, offset_msg_id", f"physical_offset < {physical_offset}"
        before = self.select(columns, MESSAGES, is_before, rest="ORDER BY physical_offset DESC LIMIT 1")
        covered = self.coverage()
        if physical_offset < covered.first_offset or not before:
            sentence = f"offset {physical_offset} is not in the lake: it begins at {covered.first_offset}"
            return Reason(ReasonKind.SEGMENT_DELETED, sentence)
        begin, size = before[0]["physical_offset"], before[0]["total_size"]
        if physical_offset < begin + size:
            sentence = f"offset {physical_offset} points inside the record at {begin}, {before[0]['offset_msg_id']}"
            return Reason(ReasonKind.INSIDE_RECORD, sentence)
        if physical_offset >= covered.end_offset:
            sentence = f"offset {physical_offset} is after what the lake has, up to {covered.end_offset}"
            return Reason(ReasonKind.BEHIND_LOG, sentence)
        self.lack_left_out()
        return Reason(ReasonKind.NO_RECORD, f"no message begins at offset {physical_offset}")

    def count(self, wanted: Wanted) -> int | None:
        """Return the number of messages of a topic, or of all, in the wanted times."""
        counted = wanted._replace(key=None, tag=None, words=None)
        return int(self.select("count(*) AS messages", MESSAGES, OURS, *self._conditions(counted))[0]["messages"])

    def hosts(self) -> list[Host]:
        """Return every store host."""
        return sorted(map(parse_host, self.tables.values("store_host", self.condition(OURS))))

    def coverage(self) -> Coverage:
        """Return the first and last offset and time of the lake's messages."""
        row = self.select(
            "min(physical_offset) AS first, max(physical_offset + total_size) AS last, "
            "min(store_timestamp) AS oldest, max(store_timestamp) AS newest",
            MESSAGES,
        )[0]
        return Coverage(row["first"] or 0, row["last"] or 0, row["oldest"], row["newest"])


def open_lake_stores(
    lake: str, broker: str | None = None, release: Release | None = None, *, through_log: bool = False
) -> list[LakeSource]:
    """
    Open each store of a lake, or those that *broker* names, a label or an id; an empty lake is one empty store.

    `OtherBrokerError` where the lake has other stores only.
    """
    tables = LakeTables(lake, file_system_options())
    named = [store for store in tables.stores if broker is None or broker in store]
    if not named and tables.stores:
        brokers = sorted({store.broker for store in tables.stores})
        raise OtherBrokerError(
            f"the lake has messages of the broker{'s' * (len(brokers) > 1)} {', '.join(brokers)}, not of {broker}"
        )
    stores = named or [LakeStore(broker or "", "")]
    return [LakeSource(tables, store, release, through_log=through_log) for store in stores]


def _in_queue(topic: str, queue_id: int) -> tuple[str, str, str]:
    return f"topic = {text(topic)}", f"queue_id = {queue_id}", _WITH_UNIT


def _window(begin: int, end: int) -> list[str]:
    conditions = [f"store_timestamp >= {begin}"] if begin != MIN_TIME else []
    return [*conditions, *([f"store_timestamp <= {end}"] if end != MAX_TIME else [])]
