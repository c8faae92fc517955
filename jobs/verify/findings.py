"""The report of one part of a verification: findings, facts, numbers, and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from jobs.console.result import Step
from jobs.console.severity import Severity, worst_met, worst_of
from jobs.lake.findings import INDEX, LOG, QUEUES, UNREADABLE_DATABASE, Finding
from jobs.store.store import Store
from rmq_formats.errors import FormatError
from rmq_formats.store import name_of_offset

_ORDER = (LOG, QUEUES, INDEX)
_base_offset = attrgetter("base_offset")


@dataclass(slots=True)
class PartReport:
    """The report of one part."""

    findings: list[Finding] = field(default_factory=list)
    numbers: Mapping[str, int] = field(default_factory=dict)  # of compared things, and of bytes or keys that are behind
    notes: list[str] = field(default_factory=list)  # assumptions, and parts that could not be compared
    facts: list[Finding] = field(default_factory=list)  # worth to be known, and nothing to be done
    unverified: str = ""  # why the part could not be verified
    is_absent: bool = False  # no file of it is there, and nothing shows whether there was one
    doubts: list[str] = field(default_factory=list)  # what of it could not be verified, though the rest was
    database: Step | None = None  # what to do about findings of rows that only a broker makes

    @property
    def severity(self) -> Severity:
        """The worst severity of the findings, of a part that is behind, and of one that is not verified."""
        behind, unverified = self.numbers.get("behind"), self.unverified or self.doubts
        own = worst_met(Severity.HEALTHY, behind=behind, not_verified=unverified)
        return worst_of([own, *(finding.severity for finding in self.findings)])


def unreadable_database(part: str, error: FormatError, store: Store, besides: str = "") -> Finding:
    """Return the finding of a RocksDB that cannot be read; *besides* is what else a broker may do."""
    cause = f"the database is damaged; a broker that starts now may refuse to load it{besides}"
    place = store.below(error.file), error.offset, "database"
    return Finding(part, UNREADABLE_DATABASE, *place, error.reason, "one that opens", cause)


def place_of(offset: int, store: Store) -> tuple[str, int]:
    """Return the file below the store's root, and the position in it, of an offset of the log."""
    segment = max((one for one in store.segments if one.base_offset <= offset), key=_base_offset, default=None)
    if segment is None:
        return f"commitlog/{name_of_offset(offset)}", 0
    return store.below(segment.location), offset - segment.base_offset


class Group(NamedTuple):
    """One cause, and the findings that follow from it."""

    cause: Finding
    consequences: tuple[Finding, ...] = ()


def grouped(findings: list[Finding]) -> list[Group]:
    """Return findings under their causes: the log first, then queues, then index files."""
    following: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.follows:
            following.setdefault(finding.follows, []).append(finding)
    causes = sorted(
        (finding for finding in findings if not finding.follows), key=lambda finding: _ORDER.index(finding.part)
    )
    return [Group(cause, tuple(following.get(cause.title, ()))) for cause in causes]
