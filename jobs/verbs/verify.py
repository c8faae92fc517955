"""`verify`: compare a store's queues and index files with its log, and the log with itself. Nothing is written."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from jobs.command.configuration import config_option
from jobs.command.options import (
    StoreForm,
    StorePlace,
    form_options,
    json_option,
    max_rate_option,
    quiet_option,
    report_option,
    store_options,
)
from jobs.command.places import WRITTEN
from jobs.console.exit_codes import ExitCode
from jobs.products.index.settings import Wanted
from jobs.report.of_verify import report_of
from jobs.report.output import write_report
from jobs.storage.locations import normalise
from jobs.store.beside_broker import care_beside
from jobs.store.known import UndecidedError
from jobs.store.store import list_store
from jobs.verify.run import Request, Verdict, verify
from jobs.verify.text import verdict_lines

_SHOWN = 20


@click.command(epilog="\b\nExamples:\n  rmq-lake verify /data/rocketmq/store\n  "
               "rmq-lake verify STORE --broker-conf broker.conf --json")  # fmt: skip
@store_options
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_SHOWN,
    show_default=True,
    metavar="N",
    help="How many findings to print; --json has all.",
)
@click.option(
    "--scratch",
    type=WRITTEN,
    metavar="DIR",
    help="Where tasks leave packed keys for each other; on a cluster, a directory or URI that all workers reach.",
)
@click.option("--lake", type=WRITTEN, metavar="LAKE", help="Keep the findings in the table `findings` of this lake.")
@click.option("--broker", metavar="NAME", help="Label of the broker in the lake.")
@max_rate_option
@form_options
@report_option
@json_option
@quiet_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    limit: int,
    scratch: str | None,
    lake: str | None,
    broker: str | None,
    max_rate: int | None,
    form: StoreForm,
    report: Path | None,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Compare the queues and index files of STORE with its log, and the log with itself."""
    from jobs.launch.session import hadoop_options, spark_session
    from jobs.store.workers import SparkWorkers

    conf = place.conf()
    wanted = Wanted(form.hash_slots, form.index_num, form.release, form.time_zone, conf)
    care = care_beside(place.store, max_rate)
    request = Request(place.store, place.log_directories(conf), wanted, scratch=scratch, care=care)
    spark = spark_session("rmq-lake verify", half=care is not None)
    try:
        verdict = verify(request, SparkWorkers(spark), hadoop_options(spark))
    except UndecidedError as error:
        raise click.UsageError(str(error)) from error
    if lake is not None:
        _keep(lake, broker or conf.broker_name, request, verdict, hadoop_options(spark))
    if report is not None:
        write_report(report, report_of(verdict.store, verdict.parts))
    if as_json:
        click.echo(json.dumps(verdict.describe(), indent=1))
    elif not quiet:
        click.echo("\n".join(verdict_lines(verdict, limit)))
    return verdict.exit_code


def _keep(lake: str, broker: str | None, request: Request, verdict: Verdict, options: Mapping[str, str]) -> None:
    """Write the findings into a lake."""
    from jobs.lake.lake import Lake
    from jobs.lake.verifications import record_findings

    store = list_store(request.store, commitlog=request.commitlog, options=options)
    record_findings(Lake(normalise(lake), options), store, broker, verdict.findings)
