"""`query`: find messages in a store or a lake as mqadmin does, without a running broker or a JVM."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import click

from jobs.command_line.configuration import ONE_SOURCE_NEEDED, declare_command, examples
from jobs.console.amounts import TimeArgument
from jobs.console.lines import line_width_limit, wrap_line
from jobs.console.log import log_message
from jobs.console.process import CommandEndedError, discard_unwritten_output, time_limit
from jobs.console.progress import create_delayed_progress
from jobs.console.result import ExitCode
from jobs.console.rows import RowFormat
from jobs.launch.failures import raise_as_usage_errors
from jobs.options.declaration import argument, bundle, flag, option
from jobs.options.places import LAKE, OUTPUT_DIRECTORY, OUTPUT_FILE
from jobs.options.values import (
    NOT_NEGATIVE_INTEGER,
    ZONE,
    ParsedType,
    json_option,
    quiet_option,
    refuse_reversed_window,
    since_option,
    until_option,
)
from jobs.query import MAX_TIME, MIN_TIME, ListConditions, lookups, reasons
from jobs.query.lookups import KEY_QUERY_LIMIT, TimeWindow
from jobs.query.merging import MergedAnswer, concatenate_answers, list_newest, merge_answers, parse_positions
from jobs.query.output import AnswerPrinter
from jobs.query.source import Answer, OtherBrokerError, Reason, ReasonKind, Source
from jobs.query.target import open_stores
from jobs.requests.query import QueryTarget
from jobs.storage.paths import path_exists
from jobs.store.repeated_reads import is_deleted_file, repeat_read
from jobs.store.request import hash_slots_option, index_num_option
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import NEWEST

_MOST_ON_TERMINAL = 1000  # rows that `sql` prints on a terminal
_LONGEST_S = 1_000_000  # maximum of --timeout: eleven days
_KINDS = {"K": KeyKind.KEY, "T": KeyKind.TAG, "U": KeyKind.UNIQUE}


def _make_printer(output: str, zone: ZoneInfo | None, *more: Any, as_json: bool) -> AnswerPrinter:  # noqa: ANN401 - of a printer
    """Return a printer that ends its output, such as a JSON array, when the command ends."""
    form = RowFormat(output)
    if as_json and form not in {RowFormat.TEXT, RowFormat.NDJSON}:
        raise click.UsageError(f"--json means --output ndjson, and cannot be combined with --output {form}")
    printer = AnswerPrinter(zone, RowFormat.NDJSON if as_json else form, *more)
    return click.get_current_context().with_resource(printer)


class TimeLimitError(CommandEndedError):
    """The time for a statement is over."""


class QueryOptions(NamedTuple):
    """The store or lake to query, and the output settings."""

    target: QueryTarget
    printer: AnswerPrinter
    ignore_host: bool  # whether to look up an offset id that names another host

    def time_window(self, since: TimeArgument | None, until: TimeArgument | None) -> TimeWindow:
        """Return the requested time window; refuse one that ends before it begins."""
        zone = self.printer.zone
        refuse_reversed_window(since, until, zone)
        for given in (since, until):
            sentence = given.interpretation(zone) if given is not None else None
            if sentence is not None:
                self.printer.note(sentence)
        return TimeWindow(
            MIN_TIME if since is None else since.milliseconds(zone),
            MAX_TIME if until is None else until.milliseconds(zone),
        )


def _parse_charset(name: str) -> str:
    from jobs.query.mqadmin.java import check_charset

    check_charset(name)
    return name


_CHARSET = ParsedType("charset", _parse_charset)
output_option = option(
    None,
    "text: mqadmin's layout; table: columns; csv, json (one array), ndjson (one object per line, like --json).",
    click.Choice([form.value for form in RowFormat if form is not RowFormat.PARQUET]),
    default=RowFormat.TEXT.value,
)


def _make_query_options(  # noqa: PLR0913 - one argument an option
    *,
    target: QueryTarget = bundle(QueryTarget),
    time_zone: ZoneInfo | None = option("ZONE", "Time zone of given and printed times; default: this machine's.", ZONE),
    hash_slots: int | None = hash_slots_option(),
    index_num: int | None = index_num_option(),
    ignore_host: bool = flag("Accept an offset id that names another host."),
    as_json: bool = json_option(),
    output: str = output_option,
    quiet: bool = quiet_option(),
    body: bool = flag("Print the decompressed body."),
    charset: str = option("NAME", "The body's charset.", _CHARSET, default="UTF-8", show_default=True),
    body_dir: Path | None = option("DIR", "Write each decompressed body to a file in DIR.", OUTPUT_DIRECTORY),
) -> QueryOptions:
    if (hash_slots is None) != (index_num is None):
        raise click.UsageError("--hash-slots and --index-num must be given together")
    geometry = Geometry(hash_slots, index_num) if hash_slots and index_num else None
    printer = _make_printer(output, time_zone, quiet, body_dir, charset if body else None, as_json=as_json)
    return QueryOptions(replace(target, geometry=geometry), printer, ignore_host)


_of_query = bundle(_make_query_options, ignore_host=False)
_of_id_query = bundle(_make_query_options)
_of_story = bundle(_make_query_options, body=False, charset="", body_dir=None)


@contextmanager
def _open_sources(options: QueryOptions) -> Iterator[Sequence[Source]]:
    """Open the store, or the stores of the lake that match the options."""
    if not options.target.location:
        raise click.UsageError(ONE_SOURCE_NEEDED)
    try:
        with create_delayed_progress("searching the log") as searched, open_stores(options.target, searched) as opened:
            yield opened
    except OtherBrokerError as error:
        reason = Reason(ReasonKind.OTHER_BROKER, str(error))
        click.get_current_context().exit(options.printer.print_reason(reason))


def _query(options: QueryOptions, use: Callable[[Sequence[Source]], ExitCode]) -> ExitCode:
    """Return the result of *use*; list the store again if a file was deleted before anything was printed."""

    def ask() -> ExitCode:
        with _open_sources(options) as sources:
            return use(sources)

    def may_repeat(error: Exception) -> bool:
        return is_deleted_file(error) and not options.target.is_lake and not options.printer.has_printed

    return repeat_read(ask, may_repeat)


def _merge(
    options: QueryOptions,
    merge: Callable[[Sequence[Source]], MergedAnswer],
    show: Callable[[MergedAnswer], object],
) -> ExitCode:
    """Query the store, or all stores of the lake; print the merged answer and return the exit code."""

    def print_answer(sources: Sequence[Source]) -> ExitCode:
        merged = merge(sources)
        show(merged)
        return options.printer.finish(merged.answer)

    return _query(options, print_answer)


def _limit(default: int, text: str = "Print the newest N messages; 0: all.", *, least: int = 0) -> Any:  # noqa: ANN401 - the default of a parameter
    return option("N", text, click.IntRange(min=least), names="-m --max", default=default, show_default=True)


def _not_empty(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter("is empty; no message has an empty key")
    return value


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="COMMAND [ARGS]…",
    epilog=examples(
        "query by-key -t Orders -k 4711 --store /data/store",
        "query by-key -t Orders -k 4711 --lake LAKE --since 2h",
        "query message -i 7F00000100002A9F00000000000001F4 --lake LAKE",
        'query sql --lake LAKE "select topic, count(*) from messages group by topic"',
        "query mqadmin --store STORE queryMsgByKey -n host:9876 -t Orders -k 4711",
        exit_codes="0 found · 1 failed · 2 usage error · 3 a body is damaged, or messages may be missing · "
        "5 nothing found; the output says why",
    ),
)
def query() -> None:
    """Find messages as mqadmin does, without a running broker."""


_query_command = partial(declare_command, group=query, ends_without_reader=True)
_topic = option("TOPIC", "The topic.", names="-t --topic", required=True)


@_query_command(name="by-key", short_help="Find messages by key (queryMsgByKey).")
def by_key(  # noqa: PLR0913 - one argument an option
    *,
    topic: str = _topic,
    key: str = option(
        "KEY", "The key, of the kind that --key-type selects.", names="-k --key", required=True, callback=_not_empty
    ),
    key_type: str = option(
        None,
        "K: one of KEYS, T: the tags, U: the unique key.",
        click.Choice(list(_KINDS)),
        names="-p --key-type",
        default="K",
        show_default=True,
    ),
    since: TimeArgument | None = since_option("-b --since --begin"),
    until: TimeArgument | None = until_option("-e --until --end"),
    limit: int = _limit(KEY_QUERY_LIMIT),
    options: QueryOptions = _of_query,
) -> ExitCode:
    """
    Print the messages of a topic that have the given key, as queryMsgByKey does.

    A time without a zone is interpreted in --time-zone, which defaults to this machine's zone.
    """
    window = options.time_window(since, until)
    kind, most = _KINDS[key_type], limit or None
    printer = options.printer

    def show(merged: MergedAnswer) -> None:
        has_index_key = merged.first_source.release.prints_index_key
        printer.print_rows(merged.answer, topic, key_type, key, has_index_key=has_index_key)

    ask = partial(lookups.by_key, topic=topic, key=key, kind=kind, window=window, limit=most)
    return _merge(options, partial(merge_answers, ask=ask, newest=most), show)


@_query_command(name="by-id", short_help="Find messages by id (queryMsgById).")
def by_id(
    *,
    message_ids: str = option("ID[,ID…]", "Offset ids or unique keys.", names="-i --id", required=True),
    topic: str | None = option("TOPIC", "The topic to search for a unique key.", names="-t --topic"),
    options: QueryOptions = _of_id_query,
) -> ExitCode:
    """Print messages by id, as queryMsgById does. An id is tried as an offset id first, then as a unique key."""
    texts = [part.strip() for part in message_ids.split(",") if part.strip()]
    if not texts:
        raise click.BadParameter("contains no id", param_hint="--id")
    return _print_ids(options, texts, topic)


@_query_command(short_help="Find one message by an id of any kind.")
def message(
    *,
    message_id: str = option("ID", "An offset id or a unique key.", names="-i --id", required=True),
    topic: str | None = option("TOPIC", "The topic to search for a unique key.", names="-t --topic"),
    options: QueryOptions = _of_id_query,
) -> ExitCode:
    """Print one message; `by-id` prints several. The id is tried as an offset id first, then as a unique key."""
    return _print_ids(options, [message_id.strip()], topic)


def _print_ids(options: QueryOptions, texts: Sequence[str], topic: str | None) -> ExitCode:
    printer = options.printer

    def print_each(sources: Sequence[Source]) -> ExitCode:
        outcome = ExitCode.CLEAN
        for text in texts:
            ask = partial(lookups.by_any_id, text=text, topic=topic, ignore_host=options.ignore_host)
            answer = merge_answers(sources, ask).answer
            printer.print_details(answer)
            outcome = max(outcome, printer.finish(answer))
        return outcome

    return _query(options, print_each)


@_query_command(name="by-unique-key", short_help="Find messages by unique key (queryMsgByUniqueKey).")
def by_unique_key(
    *,
    topic: str = _topic,
    unique_key: str = option(
        "ID", "The unique key: the id that the producer assigned to the message.", names="-i --id", required=True
    ),
    show_all: bool = flag("Print every message found, not only the one that was stored first.", names="-a --all"),
    limit: int = _limit(lookups.UNIQUE_KEY_QUERY_LIMIT, "Consider only the newest N messages with this id; 0: all."),
    options: QueryOptions = _of_query,
) -> ExitCode:
    """Print the message with the given unique key, as queryMsgByUniqueKey does."""

    def merge(sources: Sequence[Source]) -> MergedAnswer:
        ask = partial(
            lookups.by_unique_key,
            topic=topic,
            unique_key=unique_key,
            show_all=show_all or len(sources) > 1,
            limit=limit or None,
        )
        return merge_answers(sources, ask, oldest=None if show_all else 1)

    return _merge(options, merge, lambda merged: options.printer.print_details(merged.answer, has_offset_id=False))


@_query_command(name="by-offset", short_help="Find a message by queue offset (queryMsgByOffset).")
def by_offset(
    *,
    topic: str = _topic,
    broker_name: str | None = option(
        "BROKER",
        "As in mqadmin: must match the store's broker name, if known. In a lake, also selects the store.",
        names="-b --broker-name",
    ),
    queue_id: int = option("QUEUE", "The queue id.", NOT_NEGATIVE_INTEGER, names="-i --queue-id", required=True),
    offset: int = option("OFFSET", "The queue offset of the message.", int, names="-o --offset", required=True),
    options: QueryOptions = _of_query,
) -> ExitCode:
    """
    Print the message at a queue offset, as queryMsgByOffset does.

    In a lake of several brokers, the message of each broker is printed, unless --broker names one.
    """
    place = options.target
    if place.is_lake and broker_name and not place.broker:
        options = options._replace(target=replace(place, broker=broker_name))
    ask = partial(lookups.by_offset, topic=topic, queue_id=queue_id, queue_offset=offset, broker=broker_name)

    def show(merged: MergedAnswer) -> None:
        for answer in merged.list_answers():
            options.printer.print_details(answer)

    return _merge(options, partial(concatenate_answers, ask=ask), show)


@_query_command(name="list", short_help="List messages page by page, newest first.")
def list_messages(  # noqa: PLR0913 - one argument an option
    *,
    topic: str | None = option("TOPIC", "Only messages of this topic.", names="-t --topic"),
    queue_id: int | None = option("N", "With -t: only this queue of the topic.", NOT_NEGATIVE_INTEGER, names="--queue"),
    key: str | None = option(
        "KEY", "One of the message's KEYS, or its unique key.", names="-k --key", callback=_not_empty
    ),
    tag: str | None = option("TAG", "Only messages with exactly these TAGS."),
    body_contains: str | None = option("TEXT", "Only messages whose decompressed body contains TEXT."),
    since: TimeArgument | None = since_option(),
    until: TimeArgument | None = until_option(),
    before: str | None = option(
        "POSITION", "Continue from POSITION, which is printed at the end of the previous page."
    ),
    limit: int = _limit(KEY_QUERY_LIMIT, "Print the newest N messages.", least=1),
    timeout: float = option(
        "S", "Stop after S seconds.", click.FloatRange(0, _LONGEST_S), default=60.0, show_default=True
    ),
    options: QueryOptions = _of_query,
) -> ExitCode:
    """List messages by log offset, newest first."""
    if queue_id is not None and topic is None:
        raise click.UsageError("--queue requires -t TOPIC")
    wanted = ListConditions(topic, key, tag, body_contains, *options.time_window(since, until), queue_id)
    with raise_as_usage_errors(UnsupportedFormat):
        start = None if before is None else parse_positions(before)

    def show(merged: MergedAnswer) -> None:
        options.printer.print_rows(merged.answer, topic or "", "K", key or "", has_index_key=False)

    merge = partial(list_newest, wanted=wanted, before=start, limit=limit, seconds=timeout)
    return _merge(options, merge, show)


@_query_command(short_help="Show the history of a message.")
def story(
    *,
    message_id: str | None = argument("[ID]", required=False),
    topic: str | None = option(
        "TOPIC", "With -k: the topic of the key. With ID: the topic to search first.", names="-t --topic"
    ),
    key: str | None = option("KEY", "One of the message's KEYS, instead of its id.", names="-k --key"),
    options: QueryOptions = _of_story,
) -> ExitCode:
    """
    Show the history of a message (sent, half, delayed, retried, consumed, dead-lettered), with the source of each line.

    ID is a unique key (the id that the producer assigned) or an offset id.
    """
    if (message_id is None) == (key is None) or (key is not None and topic is None):
        raise click.UsageError("pass an ID, or -t TOPIC and -k KEY")
    from jobs.query import story as stories

    def ask(source: Source) -> Answer:
        if key is not None:
            return stories.find_copies_by_key(source, topic or "", key)
        return stories.find_copies_by_id(source, (message_id or "").strip(), topic, ignore_host=options.ignore_host)

    every: list[Source] = []

    def find(sources: Sequence[Source]) -> MergedAnswer:
        every[:] = sources
        return merge_answers(sources, ask)

    def show(merged: MergedAnswer) -> None:
        width = line_width_limit(sys.stdout)
        parts = [(source, answer.messages) for source, answer in merged.parts]
        for brokers, one in stories.find_joined_stories(parts, every, merged.answer.remarks):
            named = {"broker": brokers[0], "brokers": brokers} if merged.has_brokers else {}
            heads = [f"{'brokers' if len(brokers) > 1 else 'broker'} {', '.join(brokers)}"] if named else []
            lines = (*heads, *stories.story_lines(one, options.printer.zone), "")
            text = "".join(f"{piece}\n" for line in lines for piece in wrap_line(line, width))
            options.printer.print_row("story", {**named, **stories.story_object(one)}, text)

    return _merge(options, find, show)


@_query_command(short_help="Run SQL on a lake, without Java.")
def sql(  # noqa: PLR0913 - one argument an option
    *,
    statement: str | None = argument(None, required=False),
    lake: str = option("LAKE", "The lake.", LAKE, required=True),
    output: str = option(
        None,
        "The output format. Except in Parquet, times are ISO 8601 in UTC and bytes are hexadecimal.",
        click.Choice([form.value for form in RowFormat if form is not RowFormat.TEXT]),
        default=RowFormat.TABLE.value,
        show_default=True,
    ),
    out: Path | None = option(
        "FILE", "The output file; required by --output parquet, and only valid with it.", OUTPUT_FILE
    ),
    limit: int | None = option(
        "N",
        f"Return the first N rows; 0: all. By default: all, but {_MOST_ON_TERMINAL:,} on a terminal.",
        NOT_NEGATIVE_INTEGER,
    ),
    timeout: float | None = option("S", "Stop after S seconds.", click.FloatRange(0, _LONGEST_S, min_open=True)),
    quiet: bool = quiet_option(),
) -> ExitCode:
    """
    Run an SQL statement on a lake with DataFusion; without one, list the tables and views.

    Tables and views are available under their own names; typed tables are named `typed_<directory>`. Statements are
    read-only.
    """
    from jobs.launch.arguments import file_system_options
    from jobs.query.lake_tables import LakeTables, ResultBatches, describe_tables, write_parquet

    if output == "parquet" and out is None:
        raise click.UsageError("--output parquet requires --out FILE")
    if output != "parquet" and out is not None:
        raise click.UsageError(f"--out is for --output parquet only; --output {output} prints to standard output")
    if out is not None and path_exists(out):
        raise click.UsageError(f"--out {out}: already exists")
    tables = LakeTables(lake, file_system_options(), ("messages", "tiered", "findings"))
    printer = AnswerPrinter(quiet=quiet)
    most = limit if limit is not None else _MOST_ON_TERMINAL if out is None and sys.stdout.isatty() else 0
    try:
        with time_limit(timeout, TimeLimitError()), raise_as_usage_errors(UnsupportedFormat):
            if out is not None:
                cut = write_parquet(ResultBatches(tables, statement or ""), out, most)
            else:
                with printer.open_row_printer(RowFormat(output)) as rows:
                    if statement is None:
                        found = describe_tables(tables)
                    else:
                        batches = ResultBatches(tables, statement)
                        rows.declare_columns(batches.schema.names)
                        found = batches.rows()
                    for row in islice(found, most or None):
                        rows.add(row)
                    cut = most > 0 and next(found, None) is not None
                    found.close()
    except TimeLimitError:
        discard_unwritten_output()
        log_message(f"rmq-lake: stopped after {timeout:g} s: not all rows were printed; pass a larger --timeout")
        return ExitCode.FAILED
    if cut:
        printer.note(f"only the first {most:,} rows are shown; --limit 0 shows all")
    unlisted = {str(error) for error in tables.unreadable.values()} if statement is None else set()
    for reason in sorted(unlisted):
        log_message(f"rmq-lake: not listed: {reason}")
    return ExitCode.FAILED if unlisted else ExitCode.CLEAN


@_query_command(name="decode-id", short_help="Decode a message id.", is_configured=False)
def decode_id(
    *,
    message_id: str = argument("ID"),
    time_zone: ZoneInfo | None = option("ZONE", "The time zone of the client that created the id.", ZONE),
    as_json: bool = json_option(),
    output: str = output_option,
) -> ExitCode:
    """Decode an id as an offset id (host, port, offset) or as a unique key (IP, process, time, counter)."""
    from jobs.query.mqadmin import decode_id_both_ways

    printer = _make_printer(output, time_zone, as_json=as_json)
    readings = decode_id_both_ways(message_id.strip(), time_zone or UTC, time.time_ns() // 1_000_000)
    if readings is None:
        return printer.print_reason(reasons.explain_invalid_offset_id(message_id))
    printer.print_row("id", *readings)
    return ExitCode.CLEAN


@_query_command(
    name="mqadmin",
    short_help="Run an mqadmin command line unchanged.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def mqadmin_line(
    *,
    arguments: tuple[str, ...] = argument("COMMAND [OPTIONS]…", click.UNPROCESSED, nargs=-1, required=True),
    options: QueryOptions = _of_id_query,
) -> ExitCode:
    """
    Run an mqadmin command line unchanged, with the options of the RocketMQ release that wrote the store.

    Supported commands: queryMsgByKey, queryMsgById, queryMsgByUniqueKey, queryMsgByOffset, queryMsgTraceById, printMsg,
    printMsgByQueue, consumeMessage, queryCq, topicStatus, topicList, consumerProgress, getConsumerConfig.
    Options of this tool come before the mqadmin command; -n and the cluster option are accepted and ignored.
    """
    if arguments[0].startswith("-"):
        raise click.NoSuchOption(arguments[0].partition("=")[0], ctx=click.get_current_context())
    from jobs.query.mqadmin import commands as mqadmin
    from jobs.query.mqadmin.arguments import parse_mqadmin_line

    try:
        if not options.target.location:
            # An invalid line is reported before a missing store.
            parse_mqadmin_line(arguments, options.target.release or NEWEST)
        now = time.time_ns() // 1_000_000
        parse = partial(mqadmin.parse_call, printer=options.printer, now_ms=now, ignore_host=options.ignore_host)
        return _query(options, lambda sources: mqadmin.run_command(parse(arguments, sources)))
    except UnsupportedFormat as error:
        raise click.UsageError(str(error)) from error
