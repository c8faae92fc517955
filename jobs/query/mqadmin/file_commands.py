"""mqadmin's commands that read files where they lie, without a broker: they need no store to be named."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jobs.console.exit_codes import ExitCode
from jobs.dump.file import DumpFile, open_file
from jobs.launch.errors import SetupError
from jobs.query.json_text import message_object
from jobs.query.message import Message
from jobs.query.mqadmin.arguments import Line
from jobs.query.mqadmin.java_format import printed_as_format
from jobs.query.mqadmin.pull_text import decoded_text
from jobs.query.mqadmin.rocksdb_json import FOLDERS, pretty_json, read_tables, rows_text
from jobs.query.output import Printer
from jobs.query.source import Answer, Reason, ReasonKind
from rmq_formats.commitlog.record import decode_record
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.release import Release, Version

_SIZE = 4  # bytes, at the beginning of a record
_GOES_ON = Version.parse("5.1.1")  # after a message that it cannot print
_NAMES_MODE = Version.parse("5.3.2")


class _End(NamedTuple):
    """Where mqadmin stops in a file that goes on."""

    position: int
    reason: str


def dump_compaction_log(line: Line, release: Release, printer: Printer) -> ExitCode:
    """Print the messages of a file of `compaction/compactionLog`, without their bodies: dumpCompactionLog."""
    location = line.options.get("file")
    if location is None:
        printer.out("miss dump log file name\n")
        return ExitCode.USAGE
    try:
        with open_file(location) as file:
            end = _print_messages(file, release, printer)
            if end is not None:
                printer.note(f"{location} ends for mqadmin at {end.position} of {file.size}: {end.reason}")
                printer.has_damage = True
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "is a directory" if isinstance(error, IsADirectoryError) else "does not exist"
        return printer.empty(Reason(ReasonKind.NOT_ON_DISK, f"{location} {what}"))
    return printer.finish(Answer(), [])


def _print_messages(file: DumpFile, release: Release, printer: Printer) -> _End | None:
    position = 0
    while position < file.size:
        size = int.from_bytes(file.read(position, _SIZE), "big", signed=True)
        if size == 0:
            return None  # not written yet
        if size < 0 or size > file.size - position:
            return _End(position, f"a record of {size} bytes")
        try:
            record = decode_record(file.read(position, size))
        except FormatError as error:
            return _End(position, str(error))
        message = printer.shown(Message(record, release))
        printed = printed_as_format(f"{decoded_text(message)}\n")
        if printer.as_json:
            printer.object("message", message_object(message, with_body=printer.charset is not None))
        else:
            printer.out(printed.text)
        if not printer.as_json and not printed.is_all:
            what = f"mqadmin prints no more of the message at {position}: to it a percent sign is a format"
            printer.note(f"{what}; --json and dump print all of it")
            if release.version < _GOES_ON:
                return _End(position, "there mqadmin fails")
        position += size
    return None


def rocksdb_config_to_json(line: Line, release: Release, printer: Printer) -> ExitCode:
    """Print one kind of configuration that is in RocksDB as JSON: rocksDBConfigToJson in its local mode."""
    folder, kind = _asked_config(line)
    try:
        tables = read_tables(folder, kind)
    except FileNotFoundError:
        text = f"{folder} has no database {kind}: the broker keeps this configuration elsewhere"
        return printer.empty(Reason(ReasonKind.NOT_ON_DISK, text))
    except UnsupportedFormat as error:  # the line is right, and a package is missing
        raise SetupError(str(error)) from error
    if printer.as_json:
        for table, rows in tables.items():
            for name, value in rows.items():
                printer.object("config", {"table": table, "name": name, "value": value})
        return printer.finish(Answer(), [])
    if release.version >= _NAMES_MODE:
        printer.out("Use [local mode] load rocksdb to print or export file \n")
    if line.options.get("jsonEnable", "").lower() == "false":
        for text in rows_text(tables, release):
            printer.out(text)
    else:
        printer.out(pretty_json(tables, release))
    return printer.finish(Answer(), [])


def _asked_config(line: Line) -> tuple[str, str]:
    """Return the folder and the kind that a line names; `UnsupportedFormat` of one that has a file written."""
    for name in ("namesrvAddr", "cluster", "brokerAddr", "exportFile"):
        if name in line.options:
            reason = f"rocksDBConfigToJson with {name} has a file written; -p FOLDER -t TYPE alone prints"
            raise UnsupportedFormat(reason)
    folder, kind = line.options.get("configPath"), line.options.get("configType", "")
    known = next((name for name in FOLDERS if name.lower() == kind.lower()), None)
    if not folder or known is None:
        reason = f"rocksDBConfigToJson prints what -p FOLDER and -t TYPE name; types are {', '.join(FOLDERS)}"
        raise UnsupportedFormat(reason)
    return folder, known


FILE_COMMANDS: Mapping[str, Callable[[Line, Release, Printer], ExitCode]] = {
    "dumpCompactionLog": dump_compaction_log,
    "rocksDBConfigToJson": rocksdb_config_to_json,
}
