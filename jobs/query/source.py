"""The source of a query, a store or a lake, and the parts of an answer."""

from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange
from rmq_formats.hashing import MAX_LONG
from rmq_formats.indexfile.keys import KeyKind

if TYPE_CHECKING:
    from jobs.query.lake_source import LakeSource
    from jobs.query.store_source import StoreSource

MIN_TIME = 0
MAX_TIME = MAX_LONG
EXPLAINED_BY = 20  # this many messages under a text are enough to explain an empty answer


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
    NO_MATCH = "no_match"
    NOT_ALL_SEARCHED = "not_all_searched"
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


def whole_number(text: str) -> int | None:
    """Return the number that ASCII digits are, if it surely has no more than 64 bits; None of any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MAX_TIME)) else None


Source: TypeAlias = "StoreSource | LakeSource"  # both answer the same questions
