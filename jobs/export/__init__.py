"""Export messages from a store or a lake: tasks write parts, and the driver merges them into one file."""

from jobs.export.items import (
    ANY_TIME,
    BODY_TEXT,
    COLUMNS,
    SCHEMA,
    ExportDefect,
    ExportItem,
    LakeItem,
    LogItem,
    TimeRange,
    add_decoded_bodies,
    convert_to_table_rows,
    is_outside_times,
    iterate_decoded_slices,
    read_rows,
)

__all__ = [
    "ANY_TIME",
    "BODY_TEXT",
    "COLUMNS",
    "SCHEMA",
    "ExportDefect",
    "ExportItem",
    "LakeItem",
    "LogItem",
    "TimeRange",
    "add_decoded_bodies",
    "convert_to_table_rows",
    "is_outside_times",
    "iterate_decoded_slices",
    "read_rows",
]
