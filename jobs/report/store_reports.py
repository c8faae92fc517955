"""The reports of `verify` and `rebuild-index`: verdict, remedies with their findings, and figures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING

from jobs.console.process import tool_command
from jobs.console.result import Result, Severity
from jobs.report import Bars, Facts, Grid, Part, Remedy, Report, Value
from jobs.verify.verdict import PART_COLUMNS, CauseWithConsequences, Verdict, part_row, recommend_steps

if TYPE_CHECKING:
    from jobs.products.index.explanation import ExplainedFile
    from jobs.rebuild.index import IndexRebuildSummary

_COLUMNS = ("severity", "finding", "file", "offset", "field", "found", "expected", "times", "cause", "follows")
_SURVIVOR = ("name", "role", "verdict", "detail")
_BARS = 40  # files that are drawn


def build_verification_report(verdict: Verdict, seconds: float) -> Report:
    """Return the report of a finished verification."""
    rows = [part_row(name, part, part.open_reasons) for name, part in verdict.parts.items()]
    parts: list[Part] = [
        Grid("Parts of the store", PART_COLUMNS, [(name, severity.value, *texts) for name, severity, *texts in rows])
    ]
    if verdict.findings:
        classes = Counter(finding.kind for finding in verdict.findings)
        parts.append(Bars("Findings by class", "findings", dict(classes.most_common())))
    if verdict.facts:
        rows_of_facts = [(fact.kind, fact.file, fact.expected, fact.cause_text) for fact in verdict.facts]
        parts.append(Grid("For information; no action needed", ("fact", "file", "expected", "cause"), rows_of_facts))
    for name, part in verdict.parts.items():
        notes = {f"note {number}": note for number, note in enumerate(part.notes, 1)}
        parts.append(Facts(name.capitalize(), {**part.numbers, **notes}))
    return Report.from_result(
        "verify", verdict.store, verdict.result(seconds), parts, list(_remedies_of_verify(verdict))
    )


def _remedies_of_verify(verdict: Verdict) -> Iterator[Remedy]:
    advised = recommend_steps(verdict)
    for step, groups in advised:
        yield Remedy(step.words, step.commands, _table(groups) if groups else None)
    named = set(chain.from_iterable(groups for _, groups in advised))
    others = [group for group in verdict.findings_by_cause if group not in named]
    if others:
        yield Remedy("Cannot be repaired automatically:", (), _table(others))


def _table(groups: Sequence[CauseWithConsequences]) -> Grid:
    rows = [
        (
            *(one.severity.value, one.kind, one.file, "" if one.offset is None else one.offset, one.field, one.found),
            *(one.expected, one.times, one.cause_text, one.follows_text),
        )
        for cause, consequences in groups
        for one in (cause, *consequences)
    ]
    return Grid("Findings", _COLUMNS, rows)


def build_index_rebuild_report(result: "IndexRebuildSummary", outcome: Result, *, installs: bool = False) -> Report:
    """Return the report of a run with this *outcome*; *installs*: the run installs the files itself."""
    settings = result.settings
    parts: list[Part] = []
    if result.files:
        columns = ("name", "kind", "keys", "bytes", "proven", "why", "SHA-256")
        rows = [
            (file.name, str(file.kind), file.keys, file.size, file.proven, file.proof, file.sha256)
            for file in result.files
        ]
        parts.append(Grid("Files written", columns, rows))
    if len(result.files) > 1:
        parts.append(Bars("Keys by file", "keys", {file.name: file.keys for file in result.files[:_BARS]}))
    facts: dict[str, Value] = {
        "Geometry": f"{settings.geometry.value} ({settings.geometry.origin}: {settings.geometry.reason})",
        "Rules": f"RocketMQ {settings.rules.value} ({settings.rules.origin_text})",
        "Names in": f"{settings.zone.value} ({settings.zone.origin}: {settings.zone.reason})",
        "Messages": result.records,
        "Keys": result.log_key_count,
        "Bytes of the log": result.log_bytes,
        "Damaged bytes of the log": result.damaged_bytes,
    }
    parts.append(Facts("Settings", facts))
    if result.explained_files:
        parts.append(Grid("Existing files", _SURVIVOR, [_survivor(entry) for entry in result.explained_files]))
    subject = f"{result.store} → {result.out}"
    return Report.from_result(
        "rebuild-index", subject, outcome, parts, list(_remedies_of_rebuild(result, installs=installs))
    )


def _survivor(entry: "ExplainedFile") -> tuple[str, str, str, str]:
    return entry.name, entry.verdict.role, str(entry.verdict), entry.detail or "; ".join(entry.differences[:1])


def _remedies_of_rebuild(result: "IndexRebuildSummary", *, installs: bool) -> Iterator[Remedy]:
    store, out = " ".join(map(quote, (result.store, *result.options))), quote(result.out)
    if result.contradictions:
        rows = [(Severity.CONTRADICTION.value, *_survivor(entry)) for entry in result.contradictions]
        yield Remedy(
            "Nothing was written: no known release writes index files like those listed under Contradictions. Run "
            "`verify` for details; if you do not want to keep them, rebuild all files:",
            (f"{tool_command()} verify {store}", f"{tool_command()} rebuild-index {store} --out {out}"),
            Grid("Contradictions", ("severity", *_SURVIVOR), rows),
        )
        return
    if result.damaged_bytes:
        yield Remedy(
            f"Damaged bytes of the log: {result.damaged_bytes:,}; the keys of the records that were there are missing. "
            "To list the damaged ranges:",
            (f"{tool_command()} verify {store}",),
        )
    if result.gaps:
        gaps = [(Severity.GAP.value, start, end) for start, end in result.gaps]
        yield Remedy(
            "No file contains this part of the log. Restore the segment from a replica or a backup, and rebuild again.",
            (),
            Grid("Gaps", ("severity", "from", "to"), gaps),
        )
    if result.left_out_keys:
        rows_left_out = [(Severity.GAP.value, text) for text in result.left_out_keys]
        yield Remedy("No index file contains these keys:", (), Grid("Left out", ("severity", "keys"), rows_left_out))
    if result.files and not installs:
        only = " --lost-only" * result.lost_only
        yield Remedy(
            "Stop the broker, and install the files in its store (this command rebuilds them in a new directory):",
            (f"{tool_command()} rebuild-index {store} --out {out}-2{only} --install",),
        )
