"""
The kinds of findings, which scripts branch on.

Those of queue units are in `DifferenceKind`, those of whole index files in `FileVerdict`.
"""

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
MISSING_CONFIGURATION = "missing_configuration"
MISSING_TOPICS = "missing_topics"
MISSING_TIMER = "missing_timer"
POSITIONS_BEHIND_LAKE = "positions_behind_lake"
DAMAGED_TIMER = "damaged_timer"
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
WRONG_QUEUE_END = "wrong_queue_end"
TRANSACTION_WITHOUT_MESSAGE = "transaction_row_of_no_message"
TIMER_ROW_WITHOUT_MESSAGE = "timer_row_of_no_message"
TIMER_UNIT_WITHOUT_MESSAGE = "timer_unit_of_no_message"
# Of index files, and of an index in RocksDB.
ENTRIES_OF_LOST_MESSAGES = "entries_of_lost_messages"
CHECKPOINT_INDEX_TIME = "checkpoint_index_time"
STALE_INDEX_FILE = "stale"
MISSING_INDEX_ROWS = "missing_index_rows"
INDEX_ROWS_WITHOUT_MESSAGE = "index_rows_of_no_message"
DAMAGED_INDEX_ROWS = "damaged_index_rows"
DAMAGED_RECORD_KINDS = frozenset({DAMAGED_RANGE, WRONG_BODY_CRC, WRONG_RECORD_CRC, ZEROED_PROPERTIES, WRONG_STORE_TIME})
GAP_OR_LOST_END = frozenset({GAP, LOST_END})
LOST_STATE_KINDS = frozenset({MISSING_CONFIGURATION, MISSING_TOPICS, MISSING_TIMER, POSITIONS_BEHIND_LAKE})
GAP_KINDS = GAP_OR_LOST_END | {LOST_START}
DAMAGED_FILE_KINDS = frozenset({UNREADABLE_RANGE, UNREADABLE_DATABASE, DAMAGED_CONFIGURATION, DAMAGED_TIMER})
LEGAL_KINDS = frozenset(
    {DELETED_TOPIC, PROMOTION, UNITS_OF_TRUNCATED_MESSAGES, ENTRIES_OF_TRUNCATED_MESSAGES, NOT_INDEXED_ON_REPLICA}
)
