"""`inspect`, `dump` and `browse`: show a store, or one of its files, in a terminal or a browser; read-only."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec

import click

from jobs.command_line.configuration import declare_command
from jobs.command_line.result_printer import ResultPrinter, verbose_printer_options
from jobs.console.lines import line_width_limit, printable_text, wrap_line
from jobs.console.log import log_message
from jobs.console.process import STANDARD_OUTPUT
from jobs.console.progress import create_delayed_progress
from jobs.console.result import ExitCode, Severity, worst_severity
from jobs.dump import KINDS_BY_NAME, DumpItem, DumpRequest, open_file
from jobs.launch.arguments import file_system_options
from jobs.launch.engine import SetupError
from jobs.options.declaration import argument, bundle, flag, option
from jobs.options.places import STORE_FILE, STORE_OR_LAKE
from jobs.requests.query import QueryTarget
from jobs.store.request import StoreRequest
from jobs.store.store import read_broker_conf
from rmq_formats.errors import FormatError
from rmq_formats.store import FileKind

_KINDS = click.Choice(tuple(KINDS_BY_NAME))
_KINDS_HELP = f"The file type, if it cannot be detected: {', '.join(KINDS_BY_NAME)}."
_NEEDED = ("jinja2", "starlette", "uvicorn")  # modules that the pages need


@declare_command(
    "inspect /data/rocketmq/store",
    "inspect --deep --json /backup/store | jq .problems",
    "inspect --broker-conf broker.conf /data/rocketmq/store",
    "inspect --usage /data/rocketmq/store",
    exit_codes="0 no problem found (not verified) · 1 STORE cannot be read · 2 usage error, or not a store · "
    "3 damage or a gap",
)
def inspect(
    *,
    request: StoreRequest = bundle(StoreRequest, max_rate=None),
    deep: bool = flag("Read every record of the log, not only heads and tails of files."),
    usage: bool = flag(
        "Show the space that each topic takes in the log, and what retention deletes next, instead of the overview."
    ),
    accepted: tuple[str, ...] = option(
        "FINDING",
        "Accept damaged bytes of the log, such as the place of a bridge record: they are reported, but do not count "
        "as a problem. FINDING is the name that `accept_as` has in `verify --json`. Repeatable.",
        names="--accept",
        multiple=True,
    ),
    printer: ResultPrinter = verbose_printer_options,
) -> ExitCode:
    """
    Show a store's segments, queues, index files, checkpoint and release, and recommend the next command.

    Only the heads and tails of files are read, usually in less than a second; --deep reads the whole log.
    """
    from jobs.inspect.inspection import inspect_store
    from jobs.inspect.text import report_text

    options = request.option_words()
    request = request.with_conf(read_broker_conf(request.broker_conf))
    with create_delayed_progress("walking the log") as walk:
        report = inspect_store(
            request.store, request.commitlog, request.conf, deep=deep, progress=walk, accepted=accepted
        )
    if usage:
        from jobs.inspect.usage import measure_usage  # lazy import: numpy is slow to load

        report.usage = measure_usage(request.store, request.commitlog, report.log.end_offset)
    report.options = options
    # --quiet affects only the progress line: the report is the answer.
    replace(printer, quiet=False).print_json_or_lines(
        report.to_dict(), report_text(report, verbose=printer.verbose).split("\n")
    )
    return report.health.exit_code


@declare_command(
    "dump store/commitlog/00000000000000000000",
    "dump --from 16626 --limit 1 --fields store/commitlog/00000000000000000000",
    """dump --json store/dledger-n0/data/00000000000000016384 | jq 'select(.kind == "record") | .topic'""",
    "dump store/index/20251120010000000 --chain 'Orders#4711'",
    "dump store/checkpoint",
    exit_codes="0 clean · 1 a file cannot be read · 2 usage error · 3 a file is damaged",
    ends_without_reader=True,
)
def dump(
    *,
    files: tuple[str, ...] = argument("FILE…", STORE_FILE, nargs=-1),
    request: DumpRequest = bundle(DumpRequest),
    kind: FileKind | None = option(
        "TYPE",
        _KINDS_HELP,
        _KINDS,
        names="--as",
        make=KINDS_BY_NAME.__getitem__,
    ),
) -> ExitCode:
    """
    Print the contents of store files, each line with its offset, and report how each file ends.

    The file type is detected from the path of the file, or from its first bytes. In log files, which are named after
    the offset of their first byte, offsets are physical; in other files, they are positions in the file.
    """
    return worst_severity([_dump(location, kind, request) for location in files]).exit_code


def _dump(location: str, kind: FileKind | None, request: DumpRequest) -> Severity:
    from jobs.dump.units import dump_items, recognize_kind

    try:
        with open_file(location) as file:
            known = kind or recognize_kind(file)
            is_damaged = False
            if not request.as_json:
                _print_wrapped(f"# {printable_text(location)}: {known}, {file.size:,} bytes")
            for item in dump_items(file, known, request):
                is_damaged |= item.is_damage
                _print_item(item, location, as_json=request.as_json)
            for position, size, reason in file.unreadable:  # shown as zeros above
                text = f"{size} bytes cannot be read at position {position}: {reason}"
                place = {"position": position, "size": size, "reason": reason}
                values = {"file": location, "kind": "unreadable", **place}
                if request.as_json:
                    _print(json.dumps(values))
                else:
                    _print_wrapped(f"# UNREADABLE {text}")
            return Severity.DAMAGE if is_damaged or file.unreadable else Severity.NOT_VERIFIED
    except FormatError as error:
        message = str(error.in_file(location))
    except OSError as error:  # any error is reported (exit code 1), and the other files are dumped
        if error.filename == STANDARD_OUTPUT:
            raise
        message = f"{location}: {error.strerror or error}"
    sys.stdout.flush()
    log_message(f"rmq-lake: {message}", "error")
    return Severity.NOT_ACCESSIBLE


def _print_item(item: DumpItem, location: str, *, as_json: bool) -> None:
    if as_json:
        values: dict[str, object] = {"file": location, "offset": item.offset, "size": item.size, "kind": item.kind}
        _print(json.dumps(values | dict(item.values), ensure_ascii=sys.stdout.isatty()))
        return
    kind = item.kind.upper() if item.is_damage and item.kind != "record" else item.kind
    _print_wrapped(f"{item.offset:>20}  {kind:<9} {item.size:>10}  {item.text}".rstrip())
    for field in item.fields:
        _print_wrapped(f"{field.offset:>20}      {field.name:<28} {field.text}".rstrip())


def _print_wrapped(line: str) -> None:
    for piece in wrap_line(line, line_width_limit(sys.stdout)):
        _print(piece)


def _print(line: str) -> None:
    # A file name may have bytes that are not UTF-8; JSON must not.
    sys.stdout.write(line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")


@declare_command(
    "browse /data/rocketmq/store",
    "browse --port 8080 --no-open LAKE      # on a server; then: ssh -L 8080:127.0.0.1:8080 SERVER",
    exit_codes="0 stopped with Ctrl-C · 1 failed · 2 usage error",
)
def browse(
    *,
    location: str = argument("STORE|LAKE", STORE_OR_LAKE),
    port: int = option("N", "The port to listen on; default: any free port.", click.IntRange(0, 65535), default=0),
    no_open: bool = flag("Print the address without opening a browser."),
    target: QueryTarget = bundle(
        QueryTarget,
        store=None,
        lake=None,
        broker=option("NAME", "For a lake: show only the broker with this label, or the store with this id."),
        scan_log=False,
    ),
) -> ExitCode:
    """
    Serve read-only pages of a store or a lake on 127.0.0.1: files, messages, topics, groups, tables.

    The command prints the address, which includes a token. Press Ctrl-C to stop the server.
    """
    if not all(map(find_spec, _NEEDED)):
        raise SetupError(f"`browse` requires {', '.join(_NEEDED)}: pip install 'rocketmq-lake[browse]'")
    from jobs.browse.server import serve
    from jobs.query.lake_tables import is_lake

    store, lake = (None, location) if is_lake(location, file_system_options()) else (location, None)
    return serve(replace(target, store=store, lake=lake), port, opens_browser=not no_open)
