"""What one part of a verification found: findings, numbers, and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.lake.findings import Finding


@dataclass(slots=True)
class PartReport:
    """What one part found."""

    findings: list[Finding] = field(default_factory=list)
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what was looked at, what is behind
    notes: list[str] = field(default_factory=list)  # what was assumed, and what could not be looked at
