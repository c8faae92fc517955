"""`rebuild-index` and `rebuild-consumequeue`: rebuild files from a store's log, and install them on request."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import click

from jobs.command_line.configuration import declare_command
from jobs.command_line.engine import engine_option, start_store_command
from jobs.command_line.result_printer import ResultPrinter, typed_command_text, verbose_printer_options
from jobs.console.amounts import count_text
from jobs.console.lines import PLAN_HEADING, abridged_lines_under_heading
from jobs.console.process import tool_command
from jobs.console.result import ExitCode, RecommendedStep, Result
from jobs.launch.failures import raise_as_usage_errors
from jobs.options.declaration import bundle, flag
from jobs.options.places import refuse_nonempty_directory
from jobs.requests.rebuild import ROCKSDB, RebuildIndexRequest, RebuildQueuesRequest
from jobs.storage.locations import is_local, local_path
from jobs.storage.paths import path_exists
from jobs.store.request import StoreRequest
from jobs.store.rocksdb import check_rocksdict_installed
from jobs.store.running_broker import LockedStore, NotInstalledError, find_broker_process, lock_store
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.store import CONSUME_QUEUE_DIRECTORY

if TYPE_CHECKING:
    from jobs.rebuild import index
    from jobs.rebuild.install import Installation
    from jobs.rebuild.queue_run import QueueRebuildSummary
    from jobs.store.workers import Workers


@dataclass(frozen=True, slots=True)
class _Installation:
    """Whether the files are installed, as given on the command line."""

    is_wanted: bool = flag("Install the files in STORE. The broker must be stopped.", names="--install")
    dry_run: bool = flag(
        "Print which files would be built, and write nothing; with --install, build into DIR, and leave the "
        "store unchanged."
    )

    @property
    def is_preview(self) -> bool:
        """Whether this is a dry run that writes no files."""
        return self.dry_run and not self.is_wanted


@declare_command(
    "rebuild-index /data/rocketmq/store --out /data/index",
    "rebuild-index STORE --out DIR --lost-only --dry-run",
    "rebuild-index STORE --out DIR --lost-only --install --dry-run",
)
def rebuild_index(
    *,
    request: RebuildIndexRequest = bundle(RebuildIndexRequest),
    installation: _Installation = bundle(_Installation),
    advance_checkpoint: bool = flag(
        "With --install, after a crash: advance the checkpoint's index time, so that the broker does not delete the "
        "files at its next start."
    ),
    engine: str = engine_option,
    printer: ResultPrinter = verbose_printer_options,
) -> ExitCode:
    """Rebuild the index files of STORE from its log into DIR, byte for byte as the broker writes them."""
    if advance_checkpoint and not installation.is_wanted:
        raise click.UsageError("--advance-checkpoint requires --install")
    request, workers = _start(request, request.out, installation, engine)
    from jobs.rebuild.dry_run import dry_run_of_index
    from jobs.rebuild.index import rebuild_index
    from jobs.rebuild.install import plan_index_installation
    from jobs.rebuild.output import remove_output_on_error

    request = replace(request, is_broker_running=find_broker_process(request.store) is not None)
    if installation.is_preview:
        would = dry_run_of_index(request, workers.options)
        return printer.print_outcome(would, would.lines())
    with _lock_for_installation(request, request.out, installation) as held:
        removing = remove_output_on_error(Path(local_path(request.out))) if is_local(request.out) else nullcontext()
        with removing:
            result = rebuild_index(request, workers)
        printer.print_first_lines(_index_lines(result))
        if installation.is_wanted and not result.contradictions:
            plan = partial(plan_index_installation, request.store, result, advance_checkpoint=advance_checkpoint)
            renamed = {file.name: file.equal_name for file in result.files if file.equal_name not in {"", file.name}}
            result.installed = _put_in_place(plan, printer, held, renamed)
    outcome = result.result(printer.seconds)
    more = ["--advance-checkpoint"] if result.broker_was_killed and is_local(request.store) else []
    to_install = more if result.files and not installation.is_wanted else None
    return _print_end(result, outcome, printer, to_install, request.options)


@declare_command(
    "rebuild-consumequeue /data/rocketmq/store --out /data/queues",
    "rebuild-consumequeue STORE --out DIR --broker-conf broker.conf --release 4.9.8",
    "rebuild-consumequeue STORE --out DIR --dry-run",
)
def rebuild_consumequeue(
    *,
    request: RebuildQueuesRequest = bundle(RebuildQueuesRequest),
    installation: _Installation = bundle(_Installation),
    engine: str = engine_option,
    printer: ResultPrinter = verbose_printer_options,
) -> ExitCode:
    """
    Rebuild the queues of STORE from its log.

    Files are written to `DIR/<topic>/<queue id>/<20 digits>`, byte for byte as a broker writes them. With --to rocksdb,
    a RocksDB database with the same rows as the broker's is written to DIR/consumequeue.
    """
    if request.to == ROCKSDB:
        _refuse_for_database(request, installation)
    request, workers = _start(request, str(request.out), installation, engine)
    from jobs.rebuild.dry_run import dry_run_of_queues
    from jobs.rebuild.install import plan_queue_installation
    from jobs.rebuild.queue_run import rebuild_queues

    if installation.is_preview:
        would = dry_run_of_queues(request, workers.options)
        return printer.print_outcome(would, would.lines())
    with _lock_for_installation(request, str(request.out), installation) as held:
        summary = rebuild_queues(request, workers)
        printer.print_first_lines(_queue_lines(summary))
        if installation.is_wanted:
            plan = partial(plan_queue_installation, request.store, summary)
            summary.installed = _put_in_place(plan, printer, held, {})
    more = [] if request.lost_only else ["--lost-only"]
    to_install = more if summary.files and summary.has_place and not installation.is_wanted else None
    return _print_end(summary, summary.result(printer.seconds), printer, to_install, request.options)


_Request = TypeVar("_Request", RebuildIndexRequest, RebuildQueuesRequest)


def _start(request: _Request, out: str, installation: _Installation, engine: str) -> "tuple[_Request, Workers]":
    """Refuse a nonempty output directory, and an installation while the broker runs; then choose the engine."""
    refuse_nonempty_directory(out)
    if installation.is_wanted and not installation.dry_run:
        refuse_running_broker(request.store)
    return start_store_command(request, engine)


def refuse_running_broker(store: str) -> None:
    """Refuse to change the store of a running broker."""
    if find_broker_process(store) is not None:
        raise click.UsageError(f"{store}: a broker is running on this store (it holds the file `lock`); stop it first")


@contextmanager
def _lock_for_installation(
    request: StoreRequest, out: str, installation: _Installation
) -> Iterator[LockedStore | None]:
    """Keep the store's broker from starting while the block runs, if files will be installed."""
    if not installation.is_wanted or installation.dry_run:
        yield None
        return
    with (
        raise_as_usage_errors(NotInstalledError, prefix="not installed: "),
        lock_store(request.store, Path(local_path(out)), request.commitlog) as held,
        held.checking_changes_on_error(),
    ):
        yield held


def _put_in_place(
    plan: Callable[[], "Sequence[Installation]"],
    printer: ResultPrinter,
    held: LockedStore | None,
    renamed: Mapping[str, str],
) -> bool:
    """
    Print the planned changes; apply them if the store is locked (*held*); return whether they were applied.

    *renamed* are the new files that have the bytes of an old file with another name.
    """
    from jobs.rebuild.install import install

    with raise_as_usage_errors(NotInstalledError, prefix="not installed: "):
        plans = plan()
        lines = [line for one in plans for line in one.list_steps(is_done=held is not None, renamed=renamed)]
        printer.print_lines(
            abridged_lines_under_heading(PLAN_HEADING if held is None else "INSTALL", lines or ["nothing to install"])
        )
        if held is None:
            printer.print_lines(
                f"  NOTE cannot be installed now: {reason}" for one in plans for reason in one.obstacles
            )
            return False
        for one in plans:
            held.refuse_changes()
            try:
                install(one)
            finally:  # an error after the exchange is not caused by the files that this command has installed
                held.installed |= one.changed_paths
    return True


def _print_end(
    rebuilt: "index.IndexRebuildSummary | QueueRebuildSummary",
    result: Result,
    printer: ResultPrinter,
    to_install: Sequence[str] | None,
    options: Sequence[str],
) -> ExitCode:
    """
    Print the closing lines (replaced files, the command to run next, the result); return the exit code.

    *to_install*: extra options of the printed command that installs the files; None if there is nothing to install.
    """
    done = "REPLACED" if rebuilt.installed else "WOULD REPLACE"
    lines = [f"  {done} {place} of the store" for place in rebuilt.replaced]
    if rebuilt.installed:
        verify = " ".join([tool_command(), "verify", *map(quote, (rebuilt.store, *options))])
        lines += RecommendedStep("verify the whole store before you start the broker", (verify,)).lines()
    elif to_install is not None:
        out = str(click.get_current_context().params["out"])
        again = typed_command_text(*to_install, "--install", replacement=(out, out.rstrip("/") + "-2"))
        lines += RecommendedStep(
            "rebuild into a new directory and install the files, with the broker stopped", (again,)
        ).lines()
    values = {**rebuilt.to_dict(), "installed": rebuilt.installed, "severity": result.severity.value}
    return printer.print_json_or_lines(values, lines, result)


def _refuse_for_database(request: RebuildQueuesRequest, installation: _Installation) -> None:
    if request.lost_only:
        raise click.UsageError(
            "--lost-only keeps correct files, but a database is always written as a whole. Omit --lost-only"
        )
    if installation.is_wanted:
        raise click.UsageError(
            "--install cannot install a RocksDB database, because the broker's configuration must change at the same "
            "time (storeType=defaultRocksDB). Build it without --install, stop the broker, then run\n"
            + "\n".join(_placement_commands(request.store, request.out / CONSUME_QUEUE_DIRECTORY))
        )
    with raise_as_usage_errors(UnsupportedFormat):
        check_rocksdict_installed(str(request.out), "write")


def _placement_commands(store: str, made: Path) -> Iterator[str]:
    from jobs.store.store import SET_ASIDE_MARK

    root = Path(local_path(store)) if is_local(store) else Path("STORE")
    place, old, owner = root / made.name, root / f"{made.name}{SET_ASIDE_MARK}rebuild", root
    if path_exists(place):
        yield f"  mv -T {quote(str(place))} {quote(str(old))}"
        owner = old
    there = quote(str(place))
    yield f"  mv -T {quote(str(made))} {there} && chown -R --reference={quote(str(owner))} {there}"


def _index_lines(result: "index.IndexRebuildSummary") -> Iterator[str]:
    from jobs.rebuild.index import MANIFEST_FILE

    yield f"{result.store} → {result.out}"
    yield f"  {count_text(result.log_key_count, 'key')} of {count_text(result.records, 'message')}"
    yield from result.settings.lines()
    for entry in result.explained_files:
        if entry.verdict.role != "kept":
            yield f"  {entry.verdict.role.upper()} {entry.name}: {entry.verdict}; {entry.detail}"
    if result.contradictions:
        yield "  nothing was written: no known release writes index files like those marked CONTRADICTS"
        yield "  for details, run `verify`; to replace these files, rebuild all files (without --lost-only)"
        return
    for file in result.files:
        proven = "proven" if file.proven else "not proven"
        kind = "partial" if file.kind == "supplement" else file.kind
        yield f"  {file.name}: {kind} file with {count_text(file.keys, 'key')}, {proven}: {file.proof}"
    yield from _gap_lines(result.gaps)
    yield from (f"  LEFT OUT {text}" for text in result.left_out_keys)
    if result.damaged_bytes:
        damaged = count_text(result.damaged_bytes, "byte")
        places = result.damaged_places
        yield f"  DAMAGE {damaged} of the log ({places}): the rebuilt files lack the keys of the damaged records"
    yield f"  {count_text(len(result.files), 'file')} and {MANIFEST_FILE}"


def _queue_lines(summary: "QueueRebuildSummary") -> Iterator[str]:
    yield f"{summary.store} → {summary.out}"
    units, records = count_text(summary.units, "unit"), count_text(summary.records, "record")
    yield f"  {units} in {count_text(summary.queues, 'queue')}, from {records}"
    files = count_text(summary.files, "file")
    if summary.to == ROCKSDB:
        yield f"  a RocksDB database of {files}, for a broker with storeType=defaultRocksDB"
        yield "  to install it while the broker is stopped:"
        yield from (f"  {line}" for line in _placement_commands(summary.store, Path(summary.out, summary.folder)))
    else:
        yield f"  {files} of {summary.file_size:,} bytes"
    yield f"  format: RocketMQ {summary.release} ({summary.release_origin})"
    yield from _gap_lines(summary.gaps)
    yield from (f"  NOTE {note}" for note in summary.notes)
    if summary.lost_only:
        yield f"  kept {count_text(summary.kept, 'file')} of the store; {summary.proof}"
        yield from (
            f"  CONTRADICTION {path}: the file was kept, because the log record may be wrong instead"
            for path in summary.contradictions
        )


def _gap_lines(gaps: "Sequence[tuple[int, int]]") -> Iterator[str]:
    yield from (f"  GAP {start:,} to {end:,}: no file contains these offsets" for start, end in gaps)
