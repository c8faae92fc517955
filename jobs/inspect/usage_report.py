"""The space that each topic takes in a store's log, and the segment that retention deletes next, as a report."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from jobs.console.amounts import count_text, size_text
from jobs.console.lines import printable_text
from jobs.dump import short_time_text

# The contents of a topic.
MESSAGES = "messages"
RETRIES = "retries"
DEAD_LETTERS = "dead letters"
LIGHT_QUEUE = "light queue"

_PERCENT = 100
_ROW = "{:>10}  {:>7}  {:>11}  {:>9}  {:<16}  {}"
_MINUTES = len("2026-11-20 07:42")


@dataclass(slots=True, eq=False)
class TopicUsage:
    """The records of one topic in the log."""

    topic: str
    group: str | None = None  # the consumer group of a topic with its retries or dead letters
    content: str = MESSAGES
    record_bytes: int = 0
    records: int = 0
    first_offset: int | None = None  # physical offset of the topic's first record
    last_offset: int | None = None
    first_store_timestamp: int | None = None
    last_store_timestamp: int | None = None

    @property
    def has_own_records(self) -> bool:
        """Whether the log has records of this topic; units of a light queue point to records of another topic."""
        return self.content != LIGHT_QUEUE


class UnconsumedMessages(NamedTuple):
    """Messages of one topic in the oldest segment that a group has not consumed yet."""

    topic: str
    group: str
    messages: int


@dataclass(slots=True, eq=False)
class NextDeletion:
    """The segment that retention deletes next."""

    segment: str
    segment_bytes: int
    last_store_timestamp: int | None = None
    records: int = 0
    unconsumed: list[UnconsumedMessages] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Usage:
    """The log's bytes by topic; the parts add up to *log_bytes*."""

    log_bytes: int  # the sizes of all segments
    topics: list[TopicUsage] = field(default_factory=list)  # the largest first
    unused_bytes: int = 0  # after the end of the log: preallocated
    unattributed_bytes: int = 0  # the rest: ends of segments, entry headers of DLedger, records without units
    is_estimated: bool = False  # sizes of large queues were estimated from some of their units
    next_deletion: NextDeletion | None = None  # None if there is only the segment that the broker writes

    def to_dict(self) -> dict[str, object]:
        """Return the report for JSON."""
        deletion = self.next_deletion
        unconsumed = [] if deletion is None else [one._asdict() for one in deletion.unconsumed]
        next_deletion = None if deletion is None else asdict(deletion) | {"unconsumed": unconsumed}
        return asdict(self) | {"next_deletion": next_deletion}

    def lines(self, store: str) -> Iterator[str]:
        """Yield the report as lines of text; *store* is left out of the names of files."""
        about = "~" if self.is_estimated else ""
        yield _ROW.format("bytes", "share", "messages", "average", "oldest", "topic")
        for one in self.topics:
            oldest = "" if one.first_store_timestamp is None else short_time_text(one.first_store_timestamp)[:_MINUTES]
            note = f" ({one.content})" if one.content != MESSAGES else ""
            topic = f"{printable_text(one.topic)}{note}"
            if one.has_own_records:
                average = size_text(one.record_bytes / one.records) if one.records else ""
                size = about + size_text(one.record_bytes)
                share = self._share_text(one.record_bytes)
                yield _ROW.format(size, share, f"{one.records:,}", average, oldest, topic)
            else:
                yield _ROW.format("", "", f"{one.records:,}", "", oldest, topic)
        totals = (
            ("not attributed to a topic", self.unattributed_bytes),
            ("not used yet", self.unused_bytes),
            ("log", self.log_bytes),
        )
        for name, total in totals:
            yield f"{_signed_size_text(total):>10}  {self._share_text(total):>7}  {name}"
        if self.is_estimated:
            yield "~ estimated from a sample of the queues' units, to about 1 %"
        yield from self._next_deletion_lines(store)

    def percent(self, size: int) -> float | None:
        """Return a size in percent of the log."""
        return round(size * _PERCENT / self.log_bytes, 1) if self.log_bytes else None

    def _share_text(self, size: int) -> str:
        return f"{self.percent(size):.1f} %" if self.log_bytes else ""

    def describe_next_deletion(self, store: str) -> str:
        """Return the segment that retention deletes next, and the messages in it that groups have not consumed."""
        return ". ".join(line.strip() for line in self._next_deletion_lines(store))

    def _next_deletion_lines(self, store: str) -> Iterator[str]:
        deletion = self.next_deletion
        if deletion is None:
            return
        last = deletion.last_store_timestamp
        until = "" if last is None else f", stored up to {short_time_text(last)}"
        name = printable_text(deletion.segment.removeprefix(f"{store}/"))
        counted = count_text(deletion.records, "message") if deletion.records else "no queue has a unit of its messages"
        yield f"Retention deletes {name} next: {size_text(deletion.segment_bytes)}, {counted}{until}"
        for topic, group, messages in deletion.unconsumed:
            text = f"group {group} has not consumed {count_text(messages, 'message')} of {topic} in it"
            yield f"  {printable_text(text)}"


def _signed_size_text(size: int) -> str:
    return size_text(size) if size >= 0 else f"-{size_text(-size)}"  # estimates of the topics may exceed the log
