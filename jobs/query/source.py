"""The questions that a query asks of a store or a lake, and the parts of an answer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import NamedTuple, Protocol

from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.static_topics import StaticQueue
from jobs.store.broker_config import BrokerConfig
from rmq_formats.commitlog.record import Host
from rmq_formats.consumequeue.unit import Unit
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release

MIN_TIME = 0
MAX_TIME = (1 << 63) - 1


@unique
class ReasonKind(StrEnum):
    """Why an answer is empty. The values are part of the JSON that users script against."""

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
    BEHIND_LOG = "behind_log"
    NO_RECORD = "no_record"
    QUEUE_UNKNOWN = "queue_unknown"
    OFFSET_BELOW_MIN = "offset_below_min"
    OFFSET_ABOVE_MAX = "offset_above_max"
    UNIT_DANGLES = "unit_dangles"
    MQADMIN_CANNOT = "mqadmin_cannot"


class Reason(NamedTuple):
    """Why an answer is empty: the kind for programs, the sentence for people."""

    kind: ReasonKind
    text: str


class Coverage(NamedTuple):
    """The part of the broker's history that is there; None where it holds no message at all."""

    first_offset: int
    end_offset: int
    first_time: int | None  # ms
    last_time: int | None


class Occurrence(NamedTuple):
    """A message that has the text in question as a key of some kind."""

    message: Message
    kind: KeyKind
    is_indexed: bool
    is_shadowed: bool = False  # by a second UNIQ_KEY after it: a batch's own, which wins


@dataclass(slots=True)
class Answer:
    """Messages in the order in which mqadmin prints them, or the reason why there are none."""

    messages: list[Message] = field(default_factory=list)
    reason: Reason | None = None
    notes: list[str] = field(default_factory=list)
    offsets: OffsetRange | None = None  # of a pull


class Source(Protocol):
    """A store or a lake."""

    release: Release
    notes: list[str]

    @property
    def lacking(self) -> list[str]:
        """For what reasons messages may be missing in the answers: they end with 3."""

    def find(self, kind: KeyKind, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the messages under a key, newest first, once for every time the broker indexed them under it."""

    def at(self, physical_offset: int, host: Host | None) -> Message | None:
        """Return the message that begins at an offset; a lake of several brokers chooses by *host*."""

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return which offsets a queue holds; None when there is no such queue."""

    def in_queue(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number."""

    def topics(self) -> frozenset[str]:
        """Name every topic that is known."""

    def topics_of(self, unique_key: str) -> frozenset[str]:
        """Name the topics that can have a message with a producer's id."""
        ...

    @property
    def knows_topics(self) -> bool:
        """Whether every topic is known, those without a message among them."""

    @property
    def lacks(self) -> str | None:
        """The parts of the history that this source may lack, in words; None without any."""

    def has_topic(self, topic: str) -> bool:
        """Return whether *topic* has queues, or is in the broker's own table."""

    def stored_of(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and the last message of *topic*, whether or not the broker still has the topic."""

    def key_hits(self, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the message of every index entry that a broker finds for a key, in its order; others' keys, too."""

    def run_of_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield the messages of a queue by their numbers from *begin* to before *end*, None for one that is lost."""

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return a queue's ConsumeQueue unit."""

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset that one pull from *queue_offset* does not go beyond."""

    def searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """Return the part of a queue that brokers up to 5.1.0 search for a store time: one file."""

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues."""

    def static_queues(self, topic: str) -> list[StaticQueue]:
        """Return the queues of a static topic as the broker's own table has them; none of any other."""

    @property
    def config(self) -> BrokerConfig | None:
        """The broker's settings of topics and groups, and how far consumers are; None where only tables have it."""

    def hosts(self) -> list[Host]:
        """Return the store hosts that offset ids can name here, as far as a few looks tell."""

    def coverage(self) -> Coverage:
        """Return the part of the history that is there."""

    def occurrences(self, text: str) -> Iterator[Occurrence]:
        """Yield messages that have *text* as a key of any kind, under any topic; to explain an empty answer."""

    def taken_back(self, text: str) -> Iterator[Message]:
        """Yield messages that their broker took back, with *text* as an id or as a key; a store has none of them."""

    def place(self, physical_offset: int) -> Reason:
        """Return the reason why no message begins at an offset."""
