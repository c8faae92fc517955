"""`ingest`: read new messages of a store into a lake, exactly once. `jobs.ingest.run` has the steps of a run."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

import click

from jobs.command_line.configuration import declare_command
from jobs.command_line.engine import engine_option, make_workers, start_workers
from jobs.command_line.result_printer import ResultPrinter, verbose_printer_options
from jobs.commands.lake import IcebergRegistrations, iceberg_option_of_ingest
from jobs.console.log import log_message
from jobs.console.result import ExitCode, RequestError, Severity
from jobs.ingest import Summary
from jobs.ingest.pre_run_check import PreRunCheck
from jobs.lake.lake import Lake
from jobs.launch.arguments import file_system_options
from jobs.launch.engine import AUTO_ENGINE, choose_engine
from jobs.options.declaration import bundle, flag, option
from jobs.options.places import OUTPUT_FILE
from jobs.options.values import DURATION, DURATION_OR_TIME
from jobs.requests.ingest import IngestRequest
from jobs.storage.locations import is_local

if TYPE_CHECKING:
    from jobs.store.workers import Workers

_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"  # Arrow reads this variable once, when it is loaded


@declare_command(
    "ingest /data/rocketmq/store --lake /data/lake",
    "ingest STORE --lake LAKE --broker broker-a --exclude-topics 'RMQ_SYS_*'",
)
def ingest(  # noqa: PLR0913 - one argument an option
    *,
    request: IngestRequest = bundle(IngestRequest),
    follow: bool = flag("Keep running and ingest new messages as they arrive."),
    every: float | None = option(
        "DURATION", "With --follow, the maximum delay before a new message is read; by default 5s.", DURATION
    ),
    until: float | None = option(
        "TIME", "With --follow, the time to stop: ISO 8601, or `+2h` for two hours from now.", DURATION_OR_TIME
    ),
    metrics: Path | None = option("FILE", "Write metrics of the run to a Prometheus text file.", OUTPUT_FILE),
    iceberg: str | None = iceberg_option_of_ingest,
    engine: str = engine_option,
    printer: ResultPrinter = verbose_printer_options,
) -> ExitCode:
    """
    Append the new messages of STORE to the Delta tables of LAKE, each exactly once.

    To load several brokers into one LAKE, run the command once per store, with a different --broker each time.
    """
    request = request.resolve()
    if request.dry_run:  # which writes nothing
        metrics = iceberg = None
    registrations = IcebergRegistrations(iceberg)

    def after_step(step: Summary, total: Summary, options: Mapping[str, str]) -> None:
        _write_metrics(metrics, total)
        registrations.register_in_background(_lake_of(step, options))

    if follow and (request.dry_run or request.backfill):
        raise click.UsageError(f"--follow and {'--dry-run' if request.dry_run else '--backfill'} cannot be combined")
    if not follow and (every is not None or until is not None):
        raise click.UsageError("--every and --until require --follow")
    try:
        if follow:
            summary, options = _follow(request, engine, 5.0 if every is None else every, until, after_step)
        else:
            summary, options = _run_once(request, engine)
    except RequestError as error:  # such as the label of another store
        refused = Summary(request.store, request.lake, request.broker or "").to_dict()
        printer.print_json_or_lines({**refused, "severity": Severity.NOT_ACCESSIBLE.value, "error": str(error)}, ())
        raise
    registrations.register_after_last_commit(_lake_of(summary, options))
    exit_code = printer.print_outcome(summary, summary.lines())  # even if the metrics cannot be written
    _write_metrics(metrics, summary)
    registrations.raise_failure()
    return exit_code


def _write_metrics(path: Path | None, summary: Summary) -> None:
    if path is not None:
        from jobs.metrics import write_metrics

        write_metrics(path, summary)


def _lake_of(summary: Summary, options: Mapping[str, str]) -> Lake:
    """Return the lake of a run; if the run found nothing new and so read no settings, read them now."""
    return Lake(summary.lake, options or file_system_options())


_Done = tuple[Summary, Mapping[str, str]]  # the outcome, and the settings of file systems


def _run_once(request: IngestRequest, asked: str) -> _Done:
    check = PreRunCheck(request)
    seen = check.summary_if_nothing_new()
    if seen is not None:
        return seen, {}
    workers = start_workers(asked, request.store, request.lake, *request.commitlog, limits=request.read_limits)

    from jobs.ingest.run import ingest

    summary = ingest(request, workers)
    check.remember(summary)
    return summary, workers.options


def _load_arrow() -> None:
    """
    Load Arrow with an allocator that returns memory to the system, unless the user has chosen one.

    Arrow's default, mimalloc, keeps memory that one thread allocated and another freed, so it grows with each merge.
    """
    if _ALLOCATOR in os.environ:
        return
    os.environ[_ALLOCATOR] = "jemalloc"
    try:
        import pyarrow as pa

        pa.default_memory_pool()  # fixes the choice of the allocator
    finally:
        del os.environ[_ALLOCATOR]  # Spark's workers are short-lived: they use the faster allocator


def _workers_that_follow(request: IngestRequest, asked: str) -> "Workers":
    """Return workers of the requested engine; for auto, this thread reads small steps, without starting anything."""
    engine = choose_engine(asked).engine
    if asked != AUTO_ENGINE:
        return make_workers(engine, request.read_limits)
    from jobs.store.workers import SerialWorkers, WorkersOnDemand

    is_all_local = all(map(is_local, (request.store, request.lake, *request.commitlog)))
    serial = SerialWorkers({} if is_all_local else file_system_options())
    return WorkersOnDemand(lambda: make_workers(engine, request.read_limits), serial)


def _follow(
    request: IngestRequest,
    engine: str,
    every: float,
    until: float | None,
    after: Callable[[Summary, Summary, Mapping[str, str]], None],
) -> _Done:
    _load_arrow()
    from jobs.console.progress import Progress, Work
    from jobs.ingest.follow import Follower, StopRequest

    workers = _workers_that_follow(request, engine)
    progress = Progress(Work("following"))
    size = 0
    committed: float | None = None
    total: Summary | None = None

    def report_step(step: Summary) -> None:
        nonlocal size, committed, total
        new = step if total is None else step.without_findings_of(total)
        found = {"quarantined": step.quarantined, "gaps": len(new.gaps), "contradictions": step.contradictions}
        found["superseded"] = int(step.superseded is not None)
        if any((*found.values(), new.notes, new.unreadable, new.lost_end, new.left_out)):
            # Immediately: the result is printed only at the end.
            run = "" if step.run is None else f"run {step.run}: "
            text = f"rmq-lake: {run}{'; '.join(new.finding_lines())}"
            log_message(text, "warning", run=step.run, severity=step.severity.value, **found)
        total = step if total is None else total.plus_next_run(step)
        size += step.to_offset - step.from_offset
        age = f", {max(time() - step.newest_ms / 1000, 0):.1f} s" if step.messages and step.newest_ms else ""
        gap = f", {monotonic() - committed:.1f} s since the previous commit" if step.messages and committed else ""
        committed = monotonic() if step.messages else committed
        progress.work = Work(f"following, lag {step.bytes_left:,} bytes{age}{gap}")
        progress.show(size, total.messages)
        after(step, total, workers.options)

    # Looking at a local log takes a millisecond; elsewhere it takes two requests, which cost money.
    probe_interval_s = None if all(map(is_local, (request.store, *request.commitlog))) else every
    stop = StopRequest()
    with stop.handle_signals(), closing(progress):
        follower = Follower(
            request, workers, every, stop, report_step, max_seconds=until, probe_interval_s=probe_interval_s
        )
        summary = follower.run()
    return summary, workers.options
