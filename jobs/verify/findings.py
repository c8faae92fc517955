"""What one part of a verification found: findings, numbers, and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """One thing that is not as the log says."""

    part: str  # queues, index, log
    kind: str  # the class: what scripts branch on
    file: str  # below the store's root
    offset: int | None  # in the file, of the first byte that is wrong
    field: str
    found: str  # what stands there
    expected: str  # what should
    cause: str  # the likely one, in words
    times: int = 1  # how often, from this place on

    @property
    def text(self) -> str:
        """The finding in one line."""
        place = self.file if self.offset is None else f"{self.file} @{self.offset}"
        often = f" ({self.times} times)" if self.times > 1 else ""
        wanted = f", expected {self.expected}" if self.expected else ""
        return f"{self.kind}: {place} {self.field}: {self.found}{wanted}{often} - {self.cause}"


@dataclass(slots=True)
class PartReport:
    """What one part found."""

    findings: list[Finding] = field(default_factory=list)
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what was looked at, what is behind
    notes: list[str] = field(default_factory=list)  # what was assumed, and what could not be looked at
