"""`ingest`: bring what is new in a store into the lake, exactly once. The story of a run is in `jobs.ingest.run`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.options import RELEASES, StorePlace, max_rate_option, report_option, store_options
from jobs.command.places import OUTPUT_FILE, WRITTEN
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from jobs.ingest.look import nothing_new
from jobs.ingest.request import IngestRequest, Summary
from jobs.products.registry import NAMES
from jobs.store.beside_broker import care_beside
from jobs.store.selection import Selection


def _known_tables(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a table that there is none of."""
    unknown = set(value.split(",")) - NAMES if value else set()
    if unknown:
        raise click.BadParameter(f"no table {min(unknown)!r}; there are {', '.join(sorted(NAMES))}", ctx, parameter)
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
@click.option("--no-damage", is_flag=True, help="Keep no damaged bytes but their sample: `restore` then lacks them.")
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
@click.option("--release", type=RELEASES, metavar="X.Y.Z", help="The broker's release, where the store cannot tell it.")
@click.option("--dry-run", is_flag=True, help="Say what would be read; write nothing.")
@click.option("--metrics", type=OUTPUT_FILE, metavar="FILE", help="Write the run's figures as a Prometheus text file.")
@max_rate_option
@report_option
@answer_options
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    lake: str,
    broker: str | None,
    topics: tuple[str, ...],
    exclude_topics: tuple[str, ...],
    no_body: bool,
    no_damage: bool,
    settle: int,
    tables: str | None,
    hash_slots: int | None,
    index_num: int | None,
    release: str | None,
    dry_run: bool,
    max_rate: int | None,
    metrics: Path | None,
    report: Path | None,
    answer: Answer,
) -> ExitCode:
    """Bring what is new in STORE into the Delta tables of LAKE, every message exactly once."""
    conf = place.conf()
    care = care_beside(place.store, max_rate)
    request = IngestRequest(
        store=place.store,
        lake=lake,
        broker=broker or conf.broker_name,
        commitlog=place.log_directories(conf),
        selection=Selection(topics, exclude_topics, with_body=not no_body, with_damage=not no_damage),
        release=release,
        hash_slots=hash_slots,
        index_num=index_num,
        conf=conf,
        tables=frozenset(tables.split(",")) if tables else NAMES,
        settle_ms=settle,
        dry_run=dry_run,
        care=care,
    )
    seen = nothing_new(request)
    done = (seen, {}) if seen is not None else _run(request)
    if done is None:
        return ExitCode.HELD
    summary, options = done
    if metrics is not None:
        from jobs.report.metrics import write_metrics

        write_metrics(metrics, summary)
    if report is not None:
        from jobs.lake.lake import Lake
        from jobs.report.of_ingest import report_of
        from jobs.report.output import write_report

        write_report(report, report_of(summary, Lake(summary.lake, options)))
    answer.give(asdict(summary), summary.text, click.echo)
    return summary.exit_code


def _run(request: IngestRequest) -> tuple[Summary, Mapping[str, str]] | None:
    """Do a run, and return what it did and the session's settings of file systems; None when another run is at work."""
    from jobs.launch.session import begin_session, hadoop_options, spark_session

    begin_session("rmq-lake ingest", half=request.care is not None, warm="jobs.products.loaded")

    # Beside the start of a JVM, Python imports what the run needs.
    from jobs.ingest.run import ingest
    from jobs.lake.identity import AmbiguousBrokerError
    from jobs.lake.runs import HeldByOtherError
    from jobs.products import loaded  # noqa: F401

    try:
        return ingest(request), hadoop_options(spark_session("rmq-lake ingest"))
    except AmbiguousBrokerError as error:
        raise click.UsageError(str(error)) from error
    except HeldByOtherError as error:
        say(f"rmq-lake: {request.store}: {error}")
        return None
