"""The report of `verify`: the verdict, each remedy with its findings, and the parts that were compared."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from jobs.lake.findings import Finding
from jobs.report.document import Bars, Facts, Grid, Part, Remedy, Report
from jobs.verify.verdict import HEAD, Group, Verdict, advice, part_row

_COLUMNS = ("severity", "finding", "file", "offset", "field", "found", "expected", "times", "cause", "follows")


def report_of(verdict: Verdict, seconds: float) -> Report:
    """Return the report of a verification that has ended."""
    rows = [part_row(name, part) for name, part in verdict.parts.items()]
    parts: list[Part] = [
        Grid("What was compared", HEAD, [(name, severity.value, *texts) for name, severity, *texts in rows])
    ]
    if verdict.findings:
        classes = Counter(finding.kind for finding in verdict.findings)
        parts.append(Bars("Findings by class", "findings", dict(classes.most_common())))
    if verdict.facts:
        rows_of_facts = [(fact.kind, fact.file, fact.expected, fact.cause) for fact in verdict.facts]
        parts.append(Grid("For information; no action needed", ("fact", "file", "expected", "cause"), rows_of_facts))
    for name, part in verdict.parts.items():
        notes = {f"note {number}": note for number, note in enumerate(part.notes, 1)}
        parts.append(Facts(name.capitalize(), {**part.numbers, **notes}))
    return Report.of("verify", verdict.store, verdict.result(seconds), parts, list(_remedies(verdict)))


def _remedies(verdict: Verdict) -> Iterator[Remedy]:
    advised = advice(verdict)
    for step, groups in advised:
        yield Remedy(step.words, step.commands, _table(groups) if groups else None)
    named = set(chain.from_iterable(groups for _, groups in advised))
    others = [group for group in verdict.groups if group not in named]
    if others:
        yield Remedy("Cannot be repaired automatically:", (), _table(others))


def _table(groups: Sequence[Group]) -> Grid:
    findings = [finding for group in groups for finding in (group.cause, *group.consequences)]
    return Grid("Findings", _COLUMNS, [_row(finding) for finding in findings])


def _row(finding: Finding) -> tuple[str | int, ...]:
    offset = "" if finding.offset is None else finding.offset
    return (
        finding.severity.value, finding.kind, finding.file, offset, finding.field, finding.found, finding.expected,
        finding.times, finding.cause, finding.follows,
    )  # fmt: skip
