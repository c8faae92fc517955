"""The report of a part of the store, and the lost ranges that findings follow from."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from jobs.console.result import RecommendedStep, Severity, worst_severity, worst_severity_met
from jobs.diagnosis import kinds
from jobs.diagnosis.acceptance import AcceptedFinding
from jobs.diagnosis.findings import Finding
from jobs.store.store import Store
from rmq_formats.errors import FormatError
from rmq_formats.store import file_name_of_offset


@dataclass(slots=True)
class PartReport:
    """The report of one part: log, queues, index or configuration."""

    findings: list[Finding] = field(default_factory=list)
    numbers: Mapping[str, int] = field(default_factory=dict)  # compared items, and those that are not dispatched yet
    notes: list[str] = field(default_factory=list)  # assumptions, and parts that could not be compared
    facts: list[Finding] = field(default_factory=list)  # worth knowing, but nothing to correct
    accepted: list[AcceptedFinding] = field(default_factory=list)  # not among the findings
    unverified: str = ""  # why the part could not be verified
    is_absent: bool = False  # the part has no file, and nothing shows whether it had one
    doubts: list[str] = field(default_factory=list)  # reasons why some of it could not be verified
    database_step: RecommendedStep | None = None  # the remedy for rows that only a broker can write

    @property
    def open_reasons(self) -> list[str]:
        """The reasons why the part, or some of it, could not be verified."""
        return [self.unverified, *self.doubts] if self.unverified else self.doubts

    @property
    def severity(self) -> Severity:
        """The worst severity: of the findings, of items that are not dispatched, or of an incomplete verification."""
        behind = self.numbers.get("behind")
        own = worst_severity_met(Severity.HEALTHY, behind=behind, not_verified=self.open_reasons)
        return worst_severity([own, *(finding.severity for finding in self.findings)])


def unreadable_database_finding(part: str, error: FormatError, store: Store, cause_suffix: str = "") -> Finding:
    """Return the finding of a RocksDB database that cannot be read; *cause_suffix* completes its cause."""
    cause = f"the database is damaged; a broker that starts now may refuse to load it{cause_suffix}"
    place = store.path_below_root(error.file), error.offset, "database"
    return Finding(part, kinds.UNREADABLE_DATABASE, *place, error.reason, "a database that can be opened", cause)


def locate_offset(offset: int, store: Store) -> tuple[str, int]:
    """Return the file below the store's root, and the position in it, of an offset of the log."""
    segment = store.segment_before(offset)
    if segment is None:
        return f"commitlog/{file_name_of_offset(offset)}", 0
    return store.path_below_root(segment.location), offset - segment.base_offset


LostRange = tuple[int, int, Finding]  # start and end of offsets whose records are lost, and the finding on the loss


class LostRanges:
    """The offsets of the log whose records are lost, each with the finding on its loss."""

    def __init__(self, ranges: Iterable[LostRange]) -> None:
        self._ranges = sorted(ranges, key=itemgetter(0, 1))
        self._starts = [start for start, _, _ in self._ranges]
        # The largest end of a range and all ranges before it.
        self._furthest = list(accumulate((end for _, end, _ in self._ranges), max))

    def find_cause(self, offset: int | None) -> Finding | None:
        """Return the finding that explains why *offset* is lost; None if it is not lost."""
        number = bisect_right(self._starts, offset) - 1 if offset is not None else -1
        while offset is not None and number >= 0 and offset < self._furthest[number]:
            _, end, cause = self._ranges[number]
            if offset < end:
                return cause
            number -= 1  # a gap within the lost end hides that end
        return None

    def mark_consequence(self, finding: Finding) -> Finding:
        """Return the finding as a consequence of the log's finding on a lost range, if its offset is lost."""
        cause = self.find_cause(finding.log_offset)
        return finding if cause is None else finding.as_consequence_of(cause)
