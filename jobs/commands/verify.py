"""`verify`, `diff` and `repair`: compare a store with itself and with a lake, and write corrected files."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

import click

from jobs.command_line.configuration import declare_command
from jobs.command_line.engine import engine_option, start_store_command
from jobs.command_line.result_printer import ResultPrinter, printer_options, typed_command_text, verbose_printer_options
from jobs.commands.rebuild import refuse_running_broker
from jobs.console.amounts import count_text
from jobs.console.process import tool_command
from jobs.console.result import ExitCode, RecommendedStep, Result, Severity
from jobs.diagnosis.acceptance import names_finding
from jobs.lake.lake import Lake
from jobs.launch.arguments import file_system_options
from jobs.options.declaration import bundle, flag, option
from jobs.options.places import OUTPUT_LOCATION, refuse_nonempty_directory
from jobs.options.values import limit_option
from jobs.requests.diff import DiffRequest
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.storage.paths import path_exists
from jobs.store.store import list_store

if TYPE_CHECKING:
    from jobs.lake.lake_stores import LakeStore
    from jobs.repair.run import RepairSummary
    from jobs.verify.verdict import Verdict

_SHOWN = 5
_NOT_OF_INGEST = {"--consume-queue-size", "--time-zone"}


@declare_command("verify /data/rocketmq/store", "verify STORE --broker-conf broker.conf --json")
def verify(  # noqa: PLR0913 - one argument an option
    *,
    request: VerifyRequest = bundle(VerifyRequest),
    limit: int = limit_option("findings"),
    all_locations: bool = flag("Print each affected location, not only the first one of each cause."),
    findings_lake: str | None = option(
        "LAKE",
        "Write the findings to the table `findings` of this lake. Findings that were accepted there do not count.",
        OUTPUT_LOCATION,
    ),
    broker: str | None = option("NAME", "Label of the broker in the findings lake."),
    engine: str = engine_option,
    printer: ResultPrinter = verbose_printer_options,
) -> ExitCode:
    """Compare queues, index files, positions and configuration of STORE with its log, and check the log."""
    patterns = [name for name in request.acceptances.names if not names_finding(name)]
    if patterns and findings_lake is None:
        raise click.UsageError(
            f"--accept {patterns[0]}: does not name one finding. Pass the name that `verify --json` states as "
            "`accept_as`; a pattern requires --findings-lake, which keeps the names of the findings that match it"
        )
    request, workers = start_store_command(request, engine)
    from jobs.verify.run import verify as verify_store
    from jobs.verify.verdict import verdict_lines

    lake = None if findings_lake is None else Lake(findings_lake, workers.options)
    lake_store, label = None, broker or request.conf.broker_name
    if lake is not None:
        from jobs.lake.identity import identify_store
        from jobs.lake.integrity import list_findings_options, read_accepted_findings

        lake_store = identify_store(lake, request.list_store(lake.options), label, register_new=False)
        recorded = read_accepted_findings(lake, lake_store, label)
        request = replace(
            request,
            acceptances=replace(request.acceptances, recorded=recorded),
            findings_options=list_findings_options(lake, broker),
        )
    verdict = verify_store(request, workers)
    # Printed first: the verdict must not be lost if it cannot be written.
    exit_code = printer.print_outcome(
        verdict, verdict_lines(verdict, limit, all_locations=all_locations), with_byte_count=True
    )
    if lake is not None:
        _append_findings(lake, lake_store, label, verdict)
    return exit_code


def _append_findings(lake: "Lake", lake_store: "LakeStore | None", broker: str | None, verdict: "Verdict") -> None:
    from jobs.lake.integrity import append_accepted_findings, append_findings

    append_findings(lake, lake_store, broker, [one.to_row() for one in verdict.findings])
    new = [one.to_dict() for one in verdict.accepted if one.accepted_at is None]
    if new:
        append_accepted_findings(lake, lake_store, broker, new)


@declare_command(
    "diff /data/rocketmq/store /data/lake",
    "diff STORE LAKE --json",
    "diff /data/master/store /data/replica/store",
)
def diff(
    *,
    request: DiffRequest = bundle(DiffRequest),
    limit: int = limit_option("differences, the worst first"),
    engine: str = engine_option,
    printer: ResultPrinter = printer_options,
) -> ExitCode:
    """
    Compare STORE with LAKE, record by record and byte for byte, or with another store, and explain the differences.

    Of two stores, log, queues, index files, positions of consumers and epochs are compared. The command names the first
    difference of each, and which store continues the other.

    Records that have expired, have not been ingested yet, or belong to topics that were not selected do not count as
    findings (exit code 0).
    The exit code is 3 if records are lost or damaged, and 4 if records differ at the same offset.
    """
    request, workers = start_store_command(request, engine)
    from jobs.query.lake_tables import is_lake

    options = file_system_options()
    if not is_lake(request.other, options):
        from jobs.store_diff import compare_stores

        other = list_store(request.other, options=options, read_limits=request.read_limits)
        found = compare_stores(request.list_store(options), other)
        return printer.print_outcome(found, found.lines(), with_byte_count=True)
    from jobs.diff import diff as compare

    summary = compare(replace(request, broker=request.broker or request.conf.broker_name), workers)
    return printer.print_outcome(summary, summary.lines(limit), with_byte_count=True)


@declare_command(
    "repair /data/rocketmq/store --out /data/repair --lake /data/lake",
    "repair STORE --out DIR --lake LAKE --apply",
    "repair STORE --out DIR --undo",
)
def repair(
    *,
    request: RepairRequest = bundle(RepairRequest),
    undoes: bool = flag("Restore the files that repairs with this DIR have replaced.", names="--undo"),
    engine: str = engine_option,
    printer: ResultPrinter = printer_options,
) -> ExitCode:
    """
    Write corrected files for STORE into DIR, and print a plan.

    These are queues, index files and the checkpoint. With LAKE, they also are segments, configuration files and
    positions; with REPLICA_STORE, configuration files and positions.

    Without --apply or --undo, STORE is only read. With --apply, the command also installs the files in STORE, while it
    holds the broker's lock, and verifies STORE again. --undo restores the replaced files.
    """
    if request.deliver_empty and not request.bridge:
        raise click.UsageError("--deliver-empty requires --bridge")
    if request.positions is not None and request.lake is None:
        raise click.UsageError("--positions lake requires --lake LAKE")
    if request.apply and undoes:
        raise click.UsageError("--apply and --undo cannot be combined")
    if request.apply or undoes:
        refuse_running_broker(request.store)
    from jobs.repair import JOURNAL_FILE

    if undoes:
        from jobs.repair.run import undo

        done = undo(request.store, request.out.absolute())
        undone = f"undid the changes to {count_text(len(done), 'part')} of the store"
        result = Result(Severity.NOT_VERIFIED, undone, printer.seconds, verdict="done")
        lines = [request.store, *(f"  {line}" for line in done)]
        return printer.print_json_or_lines({"store": request.store, "undone": done}, lines, result)
    if not path_exists(request.out / JOURNAL_FILE):
        refuse_nonempty_directory(str(request.out))
    request, workers = start_store_command(request, engine)
    from jobs.diagnosis import start_warning_lines
    from jobs.repair.run import repair as repair_store

    request = replace(
        request,
        out=request.out.absolute(),
        lake=request.lake and Lake(request.lake.location, workers.options),
        broker=request.broker or request.conf.broker_name,
    )
    summary = repair_store(request, workers)
    next_lines = _next_step_lines(summary, request.store, applies=request.apply, has_lake=request.lake is not None)
    return printer.print_outcome(summary, [*summary.lines(_SHOWN), *next_lines, *start_warning_lines(summary.start)])


def _repeat_lines(words: str, *more: str, dropped_word: str = "", title: str = "NEXT") -> list[str]:
    """Return the lines of a step that repeats this command with *more* arguments."""
    return RecommendedStep(words, (typed_command_text(*more, dropped_word=dropped_word),)).lines(title)


def _next_step_lines(summary: "RepairSummary", store: str, *, applies: bool, has_lake: bool) -> Iterator[str]:
    if summary.withheld_reason is not None:
        yield from (
            _bridge_step_lines(summary)
            if summary.delivery_text
            else _save_messages_lines(store, summary.verdict_before.store_options, has_lake=has_lake)
        )
        return
    release = ("--release", summary.release_example) if summary.release_example else ()
    of_release = "the release of the broker" if "@" not in summary.release_example else "the releases of the broker"
    if summary.asks_for_sizes:
        words = "the broker's configuration file, which contains the file sizes"
        if summary.default_options:
            words = "RocketMQ's default sizes, or with the sizes that the broker is configured with"
        words = f"repeat with {of_release}, and with {words}" if release else f"repeat with {words}"
        yield from _repeat_lines(words, *release, *(summary.default_options or ("--broker-conf", "BROKER.CONF")))
        return
    if release:
        yield from _repeat_lines(f"repeat with {of_release}", *release)
    if summary.files and applies:
        yield from _repeat_lines("to undo the repair", "--undo", dropped_word="--apply")
        yield from _accept_lines(summary)
    elif summary.files:
        yield from _repeat_lines("install the new files in the store, with the broker stopped", "--apply")
    elif not summary.blank_only_files:
        yield from _manual_step_lines(summary.verdict_before, has_lake=has_lake)
    yield from _bridge_step_lines(summary)
    if summary.blank_only_files:
        words = "rebuild these files, so that consumers receive the messages hidden by blank units in a queue"
        yield from _repeat_lines(words, *(word for name in summary.blank_only_files for word in ("--accept", name)))


def _accept_lines(summary: "RepairSummary") -> Iterator[str]:
    from jobs.verify.verdict import find_step_to_accept

    for step in find_step_to_accept(summary.verdict_after or summary.verdict_before):
        yield from step.lines()


def _bridge_step_lines(summary: "RepairSummary") -> Iterator[str]:
    if summary.delivery_text:
        yield from _repeat_lines("accept that consumers receive all-zero messages", "--deliver-empty")
    elif summary.messages_at_risk:
        messages = count_text(summary.messages_at_risk, "intact message")
        words = f"write bridge records over the lost bytes, to keep the {messages} after them"
        yield from _repeat_lines(f"{words}, which the broker would delete at its next start", "--bridge")


def _save_messages_lines(store: str, options: Sequence[str], *, has_lake: bool) -> list[str]:
    keep = RecommendedStep(
        "restore the lost messages from another lake, or from a new lake into which you have ingested a replica"
    )
    if not has_lake:
        words = "save the messages in a lake; to restore the lost ones, pass a lake that has them (--lake)"
        pairs = zip(options[::2], options[1::2], strict=True)
        again = " ".join(quote(word) for pair in pairs if pair[0] not in _NOT_OF_INGEST for word in pair)
        keep = RecommendedStep(
            words, (" ".join(filter(None, (tool_command(), "ingest", quote(store), again, "--lake LAKE"))),)
        )
    words = "or write bridge records over the lost ranges, so that the broker keeps the messages after them"
    return [*keep.lines(), *_repeat_lines(words, "--bridge", title="")]


def _manual_step_lines(found: "Verdict", *, has_lake: bool) -> Iterator[str]:
    from jobs.verify.verdict import (
        REPAIR_COMMAND,
        REPAIR_FROM_LAKE_COMMAND,
        REPAIR_POSITIONS_COMMAND,
        recommend_steps,
    )

    omitted = {REPAIR_COMMAND, REPAIR_FROM_LAKE_COMMAND, REPAIR_POSITIONS_COMMAND} if has_lake else {REPAIR_COMMAND}
    for step, _ in recommend_steps(found, omitted, typed_command_text(dropped_word="--apply")):
        if step.commands:
            yield from step.lines()
