"""
What a promotion left in a replica that came back: the state in which a broker itself leaves it, and no fault.

The replica cut its log where the new master's epoch begins, and stored that master's records there. Three things stay:
old records after the end of the log, units of them at the ends of queues, and entries of them in index files, which
then lack messages of the new master. Their records are proof; without one, queues that lead further show a lost end.
"""

from collections.abc import Sequence

from jobs.lake.findings import (
    AHEAD_OF_LOG,
    LOG,
    NOT_INDEXED_HERE,
    PROMOTION,
    TAKEN_BACK_ENTRIES,
    TAKEN_BACK_UNITS,
    Finding,
)
from jobs.store.epochs import Promotion
from jobs.store.store import Store
from jobs.verify.findings import PartReport

_QUEUE_KIND = "unit_behind_log"


def set_apart(promotion: Promotion, log: PartReport, others: Sequence[PartReport], store: Store) -> None:
    """Move what the promotion explains from the findings of *others* to their facts, and say in *log* what happened."""
    for part in others:
        explained = [finding for finding in part.findings if _is_explained(finding, promotion)]
        part.findings = [finding for finding in part.findings if finding not in explained]
        part.facts = [*part.facts, *(_fact(finding) for finding in explained)]
    if not promotion.left_over and not any(_is_of_promotion(fact) for part in others for fact in part.facts):
        return  # the new master itself, or a replica that had nothing to take back
    segment = max(
        (one for one in store.segments if one.base_offset <= promotion.start), key=lambda one: one.base_offset
    )
    left = promotion.left_end - promotion.log_end if promotion.left_over else 0
    log.facts = [
        Finding(
            LOG,
            PROMOTION,
            store.below(segment.location),
            promotion.start - segment.base_offset,
            "offsets",
            f"{promotion.start}",
            f"the log ends at {promotion.log_end}, {left:,} bytes after that are left over",
            f"another replica became master: what this one had stored from offset {promotion.start} on was taken "
            "back, and the new master's records are in its place; a broker leaves queues and index files like this",
            log_offset=promotion.start,
        ),
        *log.facts,
    ]


def _is_explained(finding: Finding, promotion: Promotion) -> bool:
    if finding.kind in {_QUEUE_KIND, AHEAD_OF_LOG}:
        return promotion.explains(finding.log_offset)
    return _is_of_promotion(finding)


def _is_of_promotion(finding: Finding) -> bool:
    return finding.kind in {TAKEN_BACK_UNITS, TAKEN_BACK_ENTRIES, NOT_INDEXED_HERE}


def _fact(finding: Finding) -> Finding:
    if finding.kind == _QUEUE_KIND:
        return finding._replace(
            kind=TAKEN_BACK_UNITS,
            expected=f"{finding.times:,} units after the end of the queue",
            cause="they are of messages that a promotion took back; a broker drops them at its next start",
        )
    if finding.kind == AHEAD_OF_LOG:
        return finding._replace(
            kind=TAKEN_BACK_ENTRIES,
            expected=finding.found,
            cause="they are of messages that a promotion took back; lookups skip them",
        )
    return finding
