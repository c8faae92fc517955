"""Restore a store from a lake: segments byte for byte, then queues, index and checkpoint."""

from jobs.restore.plan import (
    EXPIRED,
    NEWER_COLUMNS,
    ROWS_DELETED,
    NothingToRestoreError,
    PlannedSegment,
    RestorePlan,
    TableFiles,
    count_messages_in_ranges,
    find_offset_at_time,
    find_table_files,
    plan_log,
    read_first_store_timestamp,
    read_last_store_timestamp,
    unchecked_note,
)

__all__ = [
    "EXPIRED",
    "NEWER_COLUMNS",
    "ROWS_DELETED",
    "NothingToRestoreError",
    "PlannedSegment",
    "RestorePlan",
    "TableFiles",
    "count_messages_in_ranges",
    "find_offset_at_time",
    "find_table_files",
    "plan_log",
    "read_first_store_timestamp",
    "read_last_store_timestamp",
    "unchecked_note",
]
