"""
Types of options that name a place to read or to write.

No option can write into a store, not even through a link: every option that names a place to write has a type with
`is_output`, which refuses places inside any store. A directory is recognized as a store if this command reads it as
one, or by its log: segments of a CommitLog, or a directory `commitlog` with segments.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from jobs.console.process import tool_command
from jobs.launch.arguments import file_system_options
from jobs.storage import storage_for
from jobs.storage.local import real_path
from jobs.storage.locations import S3_SCHEMES, is_local, local_path, normalize_location, why_unsupported
from jobs.storage.paths import is_directory, is_link, is_regular_file, list_directory, path_exists
from rmq_formats.store import (
    COMMITLOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    STORE_KINDS,
    FileKind,
    classify,
    parse_offset_name,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_MOST_LOOKED_AT = 10_000  # files: a larger directory is left to the command to check
_KERNEL_DIRECTORIES = ("/proc", "/sys")
_WRONG_NAMES = frozenset({errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG})  # ELOOP: a link to itself
_FILE, _DIRECTORY = "a file", "a directory"
STDOUT = "-"  # standard output, for options that accept it instead of a file


def is_within(place: str, root: str) -> bool:
    """Return whether *place* is *root* or inside it, following links."""
    inner, outer = _resolve_links(place), _resolve_links(root)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _resolve_links(location: str) -> str:
    if is_local(location):
        return os.path.realpath(local_path(location))
    scheme, _, rest = normalize_location(location).partition("://")
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{rest}"


def find_enclosing_store(place: str) -> str | None:
    """Return the local store that contains *place*, following links; None if there is none."""
    if not is_local(place):
        return None
    real = Path(os.path.realpath(local_path(place)))
    for directory in (real, *real.parents):
        if _has_segments(directory / COMMITLOG_DIRECTORY):
            return str(directory)
        if _has_segments(directory):
            return str(directory.parent if directory.name == COMMITLOG_DIRECTORY else directory)
    return None


def _has_segments(directory: Path) -> bool:
    return any(parse_offset_name(name) is not None for name in _list_names(directory))


def _list_names(directory: Path) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in entries)
    except OSError as error:
        # Without permission, the command reports it, or it is a directory above the place; ELOOP is a link to itself.
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP}:
            raise


def named_places(ctx: click.Context) -> Iterator[tuple[str, "LocationType", click.Parameter]]:
    """Yield every place that a command names, with its type and parameter."""
    for param in ctx.command.params:
        if isinstance(param.type, LocationType):
            value = ctx.params.get(str(param.name))
            places = map(str, value if isinstance(value, tuple) else () if value is None else (value,))
            yield from (
                (place, param.type, param) for place in places if not (param.type.may_be_stdout and place == STDOUT)
            )


def check_places(ctx: click.Context) -> None:
    """Refuse places to write inside a store, and missing local stores and lakes, before anything starts."""
    named = list(named_places(ctx))
    for place, _, param in named:
        if is_local(place) and _is_link_to_itself(Path(local_path(place))):
            raise click.BadParameter(f"{place}: {os.strerror(errno.ELOOP)}", ctx, param)
    stores = [place for place, type_, _ in named if type_.is_guarded and not _is_above_store(place, type_, ctx)]
    for place, type_, param in named:
        if type_.is_output:
            _check_output(place, type_, stores, param, ctx)
    for place, type_, param in named:
        if type_.lacks is not None and is_local(place):
            problem = _problem(place, type_.lacks, ctx)
            if problem is not None:
                raise click.BadParameter(problem, ctx, param)


def _is_above_store(place: str, type_: "LocationType", ctx: click.Context) -> bool:
    """Return whether a place is not a store, but contains one, which the refusal of this place then names."""
    if type_.lacks is not _lacks_store or not is_local(place) or _find_inner_store(Path(local_path(place))) is None:
        return False
    return _problem(place, type_.lacks, ctx) is not None


def _check_output(
    location: str, type_: "LocationType", stores: Sequence[str], param: click.Parameter, ctx: click.Context
) -> None:
    """Refuse a place inside a store, unless this command is restoring that store there."""
    path = Path(local_path(location)) if is_local(location) else None
    links = []  # tables of a lake may be links
    if path is not None and type_.local_kind is None:
        links = [str(path / name) for name in _list_names(path) if is_link(path / name)]
    is_lake = param.name in {"lake", "findings_lake"}
    for place in (location, *links):
        store = find_enclosing_store(place)
        if store is None or (type_.makes_store and is_within(store, place)):
            store = next((one for one in stores if is_within(place, one)), None)
        if store is None:
            continue
        is_same = _resolve_links(place) == _resolve_links(store)
        reason = (
            f"{place!r} {'is' if is_same else 'is inside'} the store {store!r}. Choose a location outside the store"
        )
        raise click.BadParameter(_not_a_lake(place, store) if is_lake and is_same else reason, ctx, param)
    kind = None if path is None else _kind_of(path)
    if type_.local_kind is not None and kind not in {type_.local_kind, None}:
        raise click.BadParameter(f"{location!r} is {kind}; pass {type_.local_kind}", ctx, param)
    if type_.local_kind is None and kind == _FILE:
        wanted = "a lake is a directory of tables" if is_lake else "pass a directory"
        raise click.BadParameter(f"{location!r} is a file; {wanted}", ctx, param)
    above = (
        next((one for one in path.absolute().parents if path_exists(one) or is_link(one)), None)
        if path and not kind
        else None
    )
    if above is not None and _kind_of(above) == _FILE:
        raise click.BadParameter(f"{location!r} is below {str(above)!r}, which is a file", ctx, param)


def _kind_of(path: Path) -> str | None:
    """Describe a path in words; None if it does not exist."""
    with suppress(OSError):  # not a valid file name: the command reports it when it opens the file
        if path_exists(path):
            return _DIRECTORY if is_directory(path) else _FILE if is_regular_file(path) else "not a regular file"
    return None


def _is_link_to_itself(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:  # any other error is reported when the place is opened
        return error.errno == errno.ELOOP
    return False


# Returns the problem of a directory that must exist, as a sentence on the location that the user named.
_Lacks = Callable[[Path, str], str | None]


def _problem(location: str, lacks: _Lacks, ctx: click.Context) -> str | None:
    """Return why a command cannot read a local directory, as a sentence; None if it can."""
    is_log_elsewhere = bool(ctx.params.get("commitlog") or ctx.params.get("broker_conf"))  # then STORE may be empty
    path = Path(local_path(location))
    try:
        os.scandir(path).close()
        return None if is_log_elsewhere and lacks is _lacks_store else lacks(path, location)
    except NotADirectoryError:
        if lacks is _lacks_tables:
            return f"{location!r} is a file; a lake is a directory of tables"
        wanted = "but a store is a directory"
        if lacks is _lacks_store_and_tables:
            wanted = "but a store is a directory, and so is a lake"
        dump = f"{tool_command()} dump {quote(location)}"
        return f"{location!r} is a file, {wanted}. To print the file:\n{dump}"
    except PermissionError:
        return None  # not a wrong argument: the command reports that it has no access, with exit code 1
    except OSError as error:
        if error.errno not in _WRONG_NAMES:
            raise
        return f"{location}: {error.strerror}"


def _find_inner_store(root: Path) -> Path | None:
    return next(
        (root / name for name in sorted(_list_names(root)) if COMMITLOG_DIRECTORY in _list_names(root / name)), None
    )


def _lacks_store(root: Path, location: str) -> str | None:
    """Return a problem if none of the first files below *root* has the name of a store's or a storage tier's file."""
    if any(real_path(root).is_relative_to(place) for place in _KERNEL_DIRECTORIES):  # too many files to list
        return f"{location}: not a store root: its files are virtual files of the kernel"
    pending, looked_at = [root], 0
    while pending and looked_at < _MOST_LOOKED_AT:
        for path in pending.pop().iterdir():
            looked_at += 1
            if is_directory(path):
                pending.append(path)
            elif classify(path.relative_to(root).as_posix()).kind in STORE_KINDS | {FileKind.TIERED}:
                return None
    if pending:
        return None
    if root.name in {COMMITLOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY}:
        return f"{location} is a directory inside a store: pass {str(root.parent)!r}"
    if _lacks_tables(root, location) is None:
        return (
            f"{location!r} is a lake, not a store: pass the directory that contains commitlog, consumequeue and index"
        )
    inner = _find_inner_store(root)
    hint = "" if inner is None else f". Did you mean {str(inner)!r}?"
    return f"{location}: not a store root: it contains no commitlog, consumequeue, index or checkpoint{hint}"


def _lacks_tables(root: Path, location: str) -> str | None:
    """Return a problem if no directory below *root* is a Delta table."""
    if any(is_directory(path / "_delta_log") for path in root.iterdir()):
        return None
    if _has_segments(root / COMMITLOG_DIRECTORY):
        return _not_a_lake(location, str(root))
    return f"{location}: not a lake: it has no Delta tables"


def _not_a_lake(location: str, store: str) -> str:
    ingest = f"{tool_command()} ingest {quote(store)} --lake LAKE"
    return f"{location!r} is a broker store, not a lake. Create a lake from it with:\n{ingest}"


def _lacks_store_and_tables(root: Path, location: str) -> str | None:
    """Return a problem if *root* is neither a store nor a lake."""
    if _lacks_tables(root, location) is None or _lacks_store(root, location) is None:
        return None
    return f"{location}: neither a RocketMQ store (commitlog, consumequeue, index) nor a lake (Delta tables)"


@dataclass(frozen=True, eq=False)
class LocationType(click.ParamType[Any]):
    """A path or URI to read or write, and what `check_places` requires of it."""

    lacks: _Lacks | None = None  # without it, the place need not exist
    is_guarded: bool = False  # a store, or a lake that a store is restored from, into which nothing is written
    is_output: bool = False  # this command writes there; existing files there are from its earlier runs
    local_kind: str | None = None  # a local file (so it must not be a device) or directory: the command gets its path
    makes_store: bool = False  # the command writes a store there
    may_be_stdout: bool = False  # `-` is not a place
    takes_many: bool = False  # separated by commas, as in a broker's configuration
    name: str = "location"  # the name in messages

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - a path, or text
        """Refuse an unsupported location, and return the others unchanged."""
        if self.takes_many:
            paths = [path.strip() for path in str(value).split(",")]
            if not all(paths):
                self.fail(f"{value!r} contains an empty path", param, ctx)
            return tuple(replace(self, takes_many=False).convert(path, param, ctx) for path in paths)
        if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in os.fspath(value):
            self.fail(f"{value!r} is not a valid path", param, ctx)
        text = os.fspath(value)
        if self.local_kind is not None:
            if not is_local(text):
                self.fail(f"{text!r} is not on this machine; pass the local path of {self.local_kind}", param, ctx)
            return Path(text)
        reason = why_unsupported(text)
        if reason is not None:
            self.fail(reason, param, ctx)
        return text

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the value of a variable as it is: a path may contain blanks, at which Click splits."""
        return [rv]

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Let the shell complete a local path."""
        from click.shell_completion import CompletionItem

        del ctx, param
        return [CompletionItem(incomplete, type="dir" if self.local_kind == _DIRECTORY else "file")]


def refuse_nonempty_directory(out: str, param_hint: str = "--out") -> None:
    """Refuse a directory that is not empty, except for leftovers of a killed run, whose names begin with a dot."""
    if is_local(out):
        names = [path.name for path in list_directory(Path(local_path(out)))]
    else:
        names = []
        with suppress(FileNotFoundError):  # not there yet: it is new
            names = [info.name for info in storage_for(out, file_system_options()).list_files(out)]
    if any(not name.startswith(".") for name in names):
        reason = f"{out}: the directory is not empty; pass an empty or new directory"
        raise click.BadParameter(reason, param_hint=f"'{param_hint}'")


STORE_FILE = LocationType(is_guarded=True)
STORE = LocationType(_lacks_store, is_guarded=True)
LOG_DIRECTORIES = LocationType(lambda *_: None, is_guarded=True, takes_many=True, name="path[,path]")
LAKE = LocationType(_lacks_tables, is_guarded=True)
QUERIED_LAKE = replace(LAKE, is_guarded=False)  # the lake may contain the output file
STORE_OR_LAKE = LocationType(_lacks_store_and_tables, is_guarded=True)
CHANGED_LAKE = LocationType(_lacks_tables, is_output=True)
OUTPUT_LOCATION = LocationType(is_output=True)
OUTPUT_FILE = LocationType(is_output=True, local_kind=_FILE, name="file")
OUTPUT_FILE_OR_STDOUT = replace(OUTPUT_FILE, may_be_stdout=True)
OUTPUT_DIRECTORY = LocationType(is_output=True, local_kind=_DIRECTORY, name="directory")
NEW_STORE = LocationType(is_output=True, local_kind=_DIRECTORY, name="directory", makes_store=True)
