"""The report of `verify`: what fits, and each finding with its place and cause."""

from collections import Counter
from collections.abc import Mapping

from jobs.console.severity import worst_of
from jobs.lake.findings import Finding
from jobs.report.model import Bars, Facts, Grid, Part, Report
from jobs.verify.findings import PartReport


def report_of(store: str, parts: Mapping[str, PartReport]) -> Report:
    """Return the report of a verification that has ended."""
    findings = [finding for part in parts.values() for finding in part.findings]
    shown: list[Part] = [Facts(name.capitalize(), {**part.numbers, **_notes(part)}) for name, part in parts.items()]
    if findings:
        classes = Counter(_class_of(finding) for finding in findings)
        shown.append(Bars("Findings by class", "findings", dict(classes.most_common())))
        shown.append(_table(findings))
    severity = worst_of(part.severity for part in parts.values())
    unverified = [name for name, part in parts.items() if part.unverified]
    headline = f"{severity.value}: {len(findings):,} findings" if findings else "Log, queues and index files agree"
    if unverified and not findings:
        headline = f"Nothing wrong seen; not verified: {', '.join(unverified)}"
    light = "bad" if severity.is_alarm else "attention" if unverified else "good"
    return Report("verify", store, light, headline, shown)


def _notes(part: PartReport) -> dict[str, str]:
    return {f"note {number}": note for number, note in enumerate(part.notes, 1)}


def _class_of(finding: Finding) -> str:
    return finding.kind


def _table(findings: list[Finding]) -> Grid:
    columns = ["severity", *(name.replace("_", " ") for name in Finding._fields)]
    rows = [
        [finding.severity.value, *("" if value is None else str(value) for value in finding)]
        for finding in sorted(findings, key=lambda finding: bool(finding.follows))
    ]
    return Grid("Findings", columns, rows)
