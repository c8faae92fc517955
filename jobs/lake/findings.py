"""A finding: one row of the table `findings`, as `verify` makes it."""

from typing import NamedTuple, Self

from jobs.console.severity import Severity

LOG, QUEUES, INDEX = "log", "queues", "index"
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
NOT_INDEXED = "keys_not_indexed"
MISSING_INDEX_ENTRIES = "missing_index_entries"
AHEAD_OF_LOG = "ahead_of_log"
UNREADABLE_DATABASE = "unreadable_database"
DAMAGED_CONFIGURATION = "damaged_configuration"
DAMAGED_TIMER = "damaged_timer"
DAMAGED_COMPACTION = "damaged_compaction"
DELETED_TOPIC = "deleted_topic"
UNDECIDED_TOPIC = "deleted_or_lost_queue"
PROMOTION = "promotion"
TAKEN_BACK_UNITS = "units_of_taken_back_messages"
TAKEN_BACK_ENTRIES = "entries_of_taken_back_messages"
NOT_INDEXED_HERE = "keys_not_indexed_on_this_replica"

_DAMAGED_FILES = frozenset({UNREADABLE_DATABASE, DAMAGED_CONFIGURATION, DAMAGED_TIMER, DAMAGED_COMPACTION})
DAMAGED_RECORDS = frozenset({DAMAGED_RANGE, WRONG_BODY, WRONG_RECORD, ZEROED_PROPERTIES, WRONG_STORE_TIME})
MISSING_RECORDS = frozenset({GAP, LOST_END})
_GAPS = MISSING_RECORDS | {LOST_START}
_LEGAL = frozenset({DELETED_TOPIC, PROMOTION, TAKEN_BACK_UNITS, TAKEN_BACK_ENTRIES, NOT_INDEXED_HERE})


class Finding(NamedTuple):
    """One thing that is not as the log says, or that is wrong with the log itself."""

    part: str  # log, queues, index
    kind: str  # the class: what scripts branch on
    file: str  # below the store's root
    offset: int | None  # in the file, of the first byte that is wrong
    field: str
    found: str  # the stored value
    expected: str  # what should be
    cause: str  # the likely one, in words
    times: int = 1  # how often, from this place on
    log_offset: int | None = None  # the place in the log that it is about
    log_end: int | None = None  # where that part of the log ends, as far as it is known
    right_time: int | None = None  # that the file should state, ms
    follows: str = ""  # the title of the finding that it is a consequence of

    @property
    def title(self) -> str:
        """A short name, unique among the findings that others follow from."""
        return f"{self.kind} {self.found}" if self.part == LOG else f"{self.kind} {self.file}"

    @property
    def severity(self) -> Severity:
        """How serious it is by itself; a consequence is as serious as its cause."""
        if self.kind in _LEGAL:
            return Severity.HEALTHY
        if self.kind in _DAMAGED_FILES:
            return Severity.DAMAGE
        if self.kind == UNDECIDED_TOPIC:
            return Severity.GAP
        cause = self.follows.partition(" ")[0] or (self.kind if self.part == LOG else "")
        if cause:
            return Severity.GAP if cause in _GAPS else Severity.DAMAGE
        return Severity.CONTRADICTION

    def following(self, title: str) -> Self:
        """Return the finding as a consequence of the log's finding with this title."""
        return self._replace(follows=title, cause=f"follows from the log: {title}")

    def describe(self) -> dict[str, object]:
        """Return the form that scripts read."""
        return {**self._asdict(), "severity": self.severity.value}

    @property
    def text(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} @{self.offset}"
        often = f" ({self.times:,} times)" if self.times > 1 else ""
        wanted = f", expected {self.expected}" if self.expected else ""
        return f"{self.kind}: {place} {self.field}: {self.found}{wanted}{often} - {self.cause}"
