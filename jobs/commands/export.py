"""`export`: write messages of a store or a lake, with decompressed bodies, into a file."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jobs.command_line.configuration import ONE_SOURCE_NEEDED, declare_command
from jobs.command_line.engine import engine_option, start_workers
from jobs.command_line.result_printer import ResultPrinter, printer_options
from jobs.console.amounts import TimeArgument, count_text, size_text
from jobs.console.log import log_message
from jobs.console.process import end_without_reader
from jobs.console.result import ExitCode, Result, Severity, worst_severity_met
from jobs.console.rows import RowFormat
from jobs.launch.failures import raise_as_usage_errors
from jobs.options.declaration import bundle, flag, option
from jobs.options.places import STDOUT
from jobs.options.values import refuse_reversed_window, since_option, until_option
from jobs.requests.export import ANY_TIME, ExportRequest
from jobs.storage.paths import path_exists
from rmq_formats.errors import UnsupportedFormat

if TYPE_CHECKING:
    from jobs.export import ExportDefect, ExportItem
    from jobs.export.export import ExportSummary

_SHOWN = 5


@declare_command(
    "export --store /data/store -t Orders --format ndjson --out orders.ndjson",
    """export --lake LAKE --where "properties['region'] = 'eu'" --out eu.ndjson""",
    "export --store STORE --since 2h --out new.ndjson --dry-run",
    """export --lake LAKE --where "body_text LIKE '%7%'" --format parquet --out 7.parq""",
)
def export(  # noqa: PLR0913 - one argument an option
    *,
    request: ExportRequest = bundle(ExportRequest),
    since: TimeArgument | None = since_option(),
    until: TimeArgument | None = until_option(),
    where: str | None = option(
        "SQL", "A condition in SQL, as in `query sql`, on the columns of `messages` and on body_text."
    ),
    dry_run: bool = flag("Show how much would be read; write nothing."),
    engine: str = engine_option,
    printer: ResultPrinter = printer_options,
) -> ExitCode:
    """
    Write messages to FILE, with decompressed bodies.

    A --where condition is a boolean expression on the columns of the table `messages`; docs/guides/export.md has
    examples. In the condition, body is the decompressed body, and body_text is this body as text (NULL if it is not
    valid text). A body that cannot be decompressed is exported as stored, and body_error says why.
    """
    asked, out = request.target, request.out
    if not asked.location:
        raise click.UsageError(ONE_SOURCE_NEEDED)
    if out is None and (request.form not in {RowFormat.NDJSON, RowFormat.CSV} or printer.as_json):
        raise click.UsageError(
            "only ndjson and csv can be written to standard output (--out -), and only without --json. Otherwise "
            "pass --out FILE"
        )
    if out is not None and path_exists(out):
        raise click.UsageError(f"--out {out}: already exists")
    refuse_reversed_window(since, until)
    condition = None
    if where is not None:
        from jobs.export.condition import parse_condition

        with raise_as_usage_errors(UnsupportedFormat, prefix="Invalid value for --where: "):
            condition = parse_condition(where)
    workers = start_workers(engine, *(asked.commitlog or [asked.location]))

    from jobs.export.export import explain_empty_export, export, plan_export

    between = _resolve_time(since, ANY_TIME[0]), _resolve_time(until, ANY_TIME[1])
    request = replace(request, time_range=between, condition=condition)
    items, summary = plan_export(request, workers.options)
    if dry_run:
        return _print_plan(request, items, summary, printer)
    with end_without_reader() if out is None else nullcontext():
        export(request, items, summary, workers)
    severity = worst_severity_met(gap=summary.gaps, damage=summary.damaged)
    verdict = "done" if summary.messages else "no messages found"
    verdict = verdict if severity is Severity.NOT_VERIFIED else ""
    result = Result(severity, count_text(summary.messages, "message"), printer.seconds, summary.bytes, verdict)
    reason = None if summary.messages else explain_empty_export(request)
    described = {
        "messages": summary.messages,
        "bytes": summary.bytes,
        "out": STDOUT if out is None else str(out),
        "without_body": summary.without_body,
        "undecoded_bodies": summary.undecoded_bodies,
        "undecoded": [defect._asdict() for defect in summary.undecoded],
        "damaged_bytes": summary.damaged_bytes,
        "damaged": [defect._asdict() for defect in summary.damaged],
        "gaps": [defect._asdict() for defect in summary.gaps],
        "reason": reason and {"kind": reason.kind.value, "text": reason.text},
        "notes": summary.notes,
        "severity": severity.value,
    }
    said = [*summary.notes, *([reason.text] if reason else [])]
    target = (
        ("standard output" if out is None else out) if summary.messages else f"{out or STDOUT}: no file was written"
    )
    lines = [f"{asked.location} → {target}", *(f"  {text}" for text in said), *left_out_lines(summary)]
    if out is None:  # standard output has the messages, and nothing else
        for line in () if printer.quiet else (*lines, click.unstyle(result.line("export"))):
            log_message(line)
    else:
        printer.print_json_or_lines(described, lines, result, indent=None)
    return severity.exit_code if summary.messages or severity.is_alarm else ExitCode.NOT_FOUND


def _print_plan(
    request: ExportRequest, items: "Sequence[ExportItem]", summary: "ExportSummary", printer: ResultPrinter
) -> ExitCode:
    """Print the result of a dry run."""
    # Only the run shows how much of it a condition skips.
    files, size = len(items), sum(item.size for item in items)
    kind, out = request.form.value, STDOUT if request.out is None else str(request.out)
    what = f"would read at most {count_text(files, 'file')}, {size_text(size)}, and write {kind} → {out}"
    severity = worst_severity_met(gap=summary.gaps)
    result = Result(severity, what, printer.seconds, verdict="dry run")
    gaps = [defect._asdict() for defect in summary.gaps]
    values = {"files": files, "bytes": size, "format": kind, "out": out, "gaps": gaps}
    lines = [f"{request.target.location} → {out}: dry run, nothing is written", *left_out_lines(summary)]
    return printer.print_json_or_lines(values, lines, result, indent=None)


def _resolve_time(given: TimeArgument | None, otherwise: int) -> int:
    """Return a time in milliseconds, and print the zone in which it was interpreted."""
    if given is None:
        return otherwise
    sentence = given.interpretation()
    if sentence is not None:
        log_message(f"rmq-lake: {sentence}")
    return given.milliseconds()


def left_out_lines(summary: "ExportSummary") -> list[str]:
    """Return lines on messages that are not in the file, or not as their producers sent them."""
    count, damaged, gaps = summary.undecoded_bodies, summary.damaged, summary.gaps
    lines = []
    if summary.without_body:
        messages = count_text(summary.without_body, "message")
        lines.append(f"  this lake has no body of {messages} (`ingest --no-body`): it is NULL, also for --where")
    if count:
        bodies = count_text(count, "body")
        lines.append(f"  exported as stored: {bodies} (invalid, or larger than --max-body-size when decompressed):")
        lines += _defect_lines(summary.undecoded, count)
    if damaged:
        size = count_text(summary.damaged_bytes, "byte")
        lines.append(f"  DAMAGE in the log: {size} cannot be exported:")
        lines += _defect_lines(damaged, summary.damaged_ranges)
    if gaps:
        lines.append("  GAP the log is not complete:")
        lines += _defect_lines(gaps, len(gaps))
    return lines


def _defect_lines(defects: "Sequence[ExportDefect]", count: int) -> list[str]:
    shown = defects[:_SHOWN]
    lines = [
        f"    at physical offset {defect.offset:,}, {count_text(defect.size, 'byte')}: {defect.reason}"
        for defect in shown
    ]
    return lines if count <= _SHOWN else [*lines, f"    … {count - _SHOWN:,} more (--json lists more of them)"]
