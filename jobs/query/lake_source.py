"""One store of a lake: the same questions as of its files, also weeks after the broker has deleted them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from typing import Any, NamedTuple

from jobs.lake.lake import DEFAULT_BROKER
from jobs.launch.arguments import file_system_options
from jobs.query.lake_tables import (
    INDEX_ENTRIES,
    MESSAGES,
    QUARANTINE,
    RUNS,
    SUPERSEDED,
    LakeStore,
    LakeTables,
    one_of,
    text,
)
from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import (
    EXPLAINED_BY,
    MATTER,
    MAX_TIME,
    MIN_TIME,
    AnswersAs,
    Coverage,
    Occurrence,
    OtherBrokerError,
    Reason,
    ReasonKind,
    release_to_answer_as,
)
from jobs.query.static_topics import StaticQueue
from jobs.query.store_keys import KeyWanted, entries_under, says
from jobs.store.release import RELEASE, writers_of
from jobs.store.selection import TopicChoices
from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.commitlog.row import parse_host, record_of_row
from rmq_formats.consumequeue.unit import QueueRules, Unit, expected_units
from rmq_formats.detection import detect_eras, record_marks
from rmq_formats.errors import CorruptData
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import KeyKind, key_text
from rmq_formats.release import Release

_TOGETHER = 64  # messages that are read with one query
_MOST_OFFSETS = 1 << 20  # of messages, that are held at once
_SAMPLED = 200  # of the newest messages, which tell the release
_SAMPLED_BYTES = 1 << 20
_OURS = "total_size IS NOT NULL"  # another engine's own rows lack it
_WITH_UNIT = "transaction_type NOT IN ('prepared', 'rollback')"


class LostMessages(NamedTuple):
    """A part of a log whose messages are in no row, and why."""

    start: int
    end: int
    text: str


class LakeSource:
    """
    The rows of one store in a lake.

    Offsets and queue offsets mean something in one log only: every statement of this class names the store.
    """

    searches_all = True  # `occurrences` looks at every message
    knows_topics = True  # those that have a message in the lake
    config = None  # a lake has a table of changes, for questions in SQL

    def __init__(
        self,
        tables: LakeTables,
        store: LakeStore,
        release: Release | None = None,
        *,
        through_log: bool = False,
    ) -> None:
        """
        Answer from *tables*; the release is detected where it is not given.

        *through_log*: look at the messages themselves, as if there were no index entries.
        """
        self.notes: list[str] = []
        self.lacking: list[str] = []
        self._through_log = through_log
        self.tables = tables
        self.store = store
        self.broker = None if store.broker in {"", DEFAULT_BROKER} else store.broker
        self._given_release = release

    @property
    def name(self) -> str:
        """The store's label and id, by which a user chooses it."""
        return str(self.store)

    @property
    def release(self) -> Release:
        """The release that is given, that the newest run recorded, or that the newest messages show."""
        return self._answers_as.release

    @property
    def possible_releases(self) -> tuple[Release, ...]:
        """The releases that may have written the store."""
        return self._answers_as.possible

    @cached_property
    def _answers_as(self) -> AnswersAs:
        release = self._given_release or self._recorded_release
        return self._seeming_release() if release is None else AnswersAs(release, (release,))

    @property
    def _recorded_release(self) -> Release | None:
        noted = [json.loads(row["detail"] or "{}").get(RELEASE) for row in self._runs]
        return next((Release.of(name) for name in reversed(noted) if name), None)

    def _seeming_release(self) -> AnswersAs:
        newest = self.select("max(physical_offset) AS offset", MESSAGES, _OURS)[0]["offset"] or 0
        sampled = f"physical_offset >= {newest - _SAMPLED_BYTES}"
        rows = self.select("*", MESSAGES, sampled, _OURS, rest=f"LIMIT {_SAMPLED}")
        records = [_record(row) for row in rows]
        eras = detect_eras(mark for record in records for mark in record_marks(record))
        seems = release_to_answer_as(writers_of(eras, MATTER))
        if seems.note:
            self.say(seems.note)
        return seems

    def condition(self, *conditions: str) -> str:
        """Return *conditions* as SQL, and that of the store."""
        return " AND ".join((f"store_id = {text(self.store.store_id)}", *conditions))

    def select(self, columns: str, table: str, *conditions: str, rest: str = "") -> list[dict[str, Any]]:
        """Return rows of a table, of this store; the caller has quoted every text."""
        return self.tables.rows(f"SELECT {columns} FROM {table} WHERE {self.condition(*conditions)} {rest}")  # noqa: S608

    def _newest_first(self, *conditions: str, table: str = MESSAGES) -> Iterator[Message]:
        """Yield the messages of rows that the conditions hold for, or that index entries lead to, each once."""
        return self.placed(self._offsets(table, conditions))

    def _offsets(self, table: str, conditions: Sequence[str]) -> Iterator[int]:
        """
        Yield the offsets of rows, descending, each once.

        They come in parts, each with a limit that reaches the storage: whoever needs few reads few, and memory does not
        grow with the number of rows.
        """
        before, count = MAX_TIME, _TOGETHER
        while True:
            where = self.condition(*conditions, f"physical_offset < {before}")
            order = f"ORDER BY physical_offset DESC LIMIT {count}"
            found = self.tables.numbers(f"SELECT physical_offset FROM {table} WHERE {where} {order}")  # noqa: S608
            yield from (offset for offset, _ in groupby(found))
            if len(found) < count:
                return
            before, count = found[-1], min(count * 16, _MOST_OFFSETS)

    def placed(self, offsets: Iterable[int]) -> Iterator[Message]:
        """Yield the messages at offsets, in their order."""
        left = iter(offsets)
        while some := list(islice(left, _TOGETHER)):
            rows = self.select("*", MESSAGES, one_of("physical_offset", some), _OURS)
            by_offset = {row["physical_offset"]: row for row in rows}
            lost = [offset for offset in some if offset not in by_offset]
            if lost:
                self.lack(
                    f"the table {MESSAGES} has no row of {len(lost)} messages that {INDEX_ENTRIES} has entries of, the "
                    f"first at offset {min(lost)}: rows were deleted"
                )
            yield from (self._message(by_offset[offset]) for offset in some if offset in by_offset)

    def _first(self, *conditions: str, order: str = "ASC") -> Message | None:
        """Return the message that is stored first, or last, of those that the conditions hold for."""
        rows = self.select("*", MESSAGES, *conditions, _OURS, rest=f"ORDER BY physical_offset {order} LIMIT 1")
        return self._message(rows[0]) if rows else None

    def _message(self, row: Mapping[str, Any]) -> Message:
        if row.get("body", b"") is None and row["body_length"] > 0:
            self.say("this lake was made without bodies")
        return Message(_record(row), self.release, row["store_id"])

    # keys

    def under_unique_key(self, unique_key: str) -> Iterator[Message]:
        """Yield the messages of every topic that have a producer's id, newest first."""
        if len(self.tables.stores) > 1:
            self._note_copies_elsewhere(unique_key)
        return self._newest_first(f"uniq_key = {text(unique_key)}")

    def _note_copies_elsewhere(self, unique_key: str) -> None:
        """Note that other stores have copies: a client retries on another broker where it cannot reach the first."""
        has_key = f"uniq_key = {text(unique_key)} AND store_id <> {text(self.store.store_id)}"
        found = self.tables.rows(f"SELECT DISTINCT broker, store_id FROM {MESSAGES} WHERE {has_key}")  # noqa: S608
        others = sorted(str(LakeStore(row["broker"], row["store_id"])) for row in found)
        if others:
            self.say(f"other stores of the lake have copies of this message: {', '.join(others)}; --broker asks them")

    def superseded(self, condition: str) -> Iterator[Message]:
        """Yield the messages that their broker took back, of those that a condition holds for."""
        if self.tables.has(SUPERSEDED):
            yield from map(self._message, self.select("*", SUPERSEDED, condition, _OURS))

    def taken_back(self, text_: str) -> Iterator[Message]:
        """Yield the messages that their broker took back, with a text as an id or as a key."""
        quoted = text(text_)
        ids = f"uniq_key = {quoted} OR offset_msg_id = {text(text_.upper())}"
        return self.superseded(f"({ids} OR array_has(keys, {quoted}))")

    def find(
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
            return self._newest_first(f"uniq_key = {text(key)}", *of_topic)
        if kind is KeyKind.TAG:
            return self._newest_first(f"tags = {text(key)}", *of_topic)
        if not self._through_log and self.tables.has(INDEX_ENTRIES):
            key_hash = index_key_hash(key_text(topic, key))
            of_key = (f"key_hash = {key_hash}", of_topic[0], f"key = {text(key)}", *window)
            return self._newest_first(*of_key, table=INDEX_ENTRIES)
        if not self._through_log:
            self.say("the lake has no table index_entries: every message's keys are looked at")
        return self._newest_first(f"array_has(keys, {text(key)})", *of_topic)

    def key_hits(self, topic: str, key: str, begin: int = MIN_TIME, end: int = MAX_TIME) -> Iterator[Message]:
        """Yield the message of every index entry that a broker finds for a key, in its order; others' keys, too."""
        self.asked_of(topic)
        if self._through_log or not self.tables.has(INDEX_ENTRIES):
            yield from self.find(KeyKind.KEY, topic, key, begin, end)
            return
        self.lack_damage()
        key_hash = index_key_hash(key_text(topic, key))
        for message in self._newest_first(f"key_hash = {key_hash}", *_window(begin, end), table=INDEX_ENTRIES):
            yield from [message] * entries_under(message, key_hash)

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
        found = self.find(kind, message.topic, key)
        return any(other.record.physical_offset == message.record.physical_offset for other in found)

    # places

    def at(self, physical_offset: int, host: Host | None) -> Message | None:
        """Return the message that begins at an offset; of several brokers' that of *host*, else the newest."""
        found = [
            self._message(row) for row in self.select("*", MESSAGES, f"physical_offset = {physical_offset}", _OURS)
        ]
        found.sort(key=lambda message: message.record.store_timestamp, reverse=True)
        own = [message for message in found if host is None or message.record.store_host == host]
        return next(iter(own or found), None)

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
        self._note_left_out(self.lacking)
        return Reason(ReasonKind.NO_RECORD, f"no message begins at offset {physical_offset}")

    # queues

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return which offsets a queue holds; None when there is no such queue."""
        self.asked_of(topic)
        conditions = (f"topic = {text(topic)}", f"queue_id = {queue_id}", _WITH_UNIT)
        row = self.select("min(queue_offset) AS first, max(queue_offset) AS last", MESSAGES, *conditions)[0]
        return None if row["first"] is None else OffsetRange(row["first"], row["last"] + 1)

    def in_queue(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number; of several, the one that was stored first."""
        conditions = (f"topic = {text(topic)}", f"queue_id = {queue_id}", f"queue_offset = {queue_offset}", _WITH_UNIT)
        return self._first(*conditions)

    def run_of_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield the messages of a queue by their numbers from *begin* to before *end*, None for one that is lost."""
        for start in range(begin, end, _TOGETHER):
            stop = min(start + _TOGETHER, end)
            place = (f"topic = {text(topic)}", f"queue_id = {queue_id}", _WITH_UNIT)
            numbers = (f"queue_offset >= {start}", f"queue_offset < {stop}")
            found = self._newest_first(*place, *numbers)
            by_number = {message.record.queue_offset: message for message in found}
            yield from (by_number.get(number) for number in range(start, stop))

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return the unit that a queue has for a message."""
        message = self.in_queue(topic, queue_id, queue_offset)
        if message is None:
            return None
        made = next(expected_units(message.record, QueueRules(((0, self.release),))), None)
        return made.unit if made and isinstance(made.unit, Unit) else None

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset that one pull does not go beyond: a lake has no queue files to end at."""
        del topic, queue_id, queue_offset
        return MAX_TIME

    def searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """Return all of the queue: a lake has no queue files."""
        del topic, queue_id, time
        return offsets

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues that have messages."""
        self.asked_of(topic)
        condition = self.condition(f"topic = {text(topic)}", _WITH_UNIT)
        return sorted(self.tables.values("queue_id", condition))

    # the lake as a whole

    @cached_property
    def _chosen(self) -> list[TopicChoices | str]:
        """The topics that runs took, or why they are not known; the newest run has those of all before it."""
        return [self.tables.chosen(row["detail"], row["manifest"]) for row in self._runs[-1:]]

    @cached_property
    def _runs(self) -> list[dict[str, Any]]:
        """What each run of the store noted, the newest last."""
        if not self.tables.has(RUNS):
            return []
        return self.select("manifest, detail", RUNS, "state = 'prepared'", rest="ORDER BY run")

    def asked_of(self, topic: str | None, *, is_search: bool = False) -> None:
        """
        Note that runs left out messages of *topic*, which an answer then lacks; of any topic where none is named.

        A list of all that there is lacks nothing; a search does, whatever the topic.
        """
        if topic is None and not is_search:
            self._note_left_out(self.notes)
        else:
            self._note_left_out(self.lacking, *(() if topic is None else (topic,)))

    def _note_left_out(self, noted: list[str], *topics: str) -> None:
        reasons = dict.fromkeys(one if isinstance(one, str) else one.left_out(topics) for one in self._chosen)
        noted += [reason for reason in reasons if reason and reason not in noted]

    def topics(self) -> frozenset[str]:
        """Name every topic that has messages."""
        self.asked_of(None)
        return frozenset(self.tables.values("topic", self.condition(_OURS)))

    def topics_of(self, unique_key: str) -> frozenset[str]:
        """Name the topics that have a message with a producer's id."""
        rows = self.select("DISTINCT topic", MESSAGES, f"uniq_key = {text(unique_key)}", _OURS)
        if not rows:
            self._note_left_out(self.lacking)
        return frozenset(row["topic"] for row in rows)

    @property
    def lacks(self) -> str | None:
        """Say that runs found damage, whose messages are in the table `quarantine` and no rows of `messages`."""
        count = self.select("count(*) AS places", QUARANTINE)[0]["places"] if self.tables.has(QUARANTINE) else 0
        places = f"{count} damaged place{'' if count == 1 else 's'}"
        return f"the lake's table quarantine has {places}, whose messages are not answered" if count else None

    def damage(self, low: int = 0, high: int = MAX_TIME) -> list[LostMessages]:
        """Return what runs found damaged, or did not find, between two offsets: its messages are in no row."""
        found: list[LostMessages] = []
        if self.tables.has(QUARANTINE):
            inside = (f"physical_offset < {high}", f"physical_offset + length > {low}")
            columns = "count(*) AS places, min(physical_offset) AS first, max(physical_offset + length) AS last"
            row = self.select(columns, QUARANTINE, *inside)[0]
            if row["places"]:
                places = f"{row['places']} damaged place{'' if row['places'] == 1 else 's'}"
                text_ = f"runs found {places} in the log, the first at offset {row['first']} (table quarantine)"
                found.append(LostMessages(row["first"], row["last"], text_))
        gaps = [gap for run in self._runs for gap in json.loads(run["detail"] or "{}").get("gaps") or ()]
        for gap in gaps:
            start, end, why = gap["from"], gap["to"], gap.get("why", "a gap")
            if start < high and end > low:
                found.append(LostMessages(start, end, f"runs did not find the log from offset {start} to {end}: {why}"))
        return found

    def lack_damage(self, low: int = 0, high: int = MAX_TIME) -> None:
        """Note that runs found damage or gaps between two offsets, whose messages an answer lacks."""
        for lost in self.damage(low, high):
            self.lack(lost.text)

    def next_number(self, topic: str, queue_id: int, number: int) -> int:
        """Return the next number of a queue that has a message, this one or a later one; this one without any."""
        place = (f"topic = {text(topic)}", f"queue_id = {queue_id}", f"queue_offset >= {number}", _WITH_UNIT)
        row = self.select("min(queue_offset) AS number", MESSAGES, *place)[0]
        return number if row["number"] is None else int(row["number"])

    def complete_queues(self, topic: str) -> None:
        """Note why the queues of a topic may lack messages: a lake has no other source than its rows."""
        del topic
        self.lack_damage()

    def has_topic(self, topic: str) -> bool:
        """Return whether *topic* has messages."""
        self.asked_of(topic)
        return topic in self.topics()

    def stored_of(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and the last message of *topic*."""
        first, last = (self._first(f"topic = {text(topic)}", order=order) for order in ("ASC", "DESC"))
        return (first, last) if first and last else None

    def static_queues(self, topic: str) -> list[StaticQueue]:
        """Return none: a lake has no broker's tables."""
        del topic
        return []

    def hosts(self) -> list[Host]:
        """Return every store host."""
        return sorted(map(parse_host, self.tables.values("store_host", self.condition(_OURS))))

    def coverage(self) -> Coverage:
        """Return the first and last offset and time of the lake's messages."""
        row = self.select(
            "min(physical_offset) AS first, max(physical_offset + total_size) AS last, "
            "min(store_timestamp) AS oldest, max(store_timestamp) AS newest",
            MESSAGES,
        )[0]
        return Coverage(row["first"] or 0, row["last"] or 0, row["oldest"], row["newest"])

    def say(self, note: str) -> None:
        """Note something, once."""
        if note not in self.notes:
            self.notes.append(note)

    def lack(self, reason: str) -> None:
        """Note why an answer may not be complete, once."""
        if reason not in self.lacking:
            self.lacking.append(reason)


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


def _window(begin: int, end: int) -> list[str]:
    conditions = [f"store_timestamp >= {begin}"] if begin != MIN_TIME else []
    return [*conditions, *([f"store_timestamp <= {end}"] if end != MAX_TIME else [])]


def _record(row: Mapping[str, Any]) -> MessageRecord:
    """Return the record of a row; an empty body where the lake has no bodies."""
    try:
        return record_of_row({**row, "body": row["body"] or b""})
    except KeyError as error:
        reason = f"the lake's table {MESSAGES} has no column {error.args[0]}: another engine has made it again without"
        raise CorruptData(reason) from error
