"""
What explains findings: ranges that the log has lost, a promotion, a segment of another log.

A broker that is promoted leaves no fault. The replica that returned cut its log where the new master's epoch begins,
and stored that master's records there. Three things stay: old records after the end of the log, units of them at the
ends of queues, and entries of them in index files, which then lack messages of the new master. Their records are proof;
without one, queues that lead further show a lost end.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from jobs.diagnosis.log_check import RangeCheck
from jobs.lake.findings import (
    AHEAD_OF_LOG,
    DAMAGED_RANGE,
    LOG,
    MISSING_INDEX_ENTRIES,
    NOT_INDEXED_HERE,
    PROMOTION,
    TAKEN_BACK_ENTRIES,
    TAKEN_BACK_UNITS,
    Finding,
)
from jobs.products.queues.differences import OVERWRITTEN, WITHOUT_UNIT, DifferenceKind
from jobs.store.epochs import Promotion
from jobs.store.store import Store
from jobs.verify.findings import PartReport, place_of

_ZEROS = "magic 00000000 "
_NEVER_WRITTEN = "undecided: zeroed, or never written, and the data after it is of another log"
_OF_PROMOTION = frozenset({TAKEN_BACK_UNITS, TAKEN_BACK_ENTRIES, NOT_INDEXED_HERE})
_AFTER_LOG = frozenset({DifferenceKind.BEHIND_LOG, AHEAD_OF_LOG})


class LostRange(NamedTuple):
    """Offsets that hold no record any more."""

    start: int
    end: int
    title: str  # of the finding that says so


class LostRanges:
    """Which offsets of the log hold no record any more, and which finding says so."""

    def __init__(self, ranges: Iterable[LostRange]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [one.start for one in self._ranges]
        self._furthest = list(accumulate((one.end for one in self._ranges), max))  # of a range and all before it

    def title_at(self, offset: int | None) -> str:
        """Return the title of the finding that explains why *offset* is lost; "" where it is not."""
        number = bisect_right(self._starts, offset) - 1 if offset is not None else -1
        while offset is not None and number >= 0 and offset < self._furthest[number]:
            if offset < self._ranges[number].end:
                return self._ranges[number].title
            number -= 1  # a gap within the lost end hides that end
        return ""

    def attributed(self, finding: Finding) -> Finding:
        """Return a finding with the log's finding that it follows from, if there is one."""
        title = self.title_at(finding.log_offset)
        return finding.following(title) if title else finding


def attribute(
    log: PartReport, others: Sequence[PartReport], lost: LostRanges, checks: Sequence[RangeCheck], store: Store
) -> None:
    """
    Put findings under their causes in the log, and doubt those that a foreign segment explains.

    *others* are the reports on queues and on index files; what dangles in queues shows a foreign segment.
    """
    segments = _suspected_segments(others[0].findings, store)
    for part in others:
        part.findings = [lost.attributed(_doubted(one, segments, store)) for one in part.findings]
    followed = {one.follows for part in (log, *others) for one in part.findings}
    log.findings = list(_doubted_zeros(log.findings, followed, checks, store))


def _suspected_segments(findings: Iterable[Finding], store: Store) -> set[int]:
    """Return the numbers of the segments, from 1 on, in which units lead to no record."""
    offsets = (one.log_offset for one in findings if one.kind == DifferenceKind.DANGLING)
    return {_segment_of(offset, store) for offset in offsets if offset is not None}


def _doubted(finding: Finding, segments: set[int], store: Store) -> Finding:
    """Return a finding; if a foreign segment also explains it, its cause is undecided."""
    why = _other_reason(finding)
    offset = finding.log_offset
    if not segments or why is None or not (offset is None or _segment_of(offset, store) in segments):
        return finding
    cause = f"undecided: {why}, or a segment is of another log: other units lead to no record there"
    return finding._replace(cause=cause)


def _other_reason(one: Finding) -> str | None:
    """Return the reason of a finding when no segment is foreign; None where a foreign one does not explain it."""
    if one.kind in {*WITHOUT_UNIT, MISSING_INDEX_ENTRIES}:
        return "units, entries or files were lost"
    if one.kind in OVERWRITTEN:
        return "the unit was overwritten"
    return one.cause if one.kind in _AFTER_LOG else None


def _segment_of(offset: int, store: Store) -> int:
    return bisect_right([segment.base_offset for segment in store.segments], offset)


def _doubted_zeros(
    findings: Iterable[Finding], followed: Container[str], checks: Sequence[RangeCheck], store: Store
) -> Iterator[Finding]:
    """Yield *findings*; zeros up to a file's end that no unit or entry leads into may never have been anything else."""
    ends = {segment.end for segment in store.segments}
    pieces = (piece for check in checks for piece in check.damaged)
    tails = {piece.offset for piece in pieces if piece.reason.startswith(_ZEROS) and piece.end in ends}
    for one in findings:
        is_doubted = one.kind == DAMAGED_RANGE and one.log_offset in tails and one.title not in followed
        yield one._replace(cause=_NEVER_WRITTEN) if is_doubted else one


def set_apart(promotion: Promotion, log: PartReport, others: Sequence[PartReport], store: Store) -> None:
    """Move what the promotion explains from the findings of *others* to their facts, and say in *log* what happened."""
    for part in others:
        explained = [finding for finding in part.findings if _is_explained(finding, promotion)]
        part.findings = [finding for finding in part.findings if finding not in explained]
        part.facts = [*part.facts, *(_fact(finding) for finding in explained)]
    if not promotion.left_over and not any(fact.kind in _OF_PROMOTION for part in others for fact in part.facts):
        return  # the new master itself, or a replica that had nothing to remove
    left = promotion.left_end - promotion.log_end if promotion.left_over else 0
    cause = (
        f"another replica became master: what this one had stored from offset {promotion.start} on was taken back, "
        "and the new master's records are in its place; a broker leaves queues and index files like this"
    )
    ends = f"the log ends at {promotion.log_end}, {left:,} bytes after that are left over"
    place = place_of(promotion.start, store)
    start = str(promotion.start)
    fact = Finding(LOG, PROMOTION, *place, "offsets", start, ends, cause, log_offset=promotion.start)
    log.facts = [fact, *log.facts]


def _is_explained(finding: Finding, promotion: Promotion) -> bool:
    return finding.kind in _OF_PROMOTION or (finding.kind in _AFTER_LOG and promotion.explains(finding.log_offset))


def _fact(finding: Finding) -> Finding:
    cause = "they are of messages that a promotion took back; "
    if finding.kind == DifferenceKind.BEHIND_LOG:
        units, cause = (
            f"{finding.times:,} units after the end of the queue",
            f"{cause}a broker drops them at its next start",
        )
        return finding._replace(kind=TAKEN_BACK_UNITS, expected=units, cause=cause)
    if finding.kind == AHEAD_OF_LOG:
        cause += "lookups skip them"
        return finding._replace(kind=TAKEN_BACK_ENTRIES, expected=finding.found, cause=cause)
    return finding
