"""`verify`: compare a store's queues and index files with its log, and the log with itself. Nothing is written."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import StoreRun, engine_option
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

if TYPE_CHECKING:
    from jobs.lake.lake import Lake
    from jobs.verify.run import Verdict, VerifyRequest


@click.command(epilog="\b\nExamples:\n  rmq-lake verify /data/rocketmq/store\n  "
               "rmq-lake verify STORE --broker-conf broker.conf --json")  # fmt: skip
@store_options
@limit_option("findings to print")
@click.option("--places", "shows_places", is_flag=True, help="Also print every location that a cause affects.")
@click.option(
    "--scratch",
    type=WRITTEN,
    metavar="DIR",
    help="A directory in which tasks exchange units and keys; on a cluster, a path or a URI that all workers reach.",
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

    STORE may also be the folder of a tier (`tieredStoreFilePath`).
    """
    run = StoreRun(place, engine, form.max_rate, warm="jobs.verify.run")
    from jobs.report.of_verify import report_of
    from jobs.report.output import write_report
    from jobs.verify.run import VerifyRequest, verify
    from jobs.verify.text import verdict_lines

    request = VerifyRequest(
        place.store, form.wanted(run.conf), scratch, commitlog=run.commitlog, care=run.care,
        options=given_words(place, form),
    )  # fmt: skip
    verdict = verify(request, run.workers)
    if findings_lake is not None:
        _keep(run.lake(findings_lake), broker or run.conf.broker_name, request, verdict)
    if report is not None:
        write_report(report, report_of(verdict, answer.seconds))
    return answer.end(verdict, verdict_lines(verdict, limit, places=shows_places), has_bytes=True)


def _keep(lake: "Lake", broker: str | None, request: "VerifyRequest", verdict: "Verdict") -> None:
    """Write the findings into a lake, under its name of the store."""
    from jobs.lake.identity import identify, identify_tier
    from jobs.lake.integrity import record_findings
    from jobs.lake.lake import DEFAULT_BROKER
    from jobs.store.store import IsTierError

    try:
        known = identify(lake, request.listed(lake.options), broker, register_new=False)
    except IsTierError:
        known = identify_tier(lake, request.tier(lake.options).queues, broker or DEFAULT_BROKER, register_new=False)
    record_findings(lake, known, broker, verdict.findings)
