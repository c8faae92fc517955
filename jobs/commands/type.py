"""`type`: decode the bodies of topics into typed tables; bodies that do not fit become dead letters."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING

import click

from jobs.command_line.configuration import declare_command
from jobs.command_line.engine import engine_option, start_workers
from jobs.command_line.result_printer import ResultPrinter, printer_options
from jobs.console.amounts import count_text, is_or_are
from jobs.console.process import tool_command
from jobs.console.result import ExitCode, Result, Severity
from jobs.lake.lake import Lake
from jobs.options.declaration import bundle, flag, option
from jobs.options.places import OUTPUT_FILE
from jobs.requests.typing import TypeRequest

if TYPE_CHECKING:
    from jobs.typed.run import TopicSummary, TypingSummary

_SHOWN = 5  # reasons, or unknown fields, of a topic


@declare_command(
    "type /data/lake --types types.toml",
    "type /data/lake --types types.toml --retype Orders",
    "type /data/lake --types types.toml --retry",
    "type /data/lake --infer -t Orders > types.toml",
)
def type_bodies(  # noqa: PLR0913 - one argument an option
    *,
    request: TypeRequest = bundle(TypeRequest),
    metrics: Path | None = option("FILE", "Write metrics of the run to a Prometheus text file.", OUTPUT_FILE),
    infer: bool = flag("Print types inferred from the bodies of TOPIC, and how many bodies do not match them."),
    topics: tuple[str, ...] = option("TOPIC", "With --infer: the topic.", names="-t --topic", multiple=True),
    engine: str = engine_option,
    printer: ResultPrinter = printer_options,
) -> ExitCode:
    """
    Decode message bodies into typed tables, one per topic: LAKE/typed/TOPIC.

    A body that does not match the declaration in FILE becomes a row of LAKE/dead_letters, with the reason; a body is
    never in both tables. Each run reads only messages that were ingested since the previous run. With --infer, nothing
    is written: the command prints types that fit the messages of a topic, in the format of FILE.

    Exit code 3: this run, or an earlier one that is not acknowledged, had more dead letters than --max-dead-letters
    allows. Exit code 5: the lake has no message of a topic in
    FILE, and no broker in the lake has the topic in its configuration.
    """
    declared = request.source
    if infer:
        if not topics or metrics or request != TypeRequest(request.lake):
            raise click.UsageError(
                "--infer requires -t TOPIC, and cannot be combined with --types, --retype, --retry, "
                "--accept-dead-letters, --max-dead-letters, --acknowledge or --metrics"
            )
        return _infer(request.lake, topics, engine, printer)
    if declared is None or topics:
        raise click.UsageError("pass --types FILE, or --infer -t TOPIC")
    if request.accept_dead_letters and not request.retype:
        raise click.UsageError("--accept-dead-letters requires --retype TOPIC")
    from jobs.typed.declaration import read_types

    # The user's input is checked before a JVM starts.
    types = read_types(declared)
    unknown = sorted(set(request.retype) - {one.topic for one in types})
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}: {declared} declares no such topic", param_hint="--retype")
    workers = start_workers(engine, request.lake.location)
    from jobs.typed.run import type_lake

    lake = Lake(request.lake.location, workers.options)
    summary = type_lake(replace(request, lake=lake, types=types), workers)
    return _print_summary(declared, summary, metrics=metrics, printer=printer, retry=request.retry)


def _print_summary(
    declared: Path, summary: "TypingSummary", *, metrics: Path | None, printer: ResultPrinter, retry: bool
) -> ExitCode:
    """Print the summary of a typing, write its metrics, and return the exit code."""
    lake = str(click.get_current_context().params["lake"])
    exceeded = [one.topic for one in summary.topics if one.open is not None]
    not_found = sorted(topic for topic, (is_known, _) in summary.absent_topics.items() if not is_known)
    severity, verdict, code = Severity.HEALTHY, "done", ExitCode.CLEAN
    if exceeded:
        severity, verdict, code = Severity.DAMAGE, f"too many dead letters for {', '.join(exceeded)}", ExitCode.DAMAGE
    elif not_found:
        topics = "topic" if len(not_found) == 1 else "topics"
        severity, verdict, code = Severity.GAP, f"{topics} {', '.join(not_found)} not found", ExitCode.NOT_FOUND
    values = {
        "number": summary.number,
        "recovered": summary.recovered,
        "topics": [
            {
                **one._asdict(),
                "unknown": {path: field._asdict() for path, field in one.unknown.items()},
                "open": None if one.open is None else {"since": one.open.since, "dead_letters": one.open.count},
            }
            for one in summary.topics
        ],
        "absent": sorted(summary.absent_topics),
        "not_found": not_found,
        "too_many_dead_letters": exceeded,
    }
    result = Result(severity, _amount_text(summary, retry=retry), printer.seconds, verdict=verdict)
    printer.print_json_or_lines(
        values,
        [lake, *_summary_lines(summary, f"{tool_command()} {join(('type', lake, '--types', str(declared)))}")],
        result,
    )
    if metrics is not None:
        from jobs.metrics import write_type_metrics

        write_type_metrics(metrics, summary.topics, code)
    return code


def _infer(lake: Lake, topics: tuple[str, ...], engine: str, printer: ResultPrinter) -> ExitCode:
    workers = start_workers(engine, lake.location)
    from jobs.typed.infer import infer_types

    found = [infer_types(Lake(lake.location, workers.options), topic, workers) for topic in dict.fromkeys(topics)]
    text = "\n".join(proposal for proposal, _ in found)
    if printer.as_json:
        printer.print_json_or_lines({"proposal": text}, ())
    else:  # never wrapped: it is the content of a file
        click.echo(text, nl=False)
    return ExitCode.CLEAN if all(is_proposed for _, is_proposed in found) else ExitCode.NOT_FOUND


def _amount_text(summary: "TypingSummary", *, retry: bool) -> str:
    rows, dead_letters, accepted = (
        sum(counts)
        for counts in zip(*((one.rows, one.dead_letters, one.accepted) for one in summary.topics), strict=True)
    )
    said = [count_text(rows, "typed row"), count_text(dead_letters, "dead letter")] if rows or dead_letters else []
    said += [f"{count_text(accepted, 'dead letter')} typed"] if accepted else []
    return ", ".join(said) or "no new messages" + ", and still no dead letter matches its declaration" * retry


def _summary_lines(summary: "TypingSummary", command: str) -> list[str]:
    lines = []
    if summary.recovered is not None:
        lines.append(f"  run {summary.recovered} of `type` was interrupted, and is now complete")
    for topic in summary.topics:
        absent = summary.absent_topics.get(topic.topic)
        if absent is not None:
            lines.append(f"  {topic.topic}: no table: {absent[1]}")
            continue
        how = " (retyped)" if topic.retyped else " (rows of messages that are no longer in the log were removed)"
        lines.append(
            f"  {topic.topic} → {topic.table}: {count_text(topic.rows, 'row')}, "
            f"{count_text(topic.dead_letters, 'dead letter')}" + how * topic.removed
        )
        if topic.accepted:
            earlier = count_text(topic.accepted, "earlier dead letter")
            lines.append(f"    {earlier} {is_or_are(topic.accepted)} now typed")
        shown = list(topic.reasons.items())[:_SHOWN]
        lines += [f"    {count_text(count, 'message')}: {reason}" for reason, count in shown]
        if len(topic.reasons) > _SHOWN:
            lines.append(f"    … {len(topic.reasons) - _SHOWN} more reasons (--json has them)")
        if topic.open is not None:
            count = count_text(topic.open.count, "dead letter")
            lines.append(f"    OPEN since run {topic.open.since}: {count} (acknowledge with --acknowledge)")
        lines += _unknown_lines(topic)
        if topic.new_columns:
            lines += [
                f"    new columns: {', '.join(topic.new_columns)}; rows of earlier runs have NULL there. To fill them:",
                f"    {command} --retype {quote(topic.topic)}",
            ]
    return lines


def _unknown_lines(topic: "TopicSummary") -> Iterator[str]:
    if not topic.unknown:
        return
    yield "    fields without a column (declare columns for them, then --retype fills all rows):"
    for path, field in list(topic.unknown.items())[:_SHOWN]:
        count = count_text(field.messages, "message")
        yield f"      {path}: in {count}, for example {field.example} at offset {field.at}"
    if len(topic.unknown) > _SHOWN:
        yield f"      … {len(topic.unknown) - _SHOWN} more fields (--json has them)"
