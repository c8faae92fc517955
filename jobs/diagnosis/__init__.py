"""Which file of a store is wrong (`file_faults`, `log_check`), and what its broker would do on start."""

from jobs.diagnosis.start_prediction import (
    DoubtfulBytes,
    WalkedLog,
    find_truncation_places,
    gather_start_facts,
    keeps_incomplete_record,
    predict_start_by_own_walk,
    predict_store_start,
    recreated_index_notes,
    start_warning_lines,
    unknown_start,
    why_segment_size_is_doubtful,
)

__all__ = [
    "DoubtfulBytes",
    "WalkedLog",
    "find_truncation_places",
    "gather_start_facts",
    "keeps_incomplete_record",
    "predict_start_by_own_walk",
    "predict_store_start",
    "recreated_index_notes",
    "start_warning_lines",
    "unknown_start",
    "why_segment_size_is_doubtful",
]
