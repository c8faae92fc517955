"""
The kinds of findings, which scripts branch on.

Those of queue units are in `DifferenceKind`, those of whole index files in `FileVerdict`.
"""

MISSING_RANGE = "missing_range"
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
PAST_LOG_END = "past_log_end"
UNREADABLE_DATABASE = "unreadable_database"
DAMAGED_CONFIGURATION = "damaged_configuration"
MISSING_CONFIGURATION = "missing_configuration"
MISSING_TOPICS = "missing_topics"
MISSING_GROUPS = "missing_groups"
MISSING_TIMER = "missing_timer"
POSITIONS_BEHIND_LAKE = "positions_behind_lake"
POSITIONS_BEHIND_BACKUP = "positions_behind_backup"
DAMAGED_TIMER = "damaged_timer"
DELETED_TOPIC = "deleted_topic"
DELETED_OR_LOST_QUEUE = "deleted_or_lost_queue"
PROMOTION = "promotion"
UNITS_OF_TRUNCATED_MESSAGES = "units_of_truncated_messages"
ENTRIES_OF_TRUNCATED_MESSAGES = "entries_of_truncated_messages"
NOT_INDEXED_ON_REPLICA = "keys_not_indexed_on_this_replica"
CHECKPOINT_AFTER_LOG = "checkpoint_after_log"
TRUNCATED_CHECKPOINT = "truncated_checkpoint"
# Of queues, and of pending messages.
WRONG_FILE_NAME = "wrong_file_name"
UNEXPECTED_FILE = "unexpected_file"
CONSUMER_PAST_QUEUE_END = "consumer_offset_past_queue_end"
DELAY_PAST_QUEUE_END = "delay_offset_past_queue_end"
NONZERO_TAIL = "nonzero_tail"
OUT_OF_SEQUENCE = "record_out_of_sequence"
DOUBLE_WRITE_DIFFERS = "double_write_differs"
WRONG_QUEUE_END = "wrong_queue_end"
ORPHANED_TRANSACTION_ROW = "orphaned_transaction_row"
ORPHANED_TIMER_ROW = "orphaned_timer_row"
ORPHANED_TIMER_UNIT = "orphaned_timer_unit"
# Of index files, and of an index in RocksDB.
ENTRIES_OF_LOST_MESSAGES = "entries_of_lost_messages"
CHECKPOINT_INDEX_TIME = "checkpoint_index_time"
STALE_INDEX_FILE = "stale"
MISSING_INDEX_ROWS = "missing_index_rows"
ORPHANED_INDEX_ROWS = "orphaned_index_rows"
DAMAGED_INDEX_ROWS = "damaged_index_rows"
DAMAGED_RECORD_KINDS = frozenset({DAMAGED_RANGE, WRONG_BODY_CRC, WRONG_RECORD_CRC, ZEROED_PROPERTIES, WRONG_STORE_TIME})
GAP_OR_LOST_END = frozenset({MISSING_RANGE, LOST_END})
LOST_STATE_KINDS = frozenset(
    {MISSING_CONFIGURATION, MISSING_TOPICS, MISSING_GROUPS, MISSING_TIMER, POSITIONS_BEHIND_LAKE}
    | {POSITIONS_BEHIND_BACKUP}
)
GAP_KINDS = GAP_OR_LOST_END | {LOST_START}
DAMAGED_FILE_KINDS = frozenset({UNREADABLE_RANGE, UNREADABLE_DATABASE, DAMAGED_CONFIGURATION, DAMAGED_TIMER})
LEGAL_KINDS = frozenset(
    {DELETED_TOPIC, PROMOTION, UNITS_OF_TRUNCATED_MESSAGES, ENTRIES_OF_TRUNCATED_MESSAGES, NOT_INDEXED_ON_REPLICA}
)
