"""Export messages from a store or a lake: tasks write parts, and the driver merges them into one file."""

from jobs.export.items import (
    BODY_TEXT,
    COLUMNS,
    SCHEMA,
    ExportDefect,
    ExportItem,
    LakeItem,
    LogItem,
    add_decoded_bodies,
    convert_to_table_rows,
    is_outside_times,
    iterate_decoded_slices,
    read_rows,
)

__all__ = [
    "BODY_TEXT",
    "COLUMNS",
    "SCHEMA",
    "ExportDefect",
    "ExportItem",
    "LakeItem",
    "LogItem",
    "add_decoded_bodies",
    "convert_to_table_rows",
    "is_outside_times",
    "iterate_decoded_slices",
    "read_rows",
]
