"""The report of `verify`: what fits, and each finding with its place and cause."""

from collections import Counter
from collections.abc import Mapping

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
    headline = f"{len(findings):,} findings" if findings else "Log, queues and index files agree"
    return Report("verify", store, "bad" if findings else "good", headline, shown)


def _notes(part: PartReport) -> dict[str, str]:
    return {f"note {number}": note for number, note in enumerate(part.notes, 1)}


def _class_of(finding: Finding) -> str:
    return finding.kind


def _table(findings: list[Finding]) -> Grid:
    columns = [name.replace("_", " ") for name in Finding._fields]
    rows = [["" if value is None else str(value) for value in finding] for finding in findings]
    return Grid("Findings", columns, rows)
