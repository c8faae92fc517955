"""Repair a damaged store: a plan based on the findings, new files outside the store, installation, and undo."""

from jobs.repair.journal import CHECKPOINT_PART, JOURNAL_FILE, Journal

__all__ = [
    "CHECKPOINT_PART",
    "JOURNAL_FILE",
    "Journal",
]
