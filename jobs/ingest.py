"""`ingest`: bring what is new in a store into the lake, exactly once. The story of a run is in `jobs.ingestion.run`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from jobs.beside_broker import care_beside
from jobs.configuration import config_option
from jobs.exit_codes import ExitCode
from jobs.ingestion.model import TABLES, Request, Summary
from jobs.ingestion.run import ingest
from jobs.lake.identity import AmbiguousBrokerError
from jobs.lake.runs import HeldByOtherError, Lake
from jobs.log import say
from jobs.metrics import write_metrics
from jobs.options import (
    WRITTEN,
    StorePlace,
    json_option,
    max_rate_option,
    quiet_option,
    report_option,
    store_options,
)
from jobs.report.of_ingest import report_of
from jobs.report.writing import write_report
from jobs.selection import Selection
from jobs.session import hadoop_options, spark_session

__all__ = ["Request", "Summary", "command", "ingest"]


def _known_tables(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a table that there is none of."""
    unknown = set(value.split(",")) - TABLES if value else set()
    if unknown:
        raise click.BadParameter(f"no table {min(unknown)!r}; there are {', '.join(sorted(TABLES))}", ctx, parameter)
    return value


@click.command(epilog="\b\nExamples:\n  rmq-lake ingest /data/rocketmq/store --lake /data/lake\n  "
               "rmq-lake ingest STORE --lake LAKE --broker broker-a --exclude-topics 'RMQ_SYS_*'")  # fmt: skip
@store_options
@click.option(
    "--lake",
    required=True,
    metavar="LAKE",
    type=WRITTEN,
    help="Directory or s3a:// URI of the lake; made when it is not there.",
)
@click.option(
    "--broker", metavar="NAME", help="Label of the broker in every table; by default its brokerName, else `default`."
)
@click.option("--topics", multiple=True, metavar="GLOB", help="Only messages of these topics; may be repeated.")
@click.option("--exclude-topics", multiple=True, metavar="GLOB", help="No messages of these topics; may be repeated.")
@click.option("--no-body", is_flag=True, help="Leave bodies out.")
@click.option(
    "--settle",
    type=click.IntRange(min=0),
    default=0,
    metavar="MS",
    help="Leave the newest MS milliseconds to the next run.",
)
@click.option(
    "--tables",
    metavar="NAME[,NAME]",
    callback=_known_tables,
    help="Which of consume_queue and index come with the messages; by default both.",
)
@click.option("--hash-slots", type=click.IntRange(min=1), metavar="N", help="maxHashSlotNum of the index files.")
@click.option("--index-num", type=click.IntRange(min=2), metavar="N", help="maxIndexNum of the index files.")
@click.option("--release", metavar="X.Y.Z", help="The broker's release, where the store cannot tell it.")
@click.option("--dry-run", is_flag=True, help="Say what would be read; write nothing.")
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the run's figures as a Prometheus text file.",
)
@max_rate_option
@report_option
@json_option
@quiet_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    lake: str,
    broker: str | None,
    topics: tuple[str, ...],
    exclude_topics: tuple[str, ...],
    no_body: bool,
    settle: int,
    tables: str | None,
    hash_slots: int | None,
    index_num: int | None,
    release: str | None,
    dry_run: bool,
    max_rate: int | None,
    metrics: Path | None,
    report: Path | None,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Bring what is new in STORE into the Delta tables of LAKE, every message exactly once."""
    conf = place.conf()
    request = Request(
        store=place.store,
        lake=lake,
        broker=broker or conf.broker_name,
        commitlog=place.log_directories(conf),
        selection=Selection(topics, exclude_topics, with_body=not no_body),
        release=release,
        hash_slots=hash_slots,
        index_num=index_num,
        conf=conf,
        tables=frozenset(tables.split(",")) if tables else TABLES,
        settle_ms=settle,
        dry_run=dry_run,
        care=care_beside(place.store, max_rate),
    )
    try:
        summary = ingest(request)
    except AmbiguousBrokerError as error:
        raise click.UsageError(str(error)) from error
    except HeldByOtherError as error:
        say(f"rmq-lake: {place.store}: {error}")
        return ExitCode.HELD
    if metrics is not None:
        write_metrics(metrics, summary)
    if report is not None:
        write_report(report, report_of(summary, Lake(summary.lake, hadoop_options(spark_session("rmq-lake ingest")))))
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=1))
    elif not quiet:
        click.echo(_text(summary))
    return summary.exit_code


def _text(summary: Summary) -> str:
    """Return the summary for people."""
    if summary.plan is not None:
        return "would read {bytes} bytes in {ranges} ranges of {segments} segments".format(**summary.plan)
    if summary.run is None:
        return f"{summary.store}: nothing new since offset {summary.to_offset}"
    lines = [
        f"{summary.store} → {summary.lake}",
        f"  run {summary.run} of broker {summary.broker} ({summary.store_id})",
        f"  {summary.messages} messages, offsets {summary.from_offset} to {summary.to_offset}",
    ]
    if any(summary.units.values()):
        lines.append("  units: " + ", ".join(f"{count} {name}" for name, count in summary.units.items()))
    if summary.index_entries:
        lines.append(f"  {summary.index_entries} index entries")
    if summary.behind:
        lines.append(f"  the broker has not dispatched the last {summary.behind} bytes of its log yet")
    if summary.quarantined:
        lines.append(f"  {summary.quarantined} damaged places in quarantine")
    if summary.superseded:
        lines.append("  SUPERSEDED {from_offset} to {to_offset}: {why}".format(**summary.superseded))
    lines += [f"  NOTE {note}" for note in summary.notes]
    lines += [f"  GAP {gap['from']} to {gap['to']}: {gap['why']}" for gap in summary.gaps]
    return "\n".join(lines)
