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
_OTHER_RECORD_THERE = frozenset(
    {
        DifferenceKind.WRONG_SIZE, DifferenceKind.WRONG_TAGS_CODE, DifferenceKind.WRONG_BATCH_FIELD,
        DifferenceKind.FOREIGN, DifferenceKind.HIDDEN_RECORD, DifferenceKind.DUPLICATE, DifferenceKind.OUT_OF_ORDER,
    }
)  # fmt: skip
_OTHER_LOG = "or a segment is of another log: other units lead to no record there"


def suspected_segments(findings: Iterable[Finding], store: Store) -> set[int]:
    """Return the numbers of the segments, from 1 on, in which units lead to no record."""
    offsets = (one.log_offset for one in findings if one.kind == DifferenceKind.DANGLING)
    return {_segment_of(offset, store) for offset in offsets if offset is not None}


def doubted(findings: Sequence[Finding], segments: set[int], store: Store) -> Iterator[Finding]:
    """Yield *findings*; of those that a foreign segment explains, too, the cause is undecided."""
    for one in findings:
        why = _other_reason(one)
        is_doubted = segments and why and (one.log_offset is None or _segment_of(one.log_offset, store) in segments)
        yield one._replace(cause=f"undecided: {why}, {_OTHER_LOG}") if is_doubted else one


def _other_reason(one: Finding) -> str | None:
    """Return the reason of a finding when no segment is foreign; None where a foreign one does not explain it."""
    if one.kind in _NOTHING_THERE:
        return "units, entries or files were lost"
    if one.kind in _OTHER_RECORD_THERE:
        return "the unit was overwritten"
    return one.cause if one.kind in _AFTER_LOG else None


def _segment_of(offset: int, store: Store) -> int:
    return bisect_right([segment.base_offset for segment in store.segments], offset)
