"""`verify` compares the log with itself, and queues and index files with the log; each finding has a cause."""

from jobs.verify.report import LostRange, LostRanges, PartReport, locate_offset, unreadable_database_finding

__all__ = [
    "LostRange",
    "LostRanges",
    "PartReport",
    "locate_offset",
    "unreadable_database_finding",
]
