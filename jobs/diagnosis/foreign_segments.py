"""Findings that a segment of another log would explain as well: units lead to no record there."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from jobs.lake.findings import AHEAD_OF_LOG, MISSING_INDEX_ENTRIES, Finding
from jobs.products.queues.differences import DifferenceKind
from jobs.store.store import Store

_NOTHING_THERE = frozenset(
    {
        DifferenceKind.MISSING, DifferenceKind.MISSING_FILE, DifferenceKind.MISSING_QUEUE, DifferenceKind.DROPPED,
        MISSING_INDEX_ENTRIES,
    }
)  # fmt: skip
_AFTER_LOG = frozenset({DifferenceKind.BEHIND_LOG, AHEAD_OF_LOG})
_OTHER_LOG = "or a segment is of another log: other units lead to no record there"


def suspected_segments(findings: Iterable[Finding], store: Store) -> set[int]:
    """Return the numbers of the segments, from 1 on, in which units lead to no record."""
    offsets = (one.log_offset for one in findings if one.kind == DifferenceKind.DANGLING)
    return {_segment_of(offset, store) for offset in offsets if offset is not None}


def doubted(findings: Sequence[Finding], segments: set[int], store: Store) -> Iterator[Finding]:
    """Yield *findings*; of those that a foreign segment explains, too, the cause is undecided."""
    for one in findings:
        is_doubted = segments and one.kind in _NOTHING_THERE | _AFTER_LOG
        is_doubted = is_doubted and (one.log_offset is None or _segment_of(one.log_offset, store) in segments)
        why = one.cause if one.kind in _AFTER_LOG else "units, entries or files were lost"
        yield one._replace(cause=f"undecided: {why}, {_OTHER_LOG}") if is_doubted else one


def _segment_of(offset: int, store: Store) -> int:
    return bisect_right([segment.base_offset for segment in store.segments], offset)
