"""
`verify`: hold a store's queues and index files against its log.

Nothing is written. What does not fit is a finding: its place, what stands there, what should, and the likely cause;
what a running broker has not come to yet is a number.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import click

from jobs.command.configuration import config_option
from jobs.command.options import (
    WRITTEN,
    StoreForm,
    StorePlace,
    form_options,
    json_option,
    max_rate_option,
    quiet_option,
    report_option,
    store_options,
)
from jobs.console.exit_codes import ExitCode, worst
from jobs.lake.findings import Finding
from jobs.products.index.settings import UndecidedError, Wanted
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.report.of_verify import report_of
from jobs.report.output import write_report
from jobs.storage.local import Care
from jobs.storage.locations import normalise
from jobs.store.beside_broker import care_beside, check_room
from jobs.store.ranges import DEFAULT_RANGE_SIZE
from jobs.store.retention import begun_again
from jobs.store.store import Store, list_store
from jobs.store.workers import Workers
from jobs.verify.findings import PartReport
from jobs.verify.index import verify_index
from jobs.verify.queues import verify_queues

_SHOWN = 20
_SHARE_OF_LOG = 0.25  # of the log's size, what packed keys take at most where keys are usual


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for."""

    store: str
    commitlog: tuple[str, ...] = ()
    wanted: Wanted = Wanted()  # noqa: RUF009 - a tuple
    range_size: int = DEFAULT_RANGE_SIZE
    scratch: str | None = None
    care: Care | None = None  # how to read the store


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all parts found."""

    store: str
    parts: Mapping[str, PartReport]

    @property
    def findings(self) -> list[Finding]:
        """Everything that was found, part by part."""
        return [finding for part in self.parts.values() for finding in part.findings]

    @property
    def exit_code(self) -> ExitCode:
        """A finding outweighs damage in the log, which `ingest` would quarantine."""
        damaged = any(part.numbers.get("damaged_bytes") for part in self.parts.values())
        return worst(
            [
                ExitCode.MISMATCH if self.findings else ExitCode.CLEAN,
                ExitCode.DAMAGE if damaged else ExitCode.CLEAN,
            ]
        )

    def describe(self) -> dict[str, Any]:
        """Return the form that scripts read."""
        return {
            "store": self.store,
            "findings": [finding._asdict() for finding in self.findings],
            "numbers": {name: dict(part.numbers) for name, part in self.parts.items()},
            "notes": {name: part.notes for name, part in self.parts.items()},
        }


def verify(request: Request, workers: Workers, options: Mapping[str, str]) -> Verdict:
    """Return what is wrong with a store."""
    care = request.care.shared_by(workers.width) if request.care else None
    store = list_store(request.store, commitlog=request.commitlog, options=options, care=care)
    log_size = sum(segment.size for segment in store.segments)
    check_room(store.root, request.scratch or gettempdir(), int(log_size * _SHARE_OF_LOG))
    parts = {"queues": _queues, "index": _index}
    return Verdict(
        store.root, {name: begun_again(store, partial(part, request, workers)) for name, part in parts.items()}
    )


def _index(request: Request, workers: Workers, store: Store) -> PartReport:
    return verify_index(workers, store, request.wanted, request.range_size, request.scratch)


def _queues(request: Request, workers: Workers, store: Store) -> PartReport:
    releases = known_releases(store, request.wanted.release)
    report = verify_queues(workers, store, queue_rules(store, releases.value, request.wanted.conf), request.range_size)
    names = ", then ".join(str(release) for _, release in releases.value)
    report.notes.append(f"queues of release {names} ({releases.origin}: {releases.evidence})")
    return report


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
    """Hold the queues and index files of STORE against its log; every difference is a finding."""
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
        click.echo(_text(verdict, limit))
    return verdict.exit_code


def _keep(lake: str, broker: str | None, request: Request, verdict: Verdict, options: Mapping[str, str]) -> None:
    """Write the findings into a lake."""
    from jobs.lake.lake import Lake
    from jobs.lake.verifications import record_findings

    store = list_store(request.store, commitlog=request.commitlog, options=options)
    record_findings(Lake(normalise(lake), options), store, broker, verdict.findings)


def _text(verdict: Verdict, limit: int) -> str:
    """Return the findings for people, the first ones only."""
    findings = verdict.findings
    lines = [verdict.store, *(f"  {finding.text}" for finding in findings[:limit])]
    if len(findings) > limit:
        lines.append(f"  … {len(findings) - limit} more findings (--limit, --json)")
    for name, part in verdict.parts.items():
        lines.append(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in part.numbers.items()))
        lines += [f"  {note}" for note in part.notes]
    lines.append("  no findings" if not findings else f"  {len(findings)} findings")
    return "\n".join(lines)
