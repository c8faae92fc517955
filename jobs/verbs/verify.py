"""`verify` and `diff`: compare a store with itself, and a store with a lake. Nothing is written into the store."""

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.command.answer import Answer, answer_options
from jobs.command.configuration import verb
from jobs.command.engine import StoreRun, engine_option
from jobs.command.options import (
    StorePlace,
    StoreSettings,
    argument,
    flag,
    label_option,
    limit_option,
    max_rate_option,
    option,
    options_as_words,
    report_option,
    settings_and_rate_options,
    store_options,
)
from jobs.command.places import LAKE, OUTPUT_LOCATION
from jobs.console.result import ExitCode

if TYPE_CHECKING:
    from jobs.lake.lake import Lake
    from jobs.verify.run import VerifyRequest
    from jobs.verify.verdict import Verdict


@verb("verify /data/rocketmq/store", "verify STORE --broker-conf broker.conf --json")
def verify(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace = store_options,
    limit: int = limit_option("findings to print"),
    shows_places: bool = flag("Also print every location that a cause affects.", names="--places"),
    scratch: str | None = option(
        "DIR",
        "A directory in which tasks exchange units and keys; on a cluster, a path or URI that all workers can access.",
        OUTPUT_LOCATION,
    ),
    findings_lake: str | None = option(
        "LAKE", "Write the findings into the table `findings` of this lake.", OUTPUT_LOCATION
    ),
    broker: str | None = option("NAME", "Label of the broker in the findings lake."),
    settings: StoreSettings = settings_and_rate_options,
    engine: str = engine_option,
    report: Path | None = report_option,
    answer: Answer = answer_options,
) -> ExitCode:
    """
    Compare the queues and index files of STORE with its log, and the log with itself.

    STORE may also be the folder of a tier (`tieredStoreFilePath`).
    """
    run = StoreRun(place, engine, settings.max_rate, warm="jobs.verify.run")
    from jobs.report.document import write_report
    from jobs.report.of_store import report_of_verify
    from jobs.verify.run import VerifyRequest
    from jobs.verify.run import verify as verify_store
    from jobs.verify.verdict import verdict_lines

    request = VerifyRequest(
        place.store, settings.given_settings(run.conf), scratch, commitlog=run.commitlog, care=run.care,
        options=options_as_words(place, settings),
    )  # fmt: skip
    verdict = verify_store(request, run.workers)
    if report is not None:
        write_report(report, report_of_verify(verdict, answer.seconds))
    if findings_lake is not None:
        _keep(run.lake(findings_lake), broker or run.conf.broker_name, request, verdict)
    return answer.print_outcome(verdict, verdict_lines(verdict, limit, places=shows_places), has_bytes=True)


def _keep(lake: "Lake", broker: str | None, request: "VerifyRequest", verdict: "Verdict") -> None:
    from jobs.lake.identity import identify, identify_tier
    from jobs.lake.integrity import record_findings
    from jobs.lake.lake import DEFAULT_BROKER
    from jobs.store.store import IsTierError

    try:
        known = identify(lake, request.listed(lake.options), broker, register_new=False)
    except IsTierError:
        known = identify_tier(lake, request.tier(lake.options).queues, broker or DEFAULT_BROKER, register_new=False)
    record_findings(lake, known, broker, verdict.findings)


@verb("diff /data/rocketmq/store /data/lake", "diff STORE LAKE --json")
def diff(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace = store_options,
    lake: str = argument("LAKE", LAKE),
    broker: str | None = label_option,
    limit: int = limit_option("differences to print, the worst first"),
    max_rate: int | None = max_rate_option,
    engine: str = engine_option,
    answer: Answer = answer_options,
) -> ExitCode:
    """
    Compare the log of STORE with LAKE, record by record and byte for byte, and explain the differences.

    Records that have expired, are not ingested yet, or were not selected are not findings (exit code 0). Lost or
    damaged records end the command with exit code 3, different records at the same offset with exit code 4.
    """
    run = StoreRun(place, engine, max_rate, warm="jobs.diff")
    from jobs.diff import DiffRequest
    from jobs.diff import diff as compare

    name = broker or run.conf.broker_name
    request = DiffRequest(place.store, run.lake(lake), name, commitlog=run.commitlog, care=run.care)
    summary = compare(request, run.workers)
    return answer.print_outcome(summary, summary.lines(limit), has_bytes=True)
