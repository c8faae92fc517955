"""Findings of `verify`, and all their kinds, which scripts branch on."""

from typing import NamedTuple, Self

from jobs.console.result import Severity

LOG, QUEUES, INDEX = "log", "queues", "index"
GAP = "gap"
DAMAGED_RANGE = "damaged_range"
UNREADABLE_RANGE = "unreadable_range"
WRONG_BODY_CRC = "wrong_body_crc"
WRONG_RECORD_CRC = "wrong_record_crc"
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
CHECKPOINT_AFTER_LOG = "checkpoint_after_log"
SHORT_CHECKPOINT = "checkpoint_cut_short"
# Of queues, and of pending messages.
WRONG_FILE_NAME = "wrong_file_name"
UNEXPECTED_FILE = "unexpected_file"
CONSUMER_PAST_QUEUE_END = "consumer_offset_past_queue_end"
DELAY_PAST_QUEUE_END = "delay_offset_past_queue_end"
TAIL_NOT_ZERO = "tail_not_zero"
OUT_OF_SEQUENCE = "record_out_of_sequence"
DOUBLE_WRITE_DIFFERS = "double_write_differs"
TRANSACTION_WITHOUT_MESSAGE = "transaction_row_of_no_message"
TIMER_ROW_WITHOUT_MESSAGE = "timer_row_of_no_message"
TIMER_UNIT_WITHOUT_MESSAGE = "timer_unit_of_no_message"
# Of compacted logs.
COMPACTED_RECORD_DIFFERS = "compacted_record_differs"
COMPACTED_UNIT_DIFFERS = "compacted_unit_differs"
COMPACTED_OUT_OF_ORDER = "compacted_out_of_order"
COMPACTED_FOREIGN_RECORD = "compacted_record_of_another_queue"
COMPACTED_LOG_KINDS = frozenset(
    {
        DAMAGED_COMPACTION,
        COMPACTED_RECORD_DIFFERS,
        COMPACTED_UNIT_DIFFERS,
        COMPACTED_OUT_OF_ORDER,
        COMPACTED_FOREIGN_RECORD,
    }
)
# Of index files, and of an index in RocksDB.
ENTRIES_OF_LOST_MESSAGES = "entries_of_lost_messages"
CHECKPOINT_INDEX_TIME = "checkpoint_index_time"
REPEATED_INDEX_FILE = "repeated"
MISSING_INDEX_ROWS = "missing_index_rows"
INDEX_ROWS_WITHOUT_MESSAGE = "index_rows_of_no_message"
DAMAGED_INDEX_ROWS = "damaged_index_rows"
# Of a tier.
TIER_UNIT_DIFFERS = "tier_unit_differs"
TIER_ENTRY_DIFFERS = "tier_entry_differs"
FOREIGN_RECORD = "record_of_another_queue"

_DAMAGED_FILES = frozenset({UNREADABLE_DATABASE, DAMAGED_CONFIGURATION, DAMAGED_TIMER, DAMAGED_COMPACTION})
DAMAGED_RECORD_KINDS = frozenset({DAMAGED_RANGE, WRONG_BODY_CRC, WRONG_RECORD_CRC, ZEROED_PROPERTIES, WRONG_STORE_TIME})
GAP_OR_LOST_END = frozenset({GAP, LOST_END})
_GAPS = GAP_OR_LOST_END | {LOST_START}
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
    is_undecided: bool = False  # nothing shows which of two files is wrong

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
    def cause_text(self) -> str:
        """The cause, with a note if it is undecided."""
        return f"undecided: {self.cause}" if self.is_undecided else self.cause

    def as_consequence_of(self, title: str) -> Self:
        """Return the finding as a consequence of the log finding with this title."""
        return self._replace(follows=title, cause=f"caused by the log finding: {title}", is_undecided=False)

    def to_row(self) -> dict[str, object]:
        """Return the fields that JSON and tables have."""
        row = {**self._asdict(), "cause": self.cause_text}
        del row["is_undecided"]
        return row

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**self.to_row(), "severity": self.severity.value}

    @property
    def text(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} @{self.offset}"
        wanted = f", expected {self.expected}" if self.expected else ""
        subject = f"{place} {self.field}" if self.field else place
        states_number = self.field == "files" or self.kind in {MISSING_INDEX_ENTRIES, NOT_INDEXED}
        noun = "units" if self.field == "unit" else "times"
        times = f" ({self.times:,} {noun})" if self.times > 1 and not states_number else ""
        return f"{self.kind}: {subject}: {self.found}{wanted}{times} - {self.cause_text}"
