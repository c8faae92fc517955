"""What every question to a store is asked with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from jobs.query.log_search import Progress, Sieve, search, silent
from jobs.query.message import Message
from jobs.query.store_reader import StoreReader
from rmq_formats.consumequeue.unit import DEFAULT_DELAY_LEVELS, QueueRules
from rmq_formats.release import Release


def _is_batch(topic: Mapping[str, object]) -> bool:
    attributes = topic.get("attributes")
    return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store's files, by whose rules they are read, and whether index and queue files are."""

    reader: StoreReader
    release: Release
    through_log: bool = False  # as if index and queue files were lost
    progress: Progress = silent
    notes: list[str] = field(default_factory=list)  # what the user should know beside the answers
    delay_levels: str = DEFAULT_DELAY_LEVELS

    @property
    def rules(self) -> QueueRules:
        """What decides about units beside the records."""
        batch_topics = frozenset(name for name, about in self.reader.topic_config.items() if _is_batch(about))
        return QueueRules(((0, self.release),), self.delay_levels, batch_topics)

    def say(self, note: str) -> None:
        """Note something, once."""
        if note not in self.notes:
            self.notes.append(note)

    def at(self, physical_offset: int) -> Message | None:
        """Return the message that begins at an offset."""
        record = self.reader.read_record(physical_offset)
        return Message(record, self.release) if record else None

    def search(self, sieve: Sieve) -> Iterator[Message]:
        """Yield the messages of the log itself that *sieve* keeps, in its order."""
        return (Message(record, self.release) for record in search(self.reader, sieve, self.progress))
