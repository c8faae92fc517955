"""Findings of `verify`, and the damage found by runs that is not acknowledged yet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypedDict, cast

from jobs.console.amounts import count_text
from jobs.console.result import Severity

LOG, QUEUES, INDEX = "log", "queues", "index"
UNDECIDED = "undecided: "  # begins the cause of a finding that does not show which of two files is wrong
GAP = "gap"
DAMAGED_RANGE = "damaged_range"
UNREADABLE_RANGE = "unreadable_range"
WRONG_BODY = "wrong_body_crc"
WRONG_RECORD = "wrong_record_crc"
ZEROED_PROPERTIES = "zeroed_properties"
WRONG_STORE_TIME = "wrong_store_time"
WRONG_FILE_SIZE = "wrong_file_size"
LOST_START = "lost_start"
LOST_END = "lost_end"
MISNAMED_SEGMENT = "misnamed_segment"
OVERLAPPING_FILE = "overlapping_file"
NOT_INDEXED = "keys_not_indexed"
MISSING_INDEX_ENTRIES = "missing_index_entries"
AHEAD_OF_LOG = "ahead_of_log"
UNREADABLE_DATABASE = "unreadable_database"
DAMAGED_CONFIGURATION = "damaged_configuration"
DAMAGED_TIMER = "damaged_timer"
DAMAGED_COMPACTION = "damaged_compaction"
DELETED_TOPIC = "deleted_topic"
DELETED_OR_LOST_QUEUE = "deleted_or_lost_queue"
PROMOTION = "promotion"
UNITS_OF_TRUNCATED_MESSAGES = "units_of_taken_back_messages"
ENTRIES_OF_TRUNCATED_MESSAGES = "entries_of_taken_back_messages"
NOT_INDEXED_ON_REPLICA = "keys_not_indexed_on_this_replica"

_DAMAGED_FILES = frozenset({UNREADABLE_DATABASE, DAMAGED_CONFIGURATION, DAMAGED_TIMER, DAMAGED_COMPACTION})
DAMAGED_RECORDS = frozenset({DAMAGED_RANGE, WRONG_BODY, WRONG_RECORD, ZEROED_PROPERTIES, WRONG_STORE_TIME})
MISSING_RECORDS = frozenset({GAP, LOST_END})
_GAPS = MISSING_RECORDS | {LOST_START}
_LEGAL = frozenset(
    {DELETED_TOPIC, PROMOTION, UNITS_OF_TRUNCATED_MESSAGES, ENTRIES_OF_TRUNCATED_MESSAGES, NOT_INDEXED_ON_REPLICA}
)


class Finding(NamedTuple):
    """One problem: something that contradicts the log, or damage of the log itself."""

    part: str  # log, queues, index
    kind: str  # scripts branch on this value
    file: str  # below the store's root
    offset: int | None  # position in the file of the first wrong byte
    field: str
    found: str  # the stored value
    expected: str  # the expected value
    cause: str  # the likely cause, in words
    times: int = 1  # number of occurrences, from this position on
    log_offset: int | None = None  # the affected offset in the log
    log_end: int | None = None  # end of the affected part of the log, if known
    right_time: int | None = None  # the time that the file should state, ms
    follows: str = ""  # the title of the finding that it is a consequence of

    @property
    def title(self) -> str:
        """A short name, unique among the findings that have consequences."""
        return f"{self.kind} {self.found}" if self.part == LOG else f"{self.kind} {self.file}"

    @property
    def severity(self) -> Severity:
        """Its own severity; a consequence has the severity of its cause."""
        if self.kind in _LEGAL:
            return Severity.HEALTHY
        if self.kind in _DAMAGED_FILES:
            return Severity.DAMAGE
        if self.kind == DELETED_OR_LOST_QUEUE:
            return Severity.GAP
        cause = self.follows.partition(" ")[0] or (self.kind if self.part == LOG else "")
        if cause:
            return Severity.GAP if cause in _GAPS else Severity.DAMAGE
        return Severity.CONTRADICTION

    @property
    def is_undecided(self) -> bool:
        """Whether nothing shows which of two files is wrong."""
        return self.cause.startswith(UNDECIDED)

    def as_consequence_of(self, title: str) -> Self:
        """Return the finding as a consequence of the log finding with this title."""
        return self._replace(follows=title, cause=f"caused by the log finding: {title}")

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**self._asdict(), "severity": self.severity.value}

    @property
    def text(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} @{self.offset}"
        wanted = f", expected {self.expected}" if self.expected else ""
        subject = f"{place} {self.field}" if self.field else place
        states_number = self.field == "files" or self.kind in {MISSING_INDEX_ENTRIES, NOT_INDEXED}
        noun = "units" if self.field == "unit" else "times"
        times = f" ({self.times:,} {noun})" if self.times > 1 and not states_number else ""
        return f"{self.kind}: {subject}: {self.found}{wanted}{times} - {self.cause}"


# A range of a log that a lake will never have, as in manifests and summaries.
GapRow = TypedDict("GapRow", {"broker": str, "from": int, "to": int, "why": str})
OPEN_DAMAGE_KEY = "open"  # in a manifest's state
_GAPS_KEPT = 100  # open gaps that are kept; further ones are only counted


class OpenDamage(NamedTuple):
    """Damage found by runs since the last acknowledgement, or since the first run of a store."""

    since_run: int = 0  # the first run that found damage
    quarantined: int = 0  # damaged places
    superseded: int = 0  # times that the broker's log was truncated or rewritten
    contradictions: int = 0  # units of queues that do not agree with the log
    gap_count: int = 0
    gaps: tuple[GapRow, ...] = ()  # the first open gaps

    @classmethod
    def from_state(cls, state: Mapping[str, object], own: "OpenDamage") -> "OpenDamage":
        """Return the open damage of a manifest's state; *own* for manifests of earlier versions, which have none."""
        found = cast("dict[str, Any] | None", state.get(OPEN_DAMAGE_KEY))
        return own if found is None else cls(**{**found, "gaps": tuple(found["gaps"])})

    def after_run(
        self, run: int, gaps: Sequence[GapRow], quarantined: int, superseded: int, contradictions: int = 0
    ) -> "OpenDamage":
        """Return the open damage after one more run."""
        new = [gap for gap in gaps if gap not in self.gaps]
        if not (new or quarantined or superseded or contradictions):
            return self
        return OpenDamage(
            self.since_run or run,
            self.quarantined + quarantined,
            self.superseded + superseded,
            self.contradictions + contradictions,
            self.gap_count + len(new),
            (*self.gaps, *new)[:_GAPS_KEPT],
        )

    def __bool__(self) -> bool:
        """Return whether anything is open."""
        return self.since_run > 0

    def lines(self) -> Iterator[str]:
        """Yield the open damage as lines of text."""
        counts = (
            (self.quarantined, "damaged range", " of the log in the table quarantine"),
            (self.gap_count, "gap", ""),
            (self.superseded, "superseded part", " of the log"),
            (self.contradictions, "contradiction", " between log and queues"),
        )
        if self:
            text = ", ".join(count_text(count, noun) + where for count, noun, where in counts if count)
            yield f"  OPEN since run {self.since_run}: {text} (acknowledge with --acknowledge)"
