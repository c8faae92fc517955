"""The report of `rebuild-index`: the files written, the rules followed, and which files are proven."""

from collections.abc import Iterator
from shlex import quote

from jobs.console.process import program
from jobs.console.result import Result as Outcome
from jobs.console.severity import Severity
from jobs.rebuild.index import ComparedSurvivor, Result
from jobs.report.document import Bars, Facts, Grid, Part, Remedy, Report

_SURVIVOR = ("name", "role", "verdict", "detail")
_BARS = 40  # files that are drawn


def report_of(result: Result, outcome: Outcome, *, installs: bool = False) -> Report:
    """Return the report of a run that came to *outcome*; *installs*: the run installs the files itself."""
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
    parts.append(
        Facts(
            "Settings",
            {
                "Geometry": f"{settings.geometry.value} ({settings.geometry.origin}: {settings.geometry.reason})",
                "Rules": f"RocketMQ {settings.rules.value} ({settings.rules.how})",
                "Names in": f"{settings.zone.value} ({settings.zone.origin}: {settings.zone.reason})",
                "Messages": result.records,
                "Keys": result.row_keys,
                "Bytes of the log": result.log_bytes,
                "Damaged bytes of the log": result.damaged_bytes,
            },
        )
    )
    if result.survivors:
        rows_of_survivors = [_survivor(entry) for entry in result.survivors]
        parts.append(Grid("Existing files", _SURVIVOR, rows_of_survivors))
    subject = f"{result.store} → {result.out}"
    return Report.of("rebuild-index", subject, outcome, parts, list(_remedies(result, installs=installs)))


def _survivor(entry: ComparedSurvivor) -> tuple[str, str, str, str]:
    return entry.name, entry.role, str(entry.verdict), entry.detail or "; ".join(entry.differences[:1])


def _remedies(result: Result, *, installs: bool) -> Iterator[Remedy]:
    store, out = " ".join(map(quote, (result.store, *result.options))), quote(result.out)
    if result.contradictions:
        rows = [(Severity.CONTRADICTION.value, *_survivor(entry)) for entry in result.contradictions]
        yield Remedy(
            "Nothing was written: these files are not what any known release leaves. See what verify says of them; "
            "rebuild all files where they are not to be kept:",
            (f"{program()} verify {store}", f"{program()} rebuild-index {store} --out {out}"),
            Grid("Contradictions", ("severity", *_SURVIVOR), rows),
        )
        return
    if result.damaged_bytes:
        yield Remedy(
            f"Damaged bytes of the log: {result.damaged_bytes:,}; keys of the records that were there are missing. "
            "See the places:",
            (f"{program()} inspect {quote(result.store)} --deep",),
        )
    if result.gaps:
        gaps = [(Severity.GAP.value, start, end) for start, end in result.gaps]
        yield Remedy(
            "No file holds this part of the log. Put the segment back from a slave or a backup, and rebuild again.",
            (),
            Grid("Gaps", ("severity", "from", "to"), gaps),
        )
    if result.left_out:
        rows_left_out = [(Severity.GAP.value, text) for text in result.left_out]
        yield Remedy("These keys are in no file:", (), Grid("Left out", ("severity", "keys"), rows_left_out))
    if result.files and not installs:
        only = " --lost-only" * result.lost_only
        yield Remedy(
            "Stop the broker and put the files into its store (this builds them once more, into a new directory):",
            (f"{program()} rebuild-index {store} --out {out}-2{only} --install",),
        )
