"""The parts of a store that every question needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from jobs.query.log_search import ALL, Progress, Sieve, Span, search, silent
from jobs.query.message import Message
from jobs.query.store_reader import StoreReader
from rmq_formats.commitlog.record import Host
from rmq_formats.consumequeue.unit import DEFAULT_DELAY_LEVELS, QueueRules
from rmq_formats.release import Release

LOG_SEARCHED_UNASKED = 1 << 30  # bytes of log that are searched where index or queue files leave a question open


def _is_batch(topic: Mapping[str, object]) -> bool:
    attributes = topic.get("attributes")
    return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"


@dataclass(eq=False)
class StoreView:
    """A store's files, by whose rules they are read, and whether index and queue files are."""

    reader: StoreReader
    release: Release
    through_log: bool = False  # as if index and queue files were lost
    progress: Progress = silent
    delay_levels: str = DEFAULT_DELAY_LEVELS
    broker: str | None = None  # its name, where it is known
    releases: tuple[Release, ...] = ()  # that may have written the store, where it does not show which one did
    notes: list[str] = field(default_factory=list, init=False)  # what the user should know beside the answers
    _reasons: list[str] = field(default_factory=list, init=False)  # why messages may be missing in the answers
    _lost: dict[str, list[int]] = field(default_factory=dict, init=False)  # what points where no message is, and where

    @property
    def possible_releases(self) -> tuple[Release, ...]:
        """The releases that may have written the store."""
        return self.releases or (self.release,)

    @property
    def rules(self) -> QueueRules:
        """The rules that decide about units beside the records."""
        batch_topics = frozenset(name for name, about in self.reader.topic_config.items() if _is_batch(about))
        return QueueRules(((0, self.release),), self.delay_levels, batch_topics)

    @property
    def searches_all(self) -> bool:
        """Whether the log is searched where index and queue files leave a question open, not only what they lead to."""
        return self.through_log or self.reader.log_size <= LOG_SEARCHED_UNASKED

    def say(self, note: str) -> None:
        """Note something, once."""
        if note not in self.notes:
            self.notes.append(note)

    def lack(self, reason: str) -> None:
        """Note why an answer may not be complete, once."""
        if reason not in self._reasons:
            self._reasons.append(reason)

    def at(self, physical_offset: int, host: Host | None = None) -> Message | None:
        """Return the message that begins at an offset, whatever *host* it names."""
        del host
        record = self.reader.read_record(physical_offset)
        return Message(record, self.release) if record else None

    def pointed_at(self, physical_offset: int, pointer: str) -> Message | None:
        """Return the message that *pointer* of an index or a queue names; where it is lost, the answer lacks it."""
        message = self.at(physical_offset)
        if message is not None:
            return message
        reader, store = self.reader, self.reader.store
        if reader.is_left_over(physical_offset):
            self.say(
                f"{pointer} points at offset {physical_offset}, whose message was taken back when another replica "
                f"became the master ({reader.takeover_text})"
            )
        elif physical_offset < store.start_offset:
            self._lose_pointed_at(
                physical_offset, pointer, f"where the log is deleted: it begins at {store.start_offset}"
            )
        elif store.segment_at(physical_offset) is None:
            self._lose_pointed_at(physical_offset, pointer, "that no file of the log has")
        else:
            self._lose_pointed_at(physical_offset, pointer, "where no whole record is")
        return None

    def _lose_pointed_at(self, offset: int, pointer: str, place: str) -> None:
        self._lost.setdefault(f"{pointer} points at an offset {place}", []).append(offset)

    @property
    def lacking(self) -> list[str]:
        """Why messages may be missing in the answers; many reasons of one kind are counted, and the first is given."""
        pointed_at = [(why, sorted(set(offsets))) for why, offsets in self._lost.items()]
        return [*self._reasons, *(f"{why} ({len(found)} offsets, the first {found[0]})" for why, found in pointed_at)]

    def search(self, sieve: Sieve, span: Span = ALL) -> Iterator[Message]:
        """Yield the messages of the log itself that *sieve* keeps, in its order; note the parts that are lost."""
        for record in search(self.reader, sieve, self.progress, span, self.lose):
            yield Message(record, self.release)

    def lose(self, start: int, end: int, reason: str) -> None:
        """Note that a part of the log holds no readable message."""
        self.lack(f"the log from offset {start} to {end} cannot be read as messages: {reason}")
