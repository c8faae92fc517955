"""`optimize`, `catalog` and `restore`, and the option `--iceberg`, which registers a lake in an Iceberg catalog."""

import re
from collections.abc import Collection
from dataclasses import replace
from shlex import quote
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from jobs.command_line.configuration import declare_command
from jobs.command_line.engine import engine_option, start_workers
from jobs.command_line.result_printer import ResultPrinter, printer_options, verbose_printer_options
from jobs.console.amounts import count_text, size_text
from jobs.console.lines import printable_lines
from jobs.console.log import log_message
from jobs.console.process import tool_command
from jobs.console.result import ExitCode, RecommendedStep, Result, Severity
from jobs.lake.lake import Lake
from jobs.launch.arguments import file_system_options
from jobs.options.declaration import argument, bundle, flag, option
from jobs.options.places import CHANGED_LAKE, LAKE, refuse_nonempty_directory
from jobs.options.values import ParsedType, parse_seconds
from jobs.requests.restore import RestoreRequest
from jobs.store.store import read_broker_conf
from rmq_formats.errors import FormatError, NotAStore

if TYPE_CHECKING:
    from jobs.lake.catalog import Registrar
    from jobs.lake.commit import Savings

_NO_LAKE = "not a lake: it has none of a lake's tables"
_NO_TOPICS = (
    "a log of only some topics has gaps, and a broker truncates its log at the first gap in the "
    "segments that it reads at startup. Restore the whole log, or export the messages of a topic:\n"
    "  rmq-lake export --lake LAKE -t TOPIC --out FILE"
)
_CATALOG_KIND, _SCHEMA = "spark", "rocketmq"  # the defaults
_NAME = re.compile(r"\w+(\.\w+)*")
_CATALOG = re.compile(r"[\w-]+(\.\w+)*")
_LEAST_KEPT_S = 3600.0
_PAUSE_S = 60.0  # the pause after a failure, with --follow
_LAST_S = 60.0  # the longest wait for a registration in progress at the end of a run


def _target(text: str) -> str:
    if not _CATALOG.fullmatch(text):
        raise ValueError(f"{text!r}: expected CATALOG or CATALOG.NAMESPACE")
    from jobs.lake.catalog import parse_iceberg_target

    return parse_iceberg_target(text)


def _register_option(when: str = "") -> Any:  # noqa: ANN401 - the default of a parameter
    return option(
        "CATALOG[.NAMESPACE]",
        f"Register the lake's tables in this Iceberg catalog{when}; no files are copied. CATALOG is a name in "
        "pyiceberg's configuration; NAMESPACE is rocketmq by default.",
        ParsedType("catalog", _target),
    )


iceberg_option = _register_option()
iceberg_option_of_ingest = _register_option(" after each commit")


class IcebergRegistrations:
    """Registers a lake in an Iceberg catalog; a failure is raised only when all other work is done."""

    def __init__(self, target: str | None) -> None:
        """Without a *target*, nothing is registered."""
        self._target = target
        self._registrar: Registrar | None = None
        self._thread: Thread | None = None
        self._again = 0.0  # the earliest time of the next attempt
        self._failure: Exception | None = None

    def register(self, lake: Lake) -> None:
        """Update the catalog; keep a failure for `raise_failure`."""
        if self._target is None:
            return
        from jobs.lake.catalog import Registrar
        from jobs.typed.typings import list_typed_tables

        self._registrar = self._registrar or Registrar(self._target)
        try:
            self._registrar.register(lake, list_typed_tables(lake))
            self._failure = None
        except (OSError, FormatError) as error:  # raised by `raise_failure`, when everything else is done
            self._failure, self._again = error, monotonic() + _PAUSE_S

    def register_in_background(self, lake: Lake) -> None:
        """Update the catalog in a thread, so that a catalog that does not respond does not delay the next commit."""
        is_at_work = self._thread is not None and self._thread.is_alive()
        if self._target is None or is_at_work or monotonic() < self._again:
            return

        def register_and_say() -> None:
            self.register(lake)
            if self._failure is not None:
                log_message(f"rmq-lake: {self._failure}", "error")

        self._thread = Thread(target=register_and_say, daemon=True)
        self._thread.start()

    def register_after_last_commit(self, lake: Lake) -> None:
        """Update the catalog after the last commit."""
        # A registration in progress may have read the tables before that commit, so another one follows it.
        if self._thread is not None:
            self._thread.join(_LAST_S)
            if self._thread.is_alive():
                self._failure = OSError(
                    f"Iceberg catalog {self._target}: no response for {_LAST_S:.0f} s; the Delta tables of "
                    f"{lake.location} are complete, and the next command with --iceberg registers the missing files"
                )
                return
        self.register(lake)

    def raise_failure(self) -> None:
        """Raise the error of the last attempt, if it had one."""
        if self._failure is not None:
            raise self._failure


def _check_name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} is not a valid name: use letters, digits and _, and dots between names", ctx, parameter
        )
    return value


@declare_command("catalog /data/lake | spark-sql …", "catalog s3a://lake/rocketmq --for unity --schema main.rocketmq")
def catalog(
    *,
    lake: str = argument("LAKE", LAKE),
    kind: str = option(
        None,
        "The kind of catalog.",
        click.Choice(["spark", "unity", "glue", "hive"]),
        names="--for",
        default=_CATALOG_KIND,
        show_default=True,
    ),
    schema: str = option(
        "NAME",
        "Schema (database) of the tables; for Unity, CATALOG.SCHEMA.",
        default=_SCHEMA,
        show_default=True,
        callback=_check_name,
    ),
    iceberg: str | None = iceberg_option,
    printer: ResultPrinter = printer_options,
) -> ExitCode:
    """
    Print SQL statements that register every table of LAKE in a catalog.

    The tables are not moved. Rows added by later runs are visible without registering the tables again.

    spark: Spark's own catalog, with or without a Hive metastore; unity: Unity Catalog (Databricks); glue: AWS Glue (run
    the statements in Athena); hive: a Hive metastore, with Delta's storage handler.

    Only the statements for Hive list columns and comments; other catalogs read them from the Delta log. With --iceberg,
    the tables are registered immediately, and no statements are printed.
    """
    from jobs.lake.catalog import catalog_statements
    from jobs.typed.typings import list_typed_tables

    place = Lake(lake, file_system_options())
    if iceberg is not None and (kind, schema) != (_CATALOG_KIND, _SCHEMA):
        raise click.UsageError("--iceberg CATALOG[.NAMESPACE] cannot be combined with --for or --schema")
    if iceberg is not None:
        return _register(place, iceberg, printer)
    found = list(catalog_statements(place, kind, schema, list_typed_tables(place)))
    if not found:
        raise NotAStore(_NO_LAKE, None, place.location)
    if printer.as_json:
        printer.print_json_or_lines([{"table": table, "text": text} for table, text in found], ())
    elif not printer.quiet:
        for _, text in found:  # never wrapped, so that it can be pasted
            click.echo(f"{printable_lines(text)};")
    return ExitCode.CLEAN


def _register(lake: Lake, target: str, printer: ResultPrinter) -> ExitCode:
    from jobs.lake.catalog import Registrar
    from jobs.typed.typings import list_typed_tables

    done = Registrar(target).register(lake, list_typed_tables(lake))
    if not done:
        raise NotAStore(_NO_LAKE, None, lake.location)
    lines = [
        f"  {one.table}: version {one.version:,}; {count_text(one.added, 'file')} added, {one.removed:,} removed"
        for one in done
    ]
    added, removed = sum(one.added for one in done), sum(one.removed for one in done)
    what = f"{count_text(len(done), 'table')} in {target}, {count_text(added, 'file')} added, {removed:,} removed"
    result = Result(Severity.HEALTHY, what, printer.seconds, verdict="done")
    return printer.print_json_or_lines([one._asdict() for one in done], [lake.location, *lines], result)


def _parse_kept_time(text: str) -> tuple[str, float]:
    """Parse how long messages are kept, with or without a topic: `7d`, `Audit=7d`."""
    topic, equals, duration = text.rpartition("=")
    if equals and not topic:
        raise ValueError(f"{text!r}: the topic before = is missing")
    if any(sign in topic for sign in "*?[,"):
        raise ValueError(f"{text!r}: write the whole name of one topic; patterns and lists are not supported")
    if not duration.strip()[-1:].isalpha():
        raise ValueError(f"{text!r}: write the duration with its unit (examples: 90d, 'Audit=7d')")
    seconds = parse_seconds(duration)
    if seconds < _LEAST_KEPT_S:
        raise ValueError(f"{text!r}: messages are kept for at least one hour")
    return topic, seconds


@declare_command(
    "optimize /data/lake",
    "optimize --dry-run /data/lake",
    "optimize /data/lake --by-topic",
    "optimize /data/lake --keep 90d --keep 'Audit=365d' --keep 'Debug=7d'",
)
def optimize(  # noqa: PLR0913 - one argument an option
    *,
    lake: str = argument("LAKE", CHANGED_LAKE),
    keep: tuple[tuple[str, float], ...] = option(
        "[TOPIC=]DURATION",
        "Remove rows of messages that the broker stored longer ago than this. TOPIC=DURATION sets the time of one "
        "topic, to which DURATION alone then does not apply. Repeatable.",
        ParsedType("duration", _parse_kept_time),
        multiple=True,
    ),
    by_topic: bool = flag(
        "Sort the table messages by topic, so that reading the bodies of one topic takes a fraction of the time. The "
        "first time, this rewrites the whole table; later, only new files."
    ),
    dry_run: bool = flag(
        "Show how many messages would be removed and how many files merged and deleted; change nothing."
    ),
    iceberg: str | None = iceberg_option,
    engine: str = engine_option,
    printer: ResultPrinter = printer_options,
) -> ExitCode:
    """
    Compact the tables of LAKE, and delete files that have been obsolete for longer than the retention time.

    The retention time of files is seven days. If runs of ingest are frequent, it is shorter: about the time of 12 runs,
    and for the table messages at least 25 hours. Without --keep and --by-topic, rows and their order do not change,
    except that old consumer offsets are thinned out. Runs of ingest and type may continue at the same time. Findings
    are not compacted; any Delta engine can compact them with OPTIMIZE.
    """
    topics = [topic for topic, _ in keep]
    twice = next((topic for topic in topics if topics.count(topic) > 1), None)
    if twice is not None:
        raise click.UsageError(f"--keep is given twice for {f'the topic {twice}' if twice else 'all topics'}")
    workers = start_workers(engine, lake)

    from jobs.lake.retention import Retention, remove_expired_rows
    from jobs.lake.upkeep import optimize as optimize_lake
    from jobs.typed.typings import complete_typing, list_tables_by_topic

    place, times = Lake(lake, workers.options), dict(keep)
    retention = Retention(times.pop("", None), times)
    _check_kept_topics(place, times)
    typed_tables = list_tables_by_topic(place)
    expired = list(remove_expired_rows(place, retention, typed_tables, dry_run=dry_run))
    if not dry_run:
        complete_typing(place)  # only its manifest names its files: the vacuum would delete them
    saved = optimize_lake(lake, workers, [table for _, table in typed_tables], by_topic=by_topic, dry_run=dry_run)
    registrations = IcebergRegistrations(None if dry_run else iceberg)
    registrations.register(place)
    would = "would be " * dry_run
    lines = [
        f"  {one.broker} ({one.store_id}): {count_text(one.messages, 'expired message')} {would}removed, all before "
        f"offset {one.to_offset:,}"
        for one in expired
        if one.messages or one.tables
    ]
    lines += [f"  {_savings_text(table, dry_run=dry_run)}" for table in saved if table.merged or table.vacuumed]
    merged, deleted = sum(table.merged for table in saved), sum(table.vacuumed for table in saved)
    what = f"{count_text(merged, 'file')} {would}merged, {count_text(deleted, 'obsolete file')} {would}deleted"
    if keep:
        what = f"{count_text(sum(one.messages for one in expired), 'expired message')} {would}removed, {what}"
    result = Result(Severity.HEALTHY, what, printer.seconds, verdict="dry run" if dry_run else "done")
    values = [table._asdict() for table in saved]
    as_json = {"expired": [one._asdict() for one in expired], "tables": values} if keep else values
    printer.print_json_or_lines(as_json, [lake, *lines], result)
    registrations.raise_failure()
    return ExitCode.CLEAN


def _check_kept_topics(lake: Lake, topics: Collection[str]) -> None:
    """Warn of topics that the lake does not have, and refuse those whose names differ from one only in case."""
    from jobs.lake.commit import open_table
    from jobs.lake.snapshot_files import read_topics
    from jobs.lake.tables import MESSAGES
    from jobs.store.selection import list_similar_topics
    from jobs.typed.run import read_configured_topics

    messages = open_table(lake, MESSAGES.name) if topics else None
    if messages is None:
        return
    known = read_configured_topics(lake)
    if not known.issuperset(topics):
        known |= read_topics(lake, messages)
    for topic in topics:
        similar = [] if topic in known else list_similar_topics(topic, known)
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        text = f"--keep {topic}: the lake has no such topic.{hint}"
        if any(name.lower() == topic.lower() for name in similar):
            raise click.UsageError(f"{text} Nothing was removed")
        if topic not in known:
            log_message(f"rmq-lake: {text}", "warning")


def _savings_text(saved: "Savings", *, dry_run: bool) -> str:
    obsolete = count_text(saved.vacuumed, "obsolete file")
    merged, before = count_text(saved.merged, "file"), size_text(saved.bytes_before)
    if dry_run:
        would = f"{merged} ({before} in total) would be merged into {saved.written:,} (final size unknown)"
        return f"{saved.table}: {would if saved.merged else 'nothing to merge'}; {obsolete} would be deleted"
    done = f"{merged} merged into {saved.written:,}, {before} into {size_text(saved.bytes_after or 0)}"
    return f"{saved.table}: {done if saved.merged else 'nothing to merge'}; {obsolete} deleted"


@declare_command(
    "restore /data/lake --broker broker-a --out /data/restored",
    "restore LAKE --out DIR --until '2026-11-17 12:00'",
    "restore LAKE --out DIR --resume",
    "restore LAKE --check",
)
def restore(
    *,
    request: RestoreRequest = bundle(RestoreRequest),
    check: bool = flag(
        "Write nothing: build every byte of the log, verify its checksums, and print the part that can be restored. "
        "Without --broker, check every broker of LAKE."
    ),
    topics: tuple[str, ...] = option(None, names="-t --topic", multiple=True, hidden=True),
    engine: str = engine_option,
    printer: ResultPrinter = verbose_printer_options,
) -> ExitCode:
    """
    Restore a store from LAKE into DIR: the log and configuration byte for byte; queues and index files are rebuilt.

    A broker can then start on DIR. With --check, nothing is written. Times without a zone in --from and --until are in
    this machine's time zone.
    """
    if topics:
        raise click.BadParameter(_NO_TOPICS, param_hint="'-t' / '--topic'")
    out = request.out
    if check and (out is not None or request.resume):
        raise click.UsageError("--check writes nothing: it cannot be combined with --out or --resume")
    if not check and out is None:
        raise click.UsageError("missing option --out DIR (or --check, to write nothing)")
    if out is not None and not request.resume:
        refuse_nonempty_directory(str(out))
    workers = start_workers(engine, request.lake.location)
    request = replace(
        request,
        lake=Lake(request.lake.location, workers.options),
        out=out and out.absolute(),
        given_settings=request.given_settings.with_conf(read_broker_conf(request.broker_conf)),
    )
    if out is None:
        from jobs.restore.check import check_restore

        checked = check_restore(request, workers)
        return printer.print_outcome(checked, checked.lines(), with_byte_count=True)
    from jobs.restore.run import restore

    summary = restore(request, workers)
    words = [tool_command(), "verify", quote(str(out))]
    if summary.is_log_elsewhere:
        words += ["--commitlog", quote(",".join(str(out / directory) for directory in summary.log_folders))]
    verify = RecommendedStep("verify the restored store", (" ".join(words),))
    user = out.stat().st_uid
    advice = f"the files belong to user {user}; change their owner to the broker's user before you start the broker"
    chown = RecommendedStep(advice, (f"chown -R USER:GROUP {quote(str(out))}",))
    return printer.print_outcome(summary, [*summary.lines(), *verify.lines(), *chown.lines("")], with_byte_count=True)
