"""`rebuild-index` and `rebuild-consumequeue`: rebuild files from a store's log, and install them if asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jobs.command.answer import ResultPrinter, typed_command_text, verbose_answer_options
from jobs.command.configuration import verb
from jobs.command.engine import StoreCommand, engine_option
from jobs.command.options import (
    StorePlace,
    StoreSettings,
    bundle,
    flag,
    format_store_options,
    option,
    settings_and_rate_options,
    store_options,
)
from jobs.command.places import OUTPUT_LOCATION, refuse_nonempty_directory
from jobs.console.amounts import count_text
from jobs.console.lines import PLAN_HEADING, abridged_lines_under_heading
from jobs.console.process import tool_command
from jobs.console.result import ExitCode, RecommendedStep, Result
from jobs.launch.failures import raise_as_usage_errors
from jobs.storage.locations import is_local, local_path
from jobs.storage.paths import path_exists
from jobs.store.rocksdb import check_rocksdict_installed
from jobs.store.running_broker import LockedStore, NotInstalledError, find_broker_process, lock_store
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.store import CONSUME_QUEUE_FOLDER

if TYPE_CHECKING:
    from jobs.rebuild import index
    from jobs.rebuild.install import Installation
    from jobs.rebuild.queue_run import QueueRebuildSummary

_ROCKSDB = "rocksdb"


class _RebuildForm(NamedTuple):
    """The selection and installation options, as given on the command line."""

    out: str
    lost_only: bool
    wants_install: bool
    dry_run: bool

    @property
    def is_preview(self) -> bool:
        """Whether this is a dry run that writes no files."""
        return self.dry_run and not self.wants_install


def _rebuild_options(out: str, kept: str) -> Any:  # noqa: ANN401 - the default of a parameter
    """Return the options of both verbs; the texts are the help of `--out` and of `--lost-only`."""
    return bundle(
        _RebuildForm,
        out=option("DIR", out, OUTPUT_LOCATION, required=True),
        lost_only=flag(kept),
        wants_install=flag("Install the files in STORE. The broker must be stopped.", names="--install"),
        dry_run=flag(
            "Print which files would be built, and write nothing; with --install, build into DIR, and leave the "
            "store unchanged."
        ),
    )


@verb(
    "rebuild-index /data/rocketmq/store --out /data/index",
    "rebuild-index STORE --out DIR --lost-only --dry-run",
    "rebuild-index STORE --out DIR --lost-only --install --dry-run",
)
def rebuild_index(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace = store_options,
    form: _RebuildForm = _rebuild_options(
        "An empty or new directory; a path or a URI.", "Write only the index files that are missing or damaged."
    ),
    advance_checkpoint: bool = flag(
        "With --install, after a crash: advance the checkpoint's index time, so that the broker does not delete the "
        "files at its next start."
    ),
    settings: StoreSettings = settings_and_rate_options,
    engine: str = engine_option,
    answer: ResultPrinter = verbose_answer_options,
) -> ExitCode:
    """Rebuild the index files of STORE from its log into DIR, byte for byte as the broker writes them."""
    root, out = place.store, form.out
    if advance_checkpoint and not form.wants_install:
        raise click.UsageError("--advance-checkpoint requires --install")
    run = _choose_engine(place, form, settings, engine)
    from jobs.rebuild.dry_run import dry_run_of_index
    from jobs.rebuild.index import RebuildIndexRequest, rebuild_index
    from jobs.rebuild.install import plan_index_installation

    request = RebuildIndexRequest(
        root,
        out,
        settings.given_settings(run.conf),
        lost_only=form.lost_only,
        is_broker_running=find_broker_process(root) is not None,
        commitlog=run.commitlog,
        read_limits=run.read_limits,
        options=format_store_options(place, settings),
    )
    if form.is_preview:
        would = dry_run_of_index(request, run.workers.options)
        return answer.print_outcome(would, would.lines())
    with _lock_for_installation(place, form) as held:
        result = rebuild_index(request, run.workers)
        answer.print_first_lines(_index_lines(result))
        if form.wants_install and not result.contradictions:
            plan = partial(plan_index_installation, root, result, advance_checkpoint=advance_checkpoint)
            renamed = {file.name: file.equal_name for file in result.files if file.equal_name not in {"", file.name}}
            result.installed = _put_in_place(plan, answer, held, renamed)
    outcome = result.result(answer.seconds)
    more = ["--advance-checkpoint"] if result.broker_was_killed and is_local(root) else []
    to_install = more if result.files and not form.wants_install else None
    return _print_end(result, outcome, answer, to_install, out, format_store_options(place, settings))


@verb(
    "rebuild-consumequeue /data/rocketmq/store --out /data/queues",
    "rebuild-consumequeue STORE --out DIR --broker-conf broker.conf --release 4.9.8",
    "rebuild-consumequeue STORE --out DIR --dry-run",
)
def rebuild_consumequeue(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace = store_options,
    to: str = option(
        None,
        "Write files, or the database that a 5.x broker opens with storeType=defaultRocksDB.",
        click.Choice(["files", _ROCKSDB]),
        default="files",
        show_default=True,
    ),
    form: _RebuildForm = _rebuild_options(
        "An empty or new directory for `<topic>/<queue id>/…`, or for the database directory.",
        "Write only the queue files that are missing or damaged.",
    ),
    settings: StoreSettings = settings_and_rate_options,
    engine: str = engine_option,
    answer: ResultPrinter = verbose_answer_options,
) -> ExitCode:
    """
    Rebuild the queues of STORE from its log.

    Files are written to `DIR/<topic>/<queue id>/<20 digits>`, byte for byte as a broker writes them. With --to rocksdb,
    a RocksDB database with the same rows as the broker's is written to DIR/consumequeue.
    """
    root, out = place.store, form.out
    if not is_local(out):
        raise click.UsageError(f"--out {out}: queue files can be written only to a local directory")
    target = Path(local_path(out))
    if to == _ROCKSDB:
        _refuse_for_database(root, target, form)
    run = _choose_engine(place, form, settings, engine)
    from jobs.rebuild.dry_run import dry_run_of_queues
    from jobs.rebuild.install import plan_queue_installation
    from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild_queues

    request = RebuildQueuesRequest(
        root,
        target,
        settings.given_settings(run.conf).conf,
        settings.release,
        lost_only=form.lost_only,
        to=to,
        commitlog=run.commitlog,
        read_limits=run.read_limits,
    )
    if form.is_preview:
        would = dry_run_of_queues(request, run.workers.options)
        return answer.print_outcome(would, would.lines())
    with _lock_for_installation(place, form) as held:
        summary = rebuild_queues(request, run.workers)
        answer.print_first_lines(_queue_lines(summary))
        if form.wants_install:
            summary.installed = _put_in_place(partial(plan_queue_installation, root, summary), answer, held, {})
    more = [] if form.lost_only else ["--lost-only"]
    to_install = more if summary.files and summary.has_place and not form.wants_install else None
    outcome = summary.result(answer.seconds)
    return _print_end(summary, outcome, answer, to_install, out, format_store_options(place, settings))


def _choose_engine(place: StorePlace, form: _RebuildForm, settings: StoreSettings, engine: str) -> StoreCommand:
    """Refuse a nonempty output directory, and an installation while the broker runs; then choose the engine."""
    refuse_nonempty_directory(form.out)
    if form.wants_install and not form.dry_run:
        refuse_running_broker(place.store)
    return StoreCommand(place, engine, settings.max_rate)


def refuse_running_broker(store: str) -> None:
    """Refuse to change the store of a running broker."""
    if find_broker_process(store) is not None:
        raise click.UsageError(f"{store}: a broker is running on this store (it holds the file `lock`); stop it first")


@contextmanager
def _lock_for_installation(place: StorePlace, form: _RebuildForm) -> Iterator[LockedStore | None]:
    """Keep the store's broker from starting while the block runs, if files will be installed."""
    if not form.wants_install or form.dry_run:
        yield None
        return
    with (
        raise_as_usage_errors(NotInstalledError, prefix="not installed: "),
        lock_store(place.store, Path(local_path(form.out)), place.log_directories(place.read_conf())) as held,
        held.checking_changes_on_error(),
    ):
        yield held


def _put_in_place(
    plan: Callable[[], "Sequence[Installation]"],
    answer: ResultPrinter,
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
        answer.print_lines(
            abridged_lines_under_heading(PLAN_HEADING if held is None else "INSTALL", lines or ["nothing to install"])
        )
        if held is None:
            answer.print_lines(f"  NOTE cannot be installed now: {reason}" for one in plans for reason in one.obstacles)
            return False
        for one in plans:
            held.refuse_changes()
            try:
                install(one)
            finally:  # an error after the exchange is not caused by the files that this command has installed
                held.installed |= one.changed_paths
    return True


def _print_end(  # noqa: PLR0913, PLR0917 - what the end of an answer is made of
    rebuilt: "index.IndexRebuildSummary | QueueRebuildSummary",
    result: Result,
    answer: ResultPrinter,
    to_install: Sequence[str] | None,
    out: str,
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
        again = typed_command_text(*to_install, "--install", replacement=(out, out.rstrip("/") + "-2"))
        lines += RecommendedStep(
            "rebuild into a new directory and install the files, with the broker stopped", (again,)
        ).lines()
    values = {**rebuilt.to_dict(), "installed": rebuilt.installed, "severity": result.severity.value}
    return answer.print_json_or_lines(values, lines, result)


def _refuse_for_database(store: str, out: Path, form: _RebuildForm) -> None:
    if form.lost_only:
        raise click.UsageError(
            "--lost-only keeps correct files, but a database is always written as a whole. Omit --lost-only"
        )
    if form.wants_install:
        raise click.UsageError(
            "--install cannot install a RocksDB database, because the broker's configuration must change at the same "
            "time (storeType=defaultRocksDB). Build it without --install, stop the broker, then run\n"
            + "\n".join(_placement_commands(store, out / CONSUME_QUEUE_FOLDER))
        )
    with raise_as_usage_errors(UnsupportedFormat):
        check_rocksdict_installed(str(out), "write")


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
    if summary.to == _ROCKSDB:
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
