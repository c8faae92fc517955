"""
The log of a store, as one question reads it: messages by offset, by text, and backwards; lost parts become remarks.

The log can only be walked forwards. To list the newest messages it is read in spans, the last one first; a span begins
at a record to which a queue points, or at the start of a segment.
"""

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar, cast

from jobs.query import ListConditions, Message, has_key
from jobs.query.log_search import COMPILED_SCAN_MIN_BYTES, WHOLE_LOG, LogQueue, OnLoss, search_records
from jobs.query.source import Coverage, OnProgress, Reason, ReasonKind, Remarks, do_nothing
from jobs.query.store_reader import SKIPPED_SEGMENTS, StoreReader
from jobs.store.log_ends import find_lost_ends
from jobs.store.ranges import find_newest_segment_offset
from jobs.store.store import Store, read_checkpoint, relist_store
from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, ExpectedUnit, UnitRules, expected_units
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release

MAX_LOG_SEARCHED_BY_DEFAULT = 1 << 30  # bytes: a log up to this size is searched if index or queue files leave a doubt
_FIRST_SPAN, _LARGEST_SPAN = 1 << 18, 16 << 20  # below the size from which the compiled scan is faster, with its import
_MOST_KEPT = 128  # searches whose results are kept

_Found = TypeVar("_Found")


class KeptSearches:
    """The results of searches of the whole log, which later questions use as well, with the parts that were lost."""

    def __init__(self, progress: OnProgress = do_nothing) -> None:
        self.progress = progress
        self._kept: dict[Hashable, tuple[object, list[str]]] = {}

    def find(self, name: Hashable, search: Callable[[OnLoss], _Found], remarks: Remarks) -> _Found:
        """Return the result of a search with this name, and warn of the parts of the log that it could not read."""
        if name not in self._kept:
            lost: list[str] = []
            result = search(lambda start, end, reason: lost.append(_loss_text(start, end, reason)))
            if len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[name] = result, lost
        kept, lost = self._kept[name]
        for why in lost:
            remarks.warn(why)
        return cast("_Found", kept)


def _loss_text(start: int, end: int, reason: str) -> str:
    return f"the log from offset {start:,} to {end:,} cannot be read as messages: {reason}"


class StoreLog:
    """The log of a store."""

    def __init__(
        self, reader: StoreReader, release: Release, delay_levels: str, searches: KeptSearches, remarks: Remarks
    ) -> None:
        self._reader = reader
        self._release = release
        self._delay_levels = delay_levels
        self._searches = searches
        self._remarks = remarks

    @property
    def is_short(self) -> bool:
        """Whether the log is searched even if the user does not ask for it."""
        return self._reader.store.log_size <= MAX_LOG_SEARCHED_BY_DEFAULT

    # single messages

    def read_message(self, physical_offset: int) -> Message | None:
        """Return the message that begins at an offset."""
        record = self._reader.read_record(physical_offset)
        return Message(record, self._release) if record else None

    def read_pointed_message(self, physical_offset: int, pointer: str) -> Message | None:
        """Return the message to which *pointer* of an index or queue points; warn if it is lost."""
        message = self.read_message(physical_offset)
        if message is not None:
            return message
        reader, store = self._reader, self._reader.store
        if reader.is_left_over(physical_offset):
            self._remarks.note(
                f"{pointer} points to offset {physical_offset:,}, whose message was truncated when another replica "
                f"became the master ({reader.newest_epoch_text})"
            )
            return None
        place = "at which there is no complete record"
        if physical_offset < store.start_offset:
            place = f"that was deleted from the log (it begins at {store.start_offset:,})"
        elif store.segment_at(physical_offset) is None:
            if self._store_now.segment_at(physical_offset) is not None:
                return None  # newer than the list of files
            place = "that no file of the log contains"
        self._remarks.warn_of_lost_message(f"{pointer} points to an offset {place}", physical_offset)
        return None

    @cached_property
    def _store_now(self) -> Store:
        return relist_store(self._reader.store)

    def why_no_message_at(self, physical_offset: int) -> Reason:
        """Return why no message begins at an offset."""
        store = self._reader.store
        if physical_offset < store.start_offset:
            text = f"offset {physical_offset:,} was deleted: the log begins at {store.start_offset:,}"
            return Reason(ReasonKind.SEGMENT_DELETED, text)
        segment = store.segment_at(physical_offset)
        if segment is None:
            kind = ReasonKind.PAST_LOG_END if physical_offset >= store.end_offset else ReasonKind.SEGMENT_DELETED
            text = f"no file of the log contains offset {physical_offset:,}; the last one ends at {store.end_offset:,}"
            return Reason(kind, text)
        begin, end = self._reader.record_bounds_around(segment, physical_offset)
        if begin < physical_offset < end:
            record = self.read_message(begin)
            named = f" (offset id {record.offset_id})" if record else ""
            text = f"offset {physical_offset:,} points inside the record at offset {begin:,}{named}"
            return Reason(ReasonKind.INSIDE_RECORD, text)
        if physical_offset < begin:  # in the header of a DLedger entry
            return Reason(ReasonKind.NO_RECORD, f"no record begins at offset {physical_offset:,}")
        if segment.base_offset == find_newest_segment_offset(store):
            text = f"offset {physical_offset:,} is after the last record, which ends at {end:,}"
            return Reason(ReasonKind.PAST_LOG_END, text)
        text = f"no record begins at offset {physical_offset:,}: the records of {segment.location} end at {end:,}"
        return Reason(ReasonKind.NO_RECORD, text)

    # searches

    def search(self, text: str, span: range = WHOLE_LOG, on_loss: OnLoss | None = None) -> Iterator[Message]:
        """Yield the messages of the log that contain *text*, in log order; warn of lost parts, or call *on_loss*."""
        for record in search_records(self._reader, text, self._searches.progress, span, on_loss or self._warn_of_loss):
            yield Message(record, self._release)

    def _warn_of_loss(self, start: int, end: int, reason: str) -> None:
        self._remarks.warn(_loss_text(start, end, reason))

    def find_offsets_of_key(self, key: str, span: range = WHOLE_LOG) -> Sequence[int]:
        """Search a part of the log for the messages of all topics that have a key; return their offsets, ascending."""

        # The log is walked forwards, and answers begin with the newest: places are kept, not messages of any size.
        def search(on_loss: OnLoss) -> Sequence[int]:
            found = (one for one in self.search(key, span, on_loss) if any(has_key(one, kind, key) for kind in KeyKind))
            return array("q", (message.record.physical_offset for message in found))

        return self._searches.find(("key", key, span), search, self._remarks)

    def find_queues(self, topic: str) -> Mapping[int, LogQueue]:
        """Return the queues of a topic that messages of the log are in, by their ids."""

        def search(on_loss: OnLoss) -> Mapping[int, LogQueue]:
            queues: dict[int, LogQueue] = {}
            for message in self.search(topic, on_loss=on_loss):
                for unit in self.list_units(message.record, topic):
                    queues.setdefault(unit.queue.queue_id, LogQueue()).add(unit)
            return dict(sorted(queues.items()))

        return self._searches.find(("queues", topic), search, self._remarks)

    def find_topics(self) -> frozenset[str]:
        """Return the topics of all messages of the log."""

        def search(on_loss: OnLoss) -> frozenset[str]:
            return frozenset(message.topic for message in self.search("", on_loss=on_loss))

        return self._searches.find("topics", search, self._remarks)

    @cached_property
    def unit_rules(self) -> UnitRules:
        """The rules by which units are derived from records."""
        attributes = ((name, about.get("attributes")) for name, about in self._reader.topic_config.items())
        batch_topics = frozenset(
            name for name, about in attributes if isinstance(about, dict) and about.get("queue.type") == "BatchCQ"
        )
        return UnitRules(((0, self._release),), self._delay_levels, batch_topics)

    def list_units(self, record: MessageRecord, topic: str) -> list[ExpectedUnit]:
        """Return the units that a broker writes for a record into queues of a topic."""
        return [unit for unit in expected_units(record, self.unit_rules) if unit.queue.topic == topic]

    def find_first_and_last(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and last message of a topic; None if there is none."""
        first = last = None
        for message in self.search(topic):
            if message.topic == topic:
                first, last = first or message, message
        return (first, last) if first and last else None

    def count(self, wanted: ListConditions) -> int | None:
        """Return the number of messages of a topic, or of all, in a time window; None for a large log."""
        if self._reader.store.log_size > COMPILED_SCAN_MIN_BYTES:
            return None
        counted = wanted._replace(key=None, tag=None, body_text=None)
        return sum(self._is_listed(message, counted) for message in self.search(wanted.topic or ""))

    # the available part of the history

    def list_hosts(self) -> list[Host]:
        """Return the store hosts of the first records of the oldest and the newest segment."""
        return sorted({record.store_host for record in self._read_samples()})

    def _read_samples(self) -> Iterator[MessageRecord]:
        store = self._reader.store
        ends = {store.start_offset, find_newest_segment_offset(store)}
        return filter(None, (self._reader.first_record(one) for one in store.segments if one.base_offset in ends))

    def find_coverage(self) -> Coverage:
        """Return the available part of the history; the newest time is from the checkpoint or index files."""
        store = self._reader.store
        times = [record.store_timestamp for record in self._read_samples()]
        newest = [*times, *(file.header.end_timestamp for file in self._reader.index_readers()[:1])]
        checkpoint = read_checkpoint(store)
        if checkpoint is not None:
            newest.append(checkpoint.physical_timestamp)
        first_time, last_time = (times[0], max(newest)) if times else (None, None)
        return Coverage(store.start_offset, self._reader.log_end, first_time, last_time)

    # messages by time

    def list_parts(self, wanted: ListConditions, before: int) -> list[range]:
        """Return the parts of the log before an offset that may have messages in a time window, newest first."""
        times = self._reader.probable_time_bounds
        parts: list[range] = []
        is_adjacent = False
        for segment in self._reader.store.segments:
            low, high = times[segment.base_offset]
            is_wanted = (low is None or low <= wanted.end) and (high is None or high >= wanted.begin)
            if is_wanted and segment.base_offset < before:
                start = parts.pop().start if is_adjacent else segment.base_offset
                parts.append(range(start, min(segment.base_offset + segment.size, before)))
            elif not is_wanted:
                self._remarks.note(SKIPPED_SEGMENTS)
            is_adjacent = is_wanted
        return parts[::-1]

    def read_before(
        self, wanted: ListConditions, before: int, limit: int, find_boundary: Callable[[int], int]
    ) -> Iterator[tuple[int, Message | None]]:
        """
        Yield messages stored before an offset, newest first, like `Source.read_before`.

        *find_boundary* returns the beginning of a record at or before an offset.
        """
        # A span is read forwards and yielded backwards. It begins at a boundary, never inside a record: the chain of
        # records from there reaches the beginning of the previous span, so no record is in two spans or in none.
        text = wanted.topic or wanted.key or wanted.tag or ""
        if before >= self._reader.store.end_offset:
            self._warn_of_lost_ends(is_before=False)
        for part in self.list_parts(wanted, before):
            end, size = part.stop, _FIRST_SPAN
            while end > part.start:
                low = find_boundary(max(end - size, part.start))
                kept: deque[int] = deque(maxlen=limit + 1)  # a span without boundaries may be a whole segment
                for record in search_records(self._reader, text, do_nothing, range(low, end), self._warn_of_loss):
                    if record.physical_offset < end and self._is_listed(Message(record, self._release), wanted):
                        kept.append(record.physical_offset)
                yield from ((offset, self.read_message(offset)) for offset in reversed(kept))
                yield low, None
                end, size = low, min(size * 2, _LARGEST_SPAN)
        self._warn_of_lost_ends(is_before=True)

    def _warn_of_lost_ends(self, *, is_before: bool) -> None:
        """Warn of the part that the log lost after its end or, with *is_before*, before its beginning."""
        for lost in find_lost_ends(self._reader.store):
            if (lost.end <= self._reader.store.start_offset) is is_before:
                self._remarks.warn(lost.text)

    def _is_listed(self, message: Message, wanted: ListConditions) -> bool:
        topic = message.topic if wanted.topic is None else wanted.topic
        # A light queue has no messages of its own.
        is_light = topic.startswith(LMQ_PREFIX)
        if topic != message.topic and not (is_light and self.list_units(message.record, topic)):
            return False
        is_left_over = self._reader.epochs and self._reader.is_left_over(message.record.physical_offset)
        return wanted.matches_except_topic(message) and not is_left_over
