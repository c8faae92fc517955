"""`verify`: compare a store's queues and index files with its log, and the log with itself. Nothing is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import engine_option, start_workers
from jobs.command.options import (
    StoreForm,
    StorePlace,
    given_words,
    limit_option,
    read_options,
    report_option,
    store_options,
)
from jobs.command.places import WRITTEN
from jobs.console.exit_codes import ExitCode
from jobs.launch.failures import shown_as_usage
from jobs.storage.locations import normalise
from jobs.store.beside_broker import care_beside
from jobs.store.known import UndecidedError

if TYPE_CHECKING:
    from jobs.verify.run import Verdict, VerifyRequest


@click.command(epilog="\b\nExamples:\n  rmq-lake verify /data/rocketmq/store\n  "
               "rmq-lake verify STORE --broker-conf broker.conf --json")  # fmt: skip
@store_options
@limit_option("findings to print")
@click.option("--places", "shows_places", is_flag=True, help="Also print every place that a cause affects.")
@click.option(
    "--scratch",
    type=WRITTEN,
    metavar="DIR",
    help="A directory in which tasks exchange keys; on a cluster, a path or a URI that all workers reach.",
)
@click.option(
    "--findings-lake", type=WRITTEN, metavar="LAKE", help="Write the findings into the table `findings` of this lake."
)
@click.option("--broker", metavar="NAME", help="Label of the broker in the findings lake.")
@read_options
@engine_option
@report_option
@answer_options
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    limit: int,
    shows_places: bool,
    scratch: str | None,
    findings_lake: str | None,
    broker: str | None,
    form: StoreForm,
    engine: str,
    report: Path | None,
    answer: Answer,
) -> ExitCode:
    """
    Compare the queues and index files of STORE with its log, and the log with itself.

    STORE may be the folder of a tier (`tieredStoreFilePath`), too.
    """
    conf = place.conf()
    care = care_beside(place.store, form.max_rate)
    ready = start_workers(engine, *place.log_places(conf), half=care is not None, warm="jobs.verify.run")

    # Beside the start of a JVM, Python imports what is needed.
    from jobs.report.of_verify import report_of
    from jobs.report.output import write_report
    from jobs.verify.run import VerifyRequest, verify
    from jobs.verify.text import verdict_lines

    request = VerifyRequest(
        place.store, form.wanted(conf), scratch, commitlog=place.log_directories(conf), care=care,
        options=given_words(place, form),
    )  # fmt: skip
    workers = ready()
    with shown_as_usage(UndecidedError):
        verdict = verify(request, workers)
    if findings_lake is not None:
        _keep(findings_lake, broker or conf.broker_name, request, verdict, workers.options)
    if report is not None:
        write_report(report, report_of(verdict, answer.seconds))
    result = verdict.result(answer.seconds)
    lines = verdict_lines(verdict, limit, places=shows_places)
    answer.give({**verdict.describe(), "bytes": result.size}, lines, result)
    return verdict.exit_code


def _keep(
    location: str, broker: str | None, request: "VerifyRequest", verdict: "Verdict", options: Mapping[str, str]
) -> None:
    from jobs.lake.identity import identify
    from jobs.lake.lake import DEFAULT_BROKER, Lake
    from jobs.lake.tier_identity import identify_tier
    from jobs.lake.verifications import record_findings
    from jobs.store.store import IsTierError

    lake = Lake(normalise(location), options)
    try:
        known = identify(lake, request.listed(options), broker, register_new=False)
    except IsTierError:
        known = identify_tier(lake, request.tier(options).queues, broker or DEFAULT_BROKER, register_new=False)
    record_findings(lake, known, broker, verdict.findings)
