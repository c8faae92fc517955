"""
The parts of a report. Each part has its title and its numbers; `page` decides how it looks.

`report.json` is this document as it is, under a version of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from jobs.console.result import Result

VERSION = 2

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one below the other."""

    title: str
    values: Mapping[str, Value]
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    kind: str = "grid"


@dataclass(frozen=True, slots=True)
class Bars:
    """One number per label, to compare; `ideal` has the expected number if it is known."""

    title: str
    unit: str
    values: Mapping[str, float]
    ideal: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    kind: str = "bars"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts over time in UTC, one series per name; `start` and `step` are milliseconds."""

    title: str
    unit: str
    start: int
    step: int
    series: Mapping[str, Sequence[int]]
    note: str = ""
    kind: str = "timeline"


Part = Facts | Grid | Bars | Timeline


@dataclass(frozen=True, slots=True)
class Remedy:
    """One recommended action: a description, commands to paste, and the findings that it resolves."""

    words: str
    commands: Sequence[str] = ()
    findings: Grid | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything about one run."""

    verb: str
    subject: str
    severity: str  # the word of `jobs.console.severity`
    verdict: str  # the same, or what says it better
    headline: str  # what, how much, how fast
    parts: Sequence[Part]
    remedies: Sequence[Remedy] = ()
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    version: int = VERSION

    @classmethod
    def of(cls, verb: str, subject: str, result: Result, parts: Sequence[Part], remedies: Sequence[Remedy]) -> "Report":
        """Return the report of a run that came to *result*."""
        return cls(verb, subject, result.severity.value, result.word, result.amount, parts, remedies)
