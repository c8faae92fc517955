"""A store's queues in tasks: read their files, join them with the log, and rewrite them."""

from jobs.products.queues.join_result import (
    FEW_DIFFERENCES,
    KINDS_OF_EARLIER_QUEUES,
    KINDS_WITHOUT_QUEUE_FAULT,
    MISSING_UNIT_KINDS,
    OVERWRITTEN_UNIT_KINDS,
    WRONG_POSITION_KINDS,
    DifferenceKind,
    JoinResult,
    QueueDifference,
    QueueFigures,
    QueueWithoutFiles,
    UndispatchedRecords,
    combine_figures,
    merge_differences,
)

__all__ = [
    "FEW_DIFFERENCES",
    "KINDS_OF_EARLIER_QUEUES",
    "KINDS_WITHOUT_QUEUE_FAULT",
    "MISSING_UNIT_KINDS",
    "OVERWRITTEN_UNIT_KINDS",
    "WRONG_POSITION_KINDS",
    "DifferenceKind",
    "JoinResult",
    "QueueDifference",
    "QueueFigures",
    "QueueWithoutFiles",
    "UndispatchedRecords",
    "combine_figures",
    "merge_differences",
]
