"""Dump a file of a store."""

from jobs.dump.dumped_file import (
    KINDS_BY_NAME,
    MORE_FOLLOWS,
    DumpFile,
    DumpItem,
    DumpRequest,
    Field,
    compare_with_sibling_files,
    counts_text,
    damage_item,
    layout_fields,
    list_numbered_files,
    open_file,
    short_time_text,
)

__all__ = [
    "KINDS_BY_NAME",
    "MORE_FOLLOWS",
    "DumpFile",
    "DumpItem",
    "DumpRequest",
    "Field",
    "compare_with_sibling_files",
    "counts_text",
    "damage_item",
    "layout_fields",
    "list_numbered_files",
    "open_file",
    "short_time_text",
]
