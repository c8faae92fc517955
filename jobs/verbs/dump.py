"""`dump`: the contents of any single file of a store, each line with its offset, and how the file ends."""

import json
import sys
from collections.abc import Iterator

import click

from jobs.command.configuration import config_option
from jobs.command.options import (
    NOT_NEGATIVE,
    examples,
    flag,
    hash_slots_option,
    index_num_option,
    json_option,
    option,
)
from jobs.command.places import STORED
from jobs.console.exit_codes import ExitCode, worst
from jobs.console.log import say
from jobs.dump.file import DumpFile, DumpRequest, Item, open_file
from jobs.dump.kinds import NAMES, items_of, recognise
from rmq_formats.errors import FormatError
from rmq_formats.store import FileKind


@click.command(
    epilog=examples(
        "dump store/commitlog/00000000000000000000",
        "dump --from 16626 --limit 1 --fields store/commitlog/00000000000000000000",
        """dump --json store/dledger-n0/data/00000000000000016384 | jq 'select(.kind == "record") | .topic'""",
        "dump store/index/20251120010000000 --chain 'Orders#4711'",
        "dump store/checkpoint",
        exit_codes="0 clean · 1 a file cannot be read · 2 usage · 3 something in a file is damaged",
    )
)
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=STORED)
@option("--from start", "N", "Begin at this offset.", NOT_NEGATIVE, default=0)
@option("--limit", "N", "Print at most N items of each file.", NOT_NEGATIVE)
@flag("--fields", "Name every byte, one line per field.")
@option("--chain", "KEY|SLOT", "For an index file: print the entries of one slot, newest first. KEY is topic#key.")
@hash_slots_option
@index_num_option
@option("--as named", None, "The kind of the files, if it is not recognised.", click.Choice(tuple(NAMES)))
@json_option
@config_option
def dump(  # noqa: PLR0913 - one argument an option
    *,
    files: tuple[str, ...],
    start: int,
    limit: int | None,
    fields: bool,
    chain: str | None,
    hash_slots: int | None,
    index_num: int | None,
    named: str | None,
    as_json: bool,
) -> ExitCode:
    """
    Print the contents of single files of a store, each line with its offset, and how each file ends.

    The kind of a file is recognised from its path in a store, or from its first bytes. Offsets are physical
    in a log (its file's name is the offset of the first byte), otherwise positions in the file.
    """
    request = DumpRequest(start, limit, as_json, fields and not as_json, chain, hash_slots, index_num)
    kind = NAMES[named] if named else None
    return worst(_dump(location, kind, request) for location in files)


def _dump(location: str, kind: FileKind | None, request: DumpRequest) -> ExitCode:
    write = _json_lines if request.as_json else _text_lines
    try:
        with open_file(location) as file:
            known = kind or recognise(file)
            is_damaged = False
            if not request.as_json:
                _print(f"# {location}: {known}, {file.size} bytes")
            for item in items_of(file, known, request):
                is_damaged |= item.is_damage
                for line in write(item, location):
                    _print(line)
            is_damaged |= _unreadable(file, as_json=request.as_json)
            return ExitCode.DAMAGE if is_damaged else ExitCode.CLEAN
    except FormatError as error:
        return _failed(str(error.in_file(location)))
    except OSError as error:  # any: reported, exit code 1, and the other files are dumped
        return _failed(f"{location}: {error.strerror or error}")


def _failed(message: str) -> ExitCode:
    sys.stdout.flush()
    say(f"rmq-lake: {message}")
    return ExitCode.FAILED


def _unreadable(file: DumpFile, *, as_json: bool) -> bool:
    """Name the places that the storage refused to read, shown as zeros; return whether there was one."""
    for place in file.unreadable:
        text = f"{place.size} bytes cannot be read at position {place.position}: {place.reason}"
        values = {"file": file.location, "kind": "unreadable", **place._asdict()}
        _print(json.dumps(values) if as_json else f"# UNREADABLE {text}")
    return bool(file.unreadable)


def _text_lines(item: Item, location: str) -> Iterator[str]:
    del location
    kind = item.kind.upper() if item.is_damage and item.kind != "record" else item.kind
    yield f"{item.offset:>20}  {kind:<9} {item.size:>10}  {item.text}".rstrip()
    for field in item.fields:
        yield f"{field.offset:>20}      {field.name:<28} {field.text}".rstrip()


def _json_lines(item: Item, location: str) -> Iterator[str]:
    values: dict[str, object] = {"file": location, "offset": item.offset, "size": item.size, "kind": item.kind}
    yield json.dumps(values | dict(item.values), ensure_ascii=False)


def _print(line: str) -> None:
    # Topics and bodies may hold what no UTF-8 can: lone surrogates never, file names perhaps.
    sys.stdout.write(line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
