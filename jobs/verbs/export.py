"""`export`: write messages of a store or a lake, with decompressed bodies, into a file."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import ResultPrinter, answer_options
from jobs.command.configuration import ONE_SOURCE_NEEDED, source_options, verb
from jobs.command.engine import engine_option, start_workers
from jobs.command.options import (
    bundle,
    commitlog_option,
    flag,
    one_release_option,
    option,
    refuse_reversed_window,
    since_option,
    until_option,
)
from jobs.command.places import OUTPUT_FILE_OR_STDOUT, STDOUT
from jobs.console.amounts import TimeArgument, count_text, size_text
from jobs.console.log import log_message
from jobs.console.process import end_without_reader
from jobs.console.result import ExitCode, Result, Severity, worst_severity_met
from jobs.console.rows import RowFormat
from jobs.launch.failures import raise_as_usage_errors
from jobs.query.place import QueryTarget
from jobs.storage.paths import path_exists
from rmq_formats.errors import UnsupportedFormat

if TYPE_CHECKING:
    from jobs.export import ExportDefect, ExportItem
    from jobs.export.export import ExportRequest, ExportSummary

_LARGEST_BODY = 16 << 20  # `jobs.lake.bodies.DEFAULT_INFLATED_BODY_LIMIT`, without its imports
_SHOWN = 5


@verb(
    "export --store /data/store -t Orders --format ndjson --out orders.ndjson",
    """export --lake LAKE --where "properties['region'] = 'eu'" --out eu.ndjson""",
    "export --store STORE --since 2h --out new.ndjson --dry-run",
    """export --lake LAKE --where "body_text LIKE '%7%'" --format parquet --out 7.parq""",
)
def export(  # noqa: PLR0913 - one argument an option
    *,
    place: QueryTarget = bundle(
        QueryTarget,
        **source_options,
        commitlog=commitlog_option,
        broker=option(
            "NAME", "With --lake: only messages of the store with this label or id. With --store: the broker's label."
        ),
        release=one_release_option,
    ),
    topics: tuple[str, ...] = option("TOPIC", "Only this topic; may be repeated.", names="-t --topic", multiple=True),
    since: TimeArgument | None = since_option(),
    until: TimeArgument | None = until_option(),
    where: str | None = option(
        "SQL", "A condition in SQL, as in `query sql`, on the columns of `messages` and on body_text."
    ),
    kind: str = option(
        None,
        "ndjson: one object per line; json: one array; csv: nested values as JSON; parquet: the table's columns.",
        click.Choice(["ndjson", "json", "csv", "parquet"]),
        names="--format --output",
        default="ndjson",
        show_default=True,
    ),
    max_body_size: int = option(
        "BYTES",
        "Export bodies as stored, and report them, if they exceed this size when decompressed.",
        click.IntRange(1, 1 << 30),
        default=_LARGEST_BODY,
        show_default=True,
    ),
    out: Path = option(
        "FILE",
        "The output file, written atomically; - streams ndjson or csv to standard output.",
        OUTPUT_FILE_OR_STDOUT,
        required=True,
    ),
    dry_run: bool = flag("Show how much would be read; write nothing."),
    engine: str = engine_option,
    answer: ResultPrinter = answer_options,
) -> ExitCode:
    """
    Write messages to FILE, with decompressed bodies.

    A --where condition is a boolean expression on the columns of the table `messages`; docs/guides/export.md has
    examples. In the condition, body is the decompressed body, and body_text is this body as text (NULL if it is not
    valid text). A body that cannot be decompressed is exported as stored, and body_error says why.
    """
    if not place.location:
        raise click.UsageError(ONE_SOURCE_NEEDED)
    is_streamed = str(out) == STDOUT
    if is_streamed and (kind not in {"ndjson", "csv"} or answer.as_json):
        raise click.UsageError(
            "only ndjson and csv can be written to standard output (--out -), and only without --json. Otherwise "
            "pass --out FILE"
        )
    if not is_streamed and path_exists(out):
        raise click.UsageError(f"--out {out}: already exists")
    refuse_reversed_window(since, until)
    condition = None
    if where is not None:
        from jobs.export.condition import parse_condition

        with raise_as_usage_errors(UnsupportedFormat, prefix="Invalid value for --where: "):
            condition = parse_condition(where)
    workers = start_workers(engine, *(place.commitlog or [place.location]))

    from jobs.export import ANY_TIME
    from jobs.export.export import ExportRequest, explain_empty_export, export, plan_export

    between = _resolve_time(since, ANY_TIME[0]), _resolve_time(until, ANY_TIME[1])
    output = None if is_streamed else out
    asked = ExportRequest(place, topics, between, output, RowFormat(kind), max_body_size, condition)
    items, summary = plan_export(asked, workers.options)
    if dry_run:
        return _print_plan(asked, items, summary, answer)
    with end_without_reader() if is_streamed else nullcontext():
        export(asked, items, summary, workers)
    severity = worst_severity_met(gap=summary.gaps, damage=summary.damaged)
    verdict = "done" if summary.messages else "no messages found"
    verdict = verdict if severity is Severity.NOT_VERIFIED else ""
    result = Result(severity, count_text(summary.messages, "message"), answer.seconds, summary.bytes, verdict)
    reason = None if summary.messages else explain_empty_export(asked)
    described = {
        "messages": summary.messages,
        "bytes": summary.bytes,
        "out": str(out),
        "without_body": summary.without_body,
        "undecoded_bodies": summary.undecoded_bodies,
        "undecoded": [place._asdict() for place in summary.undecoded],
        "damaged_bytes": summary.damaged_bytes,
        "damaged": [place._asdict() for place in summary.damaged],
        "gaps": [place._asdict() for place in summary.gaps],
        "reason": reason and {"kind": reason.kind.value, "text": reason.text},
        "notes": summary.notes,
        "severity": severity.value,
    }
    said = [*summary.notes, *([reason.text] if reason else [])]
    target = ("standard output" if is_streamed else out) if summary.messages else f"{out}: no file was written"
    lines = [f"{place.location} → {target}", *(f"  {text}" for text in said), *left_out_lines(summary)]
    if is_streamed:  # standard output has the messages, and nothing else
        for line in () if answer.quiet else (*lines, click.unstyle(result.line("export"))):
            log_message(line)
    else:
        answer.print_json_or_lines(described, lines, result, indent=None)
    return severity.exit_code if summary.messages or severity.is_alarm else ExitCode.NOT_FOUND


def _print_plan(
    asked: "ExportRequest", items: "Sequence[ExportItem]", summary: "ExportSummary", answer: ResultPrinter
) -> ExitCode:
    """Print the result of a dry run."""
    # Only the run shows how much of it a condition skips.
    files, size = len(items), sum(item.size for item in items)
    kind, out = asked.form.value, "-" if asked.out is None else str(asked.out)
    what = f"would read at most {count_text(files, 'file')}, {size_text(size)}, and write {kind} → {out}"
    severity = worst_severity_met(gap=summary.gaps)
    result = Result(severity, what, answer.seconds, verdict="dry run")
    gaps = [place._asdict() for place in summary.gaps]
    values = {"files": files, "bytes": size, "format": kind, "out": out, "gaps": gaps}
    lines = [f"{asked.place.location} → {out}: dry run, nothing is written", *left_out_lines(summary)]
    return answer.print_json_or_lines(values, lines, result, indent=None)


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


def _defect_lines(places: "Sequence[ExportDefect]", count: int) -> list[str]:
    shown = places[:_SHOWN]
    lines = [
        f"    at physical offset {place.offset:,}, {count_text(place.size, 'byte')}: {place.reason}" for place in shown
    ]
    return lines if count <= _SHOWN else [*lines, f"    … {count - _SHOWN:,} more (--json lists more of them)"]
