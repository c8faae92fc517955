"""The interface of query sources (a store, or one store of a lake); the parts of answers, and facts about messages."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import NamedTuple, Protocol, Self

from jobs.console.amounts import count_text
from jobs.console.result import RequestError
from jobs.query import MAX_TIME, KeyQuery, ListConditions, Message
from jobs.query.mqadmin import OffsetRange
from jobs.store.broker_config import BrokerConfig, ConsumerProgress
from jobs.store.release import ASSUMED, Determined, Writers
from rmq_formats.commitlog.record import Host
from rmq_formats.consumequeue.dispatch import Unit
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release

OnProgress = Callable[[int, int], None]  # bytes done, bytes in all

MAX_QUEUES = 1 << 16  # more queues than any topic of a broker has; a damaged setting may be any number
EXPLAINED_S = 10.0  # time that a search takes to explain an empty answer
MAX_OCCURRENCES = 20  # this many messages under a text are enough to explain an empty answer


# Traits of a release that affect what it prints and how its index is read.
TRAITS_AFFECTING_ANSWERS = (
    "property_parser",
    "indexes_tags",
    "by_unique_key_keeps_all",
    "by_id_takes_unique_key",
    "prints_index_key",
    "prints_offset_id_twice",
    "prints_compressed_flag",
    "property_map_buckets",
)


@unique
class ReasonKind(StrEnum):
    """Why an answer is empty. The values are part of the JSON format."""

    TOPIC_UNKNOWN = "topic_unknown"
    GROUP_UNKNOWN = "group_unknown"
    TOPIC_DELETED = "topic_deleted"
    NO_ROUTE = "no_route"
    OTHER_TOPIC = "other_topic"
    ONLY_IN_KEYS = "only_in_keys"
    ONLY_UNIQUE_KEY = "only_unique_key"
    ONLY_TAG = "only_tag"
    OUTSIDE_TIMES = "outside_times"
    NOT_ON_DISK = "not_on_disk"
    NOT_INDEXED = "not_indexed"
    SHADOWED = "shadowed"
    HALF = "half"
    ROLLED_BACK = "rolled_back"
    DELAYED = "delayed"
    OTHER_BROKER = "other_broker"
    WRONG_KIND_OF_ID = "wrong_kind_of_id"
    SEGMENT_DELETED = "segment_deleted"
    INSIDE_RECORD = "inside_record"
    PAST_LOG_END = "past_log_end"
    NO_RECORD = "no_record"
    QUEUE_UNKNOWN = "queue_unknown"
    OFFSET_BELOW_MIN = "offset_below_min"
    OFFSET_ABOVE_MAX = "offset_above_max"
    UNIT_DANGLES = "unit_dangles"
    NO_MATCH = "no_match"
    NOT_ALL_SEARCHED = "not_all_searched"
    MQADMIN_CANNOT = "mqadmin_cannot"


class OtherBrokerError(FormatError):
    """The lake has no store of the requested broker."""


class SeveralStoresError(UnsupportedFormat, RequestError):
    """Several stores of a lake can answer, and none was selected."""


class Reason(NamedTuple):
    """Why an answer is empty: the kind for programs, the sentence for users."""

    kind: ReasonKind
    text: str


_NOTHING_THERE = frozenset({ReasonKind.TOPIC_UNKNOWN, ReasonKind.QUEUE_UNKNOWN, ReasonKind.OTHER_BROKER})


class Coverage(NamedTuple):
    """The available part of the broker's history; None if it has no messages."""

    first_offset: int
    end_offset: int
    first_time: int | None  # ms
    last_time: int | None


class Occurrence(NamedTuple):
    """A message that has the text as a key of some kind."""

    message: Message
    kind: KeyKind
    is_indexed: bool
    is_hidden_by_batch_id: bool = False  # a second UNIQ_KEY, that of the batch, follows and takes precedence


@dataclass(slots=True)
class Remarks:
    """The remarks on one answer: notes, and warnings that messages may be missing from it; each is kept once."""

    all_notes: dict[str, None] = field(default_factory=dict)
    known_losses: dict[str, None] = field(default_factory=dict)
    lost_offsets: dict[str, set[int]] = field(default_factory=dict)  # by the sentence about what points to them

    @property
    def notes(self) -> list[str]:
        """Everything to know about the answer, except for the warnings."""
        return [note for note in self.all_notes if note not in self.known_losses]

    @property
    def warnings(self) -> list[str]:
        """Why messages may be missing; similar reasons are counted, and the first offset is given."""
        lost = [(why, sorted(found)) for why, found in self.lost_offsets.items()]
        counted = (f"{why} ({count_text(len(found), 'offset')}, the first {found[0]})" for why, found in lost)
        return [*self.known_losses, *counted]

    def note(self, text: str) -> None:
        """Add a note."""
        self.all_notes[text] = None

    def note_assumed_release(self, writers: Determined[Writers]) -> None:
        """Note that the release is assumed, if several may have written the store."""
        if writers.origin == ASSUMED:
            newest = writers.value.last_release
            self.note(
                f"the exact release that wrote the store cannot be detected ({writers.value}); the output is formatted "
                f"as in {newest}. To choose another release, pass --release"
            )

    def warn(self, text: str) -> None:
        """Add a reason why messages may be missing."""
        self.known_losses[text] = None

    def warn_of_lost_message(self, text: str, physical_offset: int) -> None:
        """Add an offset without a message to which a queue or the index points."""
        self.lost_offsets.setdefault(text, set()).add(physical_offset)

    def include(self, other: "Remarks") -> None:
        """Add the remarks on another answer."""
        self.all_notes |= other.all_notes
        self.known_losses |= other.known_losses
        for why, found in other.lost_offsets.items():
            self.lost_offsets.setdefault(why, set()).update(found)


@dataclass(slots=True)
class Answer:
    """Messages in the order in which mqadmin prints them, or the reason why there are none; and the remarks on both."""

    messages: list[Message] = field(default_factory=list)
    reason: Reason | None = None
    offsets: OffsetRange | None = None  # the offsets of a pull
    next_offset: int | None = None  # of a page: the offset before which the next one begins; None after the last one
    was_cut_short: bool = False  # of a page: the time limit was reached before the page was full
    remarks: Remarks = field(default_factory=Remarks)

    @property
    def notes(self) -> list[str]:
        """The notes on this answer."""
        return self.remarks.notes

    @property
    def warnings(self) -> list[str]:
        """Why messages may be missing from this answer."""
        return self.remarks.warnings

    def include_earlier(self, remarks: Remarks) -> Self:
        """Add remarks that were made before this answer was found, and return the answer."""
        both = Remarks()
        both.include(remarks)
        both.include(self.remarks)
        self.remarks = both
        return self


class Sentence(str):
    """A sentence with its English template, by which translations are found, and its values (maybe sentences)."""

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, object]

    def __new__(cls, template: str, **values: object) -> Self:
        """Return the sentence in English."""
        sentence = super().__new__(cls, template.format(**values))
        sentence.template, sentence.values = template, values
        return sentence


class FactOrigin(NamedTuple):
    """The origin of a fact: a file of the store and an offset in it, or a table of the lake and its version."""

    name: str
    position: int | None = None  # the offset in the file; None for a table
    version: int | None = None  # the version of the table; None for a file

    def __str__(self) -> str:
        if self.version is not None:
            return f"table {self.name}, version {self.version}"
        return self.name if self.position is None else f"{self.name} at {self.position:,}"


@unique
class PointerCheck(StrEnum):
    """Whether a queue or the index points to a copy."""

    LEADS_THERE = "leads there"
    ELSEWHERE = "leads elsewhere"
    MISSING = "missing"
    NOT_KNOWN = "not known"


class QueueFact(NamedTuple):
    """The unit of one queue at the queue offset of a copy."""

    topic: str
    queue_id: int
    queue_offset: int
    check: PointerCheck
    place: FactOrigin
    tags_code: int | None = None  # the tags code in the unit; for a delayed message, its delivery time


class KeyFact(NamedTuple):
    """Whether the index points from a key to a copy."""

    kind: str
    key: str
    check: PointerCheck
    place: FactOrigin | None


class Source(Protocol):
    """
    A store that can be queried: the files of a broker, or its rows in a lake.

    `begin_question` returns the source for one question, whose `remarks` are complete once the answer was read:
    iterators are lazy, and read only as far as the caller takes messages. Between questions a source keeps facts about
    the store that do not change, and no remarks.
    """

    name: str  # the name by which a user selects the store
    store_id: str = ""  # the id of the store in a lake
    broker: str | None  # the broker's name, if known
    damage_text: str | None = None  # a remark on messages that are missing in the store, added to every answer
    search_stopped_at: int | None = None  # offset before which `occurrences` has not searched, to save time
    searches_all: bool  # whether every message is searched where an index leaves a question open
    knows_topics: bool  # whether a topic that `topics` does not name certainly does not exist
    is_lake: bool = False  # whether answers come from the tables of a lake
    # The broker's topics, groups and positions; None for a store of a lake without these tables.
    config: BrokerConfig | None = None
    possible_releases: tuple[Release, ...]  # releases that may have written the store, the newest last

    remarks: Remarks  # the remarks on the answer to the current question

    def begin_question(self) -> Self:
        """Return this source for another question, without remarks."""

    @property
    def release(self) -> Release:
        """The release whose behavior answers follow."""
        return self.possible_releases[-1]

    def note_known_damage(self, low: int = 0, high: int = MAX_TIME) -> None:
        """Note known damage between two offsets; a store notes damage while it reads."""
        del low, high

    # messages

    def by_offset(self, physical_offset: int) -> Message | None:
        """Return the message that begins at an offset."""

    def by_key(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the messages with a key, newest first, each once."""

    def by_key_hash(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the message of every index entry with a key's hash, in the broker's order, including other keys."""

    def by_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield the messages of a queue with queue offsets from *begin* to before *end*; None for a lost one."""
        return (self.by_queue_offset(topic, queue_id, number) for number in range(begin, end))

    def read_before(self, wanted: ListConditions, end_offset: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """
        Yield messages stored before *end_offset* of the log, newest first; the caller filters them.

        Each comes with the offset down to which the log has been searched, which is also yielded alone. *limit*
        messages are read together.
        """

    def by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by queue offset."""

    # queues and topics

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return the offsets of a queue; None if it does not exist."""

    def note_incomplete_queues(self, topic: str) -> None:
        """Complete a topic's queues from the log, or note why they may be incomplete."""

    def next_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the next queue offset that may have a message; *queue_offset* itself if there is none."""

    def read_unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return the unit that a queue has for a message."""

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset at which a pull ends."""
        del topic, queue_id, queue_offset
        return MAX_TIME

    def part_searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """Return the part of a queue that a broker searches for a store time."""
        del topic, queue_id, time
        return offsets

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues."""

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""

    def topics(self) -> frozenset[str]:
        """Name every topic."""

    def topics_of_unique_key(self, unique_key: str) -> frozenset[str]:
        """Return the topics that may have a message with a producer's id."""
        del unique_key
        return self.topics()

    @property
    def place_of_unique_keys(self) -> str:
        """The place that is searched for a producer's id, in words."""

    def find_first_and_last(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and last message of a topic, if that needs no long search."""

    def config_file(self, name: str) -> Mapping[str, object]:
        """Return a table of the broker's configuration; an empty one if it does not exist."""
        del name
        return {}

    # Methods that explain an empty answer.

    def occurrences(self, text: str, /) -> Iterator[Occurrence]:
        """Yield messages that have a text as a key of any kind, in any topic; to explain an empty answer."""

    def list_superseded_copies(self, id_or_key: str, /) -> Iterator[Message]:
        """Yield truncated messages with a text as an id or a key."""
        del id_or_key
        return iter(())

    def why_no_message_at(self, physical_offset: int) -> Reason:
        """Return why no message begins at an offset."""

    def count(self, wanted: ListConditions) -> int | None:
        """Return the number of messages of a topic, or of all, in a time window; None if unknown."""

    def hosts(self) -> list[Host]:
        """Return the store hosts of messages."""

    def coverage(self) -> Coverage:
        """Return the available part of the history."""

    # evidence

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages with a unique key."""

    def origin_of(self, message: Message) -> FactOrigin:
        """Return the file or table that contains a message."""

    def queue_facts(self, message: Message) -> list[QueueFact]:
        """Return the units of queues for a message."""

    def key_facts(self, message: Message) -> list[KeyFact]:
        """Return, for each key, whether the index points to a message."""

    def consumer_progress(self, topics: Collection[str] | None = None) -> Iterator[tuple[ConsumerProgress, FactOrigin]]:
        """Yield the positions of each consumer of *topics*; None: of all topics."""

    def count_read_queues(self) -> Mapping[str, int]:
        """Return the number of queues from which consumers read, by topic, for each topic with settings."""

    def find_queue_ends(self, queues: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Return the offset of the next message of each queue, by topic and queue id; a lake may lack some."""

    def removal_sentence(self, message: Message) -> Sentence | None:
        """Say when or why a message leaves the log."""

    def list_unknown_facts(self) -> list[Sentence]:
        """Return the facts that this source cannot provide."""


def check_key(kind: KeyKind, releases: Sequence[Release], *, is_found: bool) -> PointerCheck:
    """Return the check of a key: only some of the possible *releases* index tags."""
    if is_found:
        return PointerCheck.LEADS_THERE
    is_open = kind is KeyKind.TAG and not all(release.indexes_tags for release in releases)
    return PointerCheck.NOT_KNOWN if is_open else PointerCheck.MISSING


def do_nothing(*_: object) -> None:
    """Show no progress and no notes."""


def require_single_source(sources: Sequence[Source], candidates: str = "several stores of this lake match") -> Source:
    """Return the only source of several *candidates*; raise `SeveralStoresError` if there are more."""
    if len(sources) > 1:
        raise SeveralStoresError(
            f"{candidates}: {', '.join(source.name for source in sources)}. "
            "Choose one with --broker NAME, or with --broker ID if two have the same name"
        )
    return sources[0]


def join_reasons(asked: Sequence[tuple[Source, Answer]]) -> Answer:
    """Return one answer with the reasons of several empty ones, and the remarks of the first one."""
    reasons = [(source.name, answer.reason) for source, answer in asked if answer.reason is not None]
    # The kind of reason from a store with the topic takes precedence.
    known = [reason for _, reason in reasons if reason.kind not in _NOTHING_THERE]
    kind = (known or [reason for _, reason in reasons])[0].kind
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason.text, []).append(name)
    said = [text if len(own) == len(reasons) else f"{', '.join(own)}: {text}" for text, own in names.items()]
    return Answer(reason=Reason(kind, "; ".join(said)), remarks=asked[0][1].remarks)


def name_note(source: Source) -> str:
    """Return the note that names the store of an answer, which was found among several."""
    return f"this answer is from store {source.name}"


def warn_of_other(remarks: Remarks, other: Source, warnings: Iterable[str]) -> None:
    """Warn that messages may be missing in another source that was also asked."""
    for why in warnings:
        remarks.warn(f"{other.name}: {why}")


def parse_whole_number(text: str) -> int | None:
    """Parse ASCII digits that certainly fit into 64 bits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MAX_TIME)) else None
