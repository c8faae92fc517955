"""
Types of options that name a place to read or to write.

No option can write into a store, not even through a link: every option that names a place to write has a type with
`is_output`, which refuses places inside any store. A directory is recognised as a store if this command reads it as
one, or by its log: segments of a CommitLog, or a directory `commitlog` with segments.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import click

from jobs.console.process import tool_command
from jobs.launch.arguments import file_system_options
from jobs.storage import storage_for
from jobs.storage.locations import S3_SCHEMES, is_local, local_path, normalise_location, why_unsupported
from rmq_formats.store import (
    COMMITLOG_FOLDER,
    CONSUME_QUEUE_FOLDER,
    INDEX_FOLDER,
    FileKind,
    classify,
    parse_offset_name,
)

# What a command names, in click's context.
NAMED_PLACES_KEY = f"{__name__}.places"
_STORES, _OUTPUTS = f"{__name__}.stores", f"{__name__}.outputs"
_EXPECTED = f"{__name__}.expected"  # location, its check, its parameter: must be there when the verb runs
_IN_NO_STORE = frozenset({FileKind.UNKNOWN, FileKind.CONFIG, FileKind.CONFIG_BACKUP})  # also found outside stores
_OUTSIDE = "Choose a location outside the store"
_MOST_LOOKED_AT = 10_000  # files: a larger directory is left to the verb to check


def _guard(value: str, param: click.Parameter | None, ctx: click.Context | None, *, makes_store: bool = False) -> None:
    """Refuse an output place inside a store; a verb that *makes_store* may have left a part of its own store there."""
    store = find_enclosing_store(value)
    if store is not None and not (makes_store and is_within(store, value)):
        raise _refused(value, param, ctx, store)
    if ctx is not None:
        ctx.meta.setdefault(_OUTPUTS, []).append((value, param))
        _compare_places(ctx)


def _compare_places(ctx: click.Context) -> None:
    """Refuse an output place inside a store that this command reads, in whichever order the two are parsed."""
    for value, param in ctx.meta.get(_OUTPUTS, ()):
        for store in ctx.meta.get(_STORES, ()):
            if is_within(value, store):
                raise _refused(value, param, ctx, store)


def _refused(value: str, param: click.Parameter | None, ctx: click.Context | None, store: str) -> click.BadParameter:
    is_same = _real(value) == _real(store)
    if _is_lake(param) and is_same:
        return click.BadParameter(_not_a_lake(value, store), ctx, param)
    where = "is" if is_same else "is inside"
    reason = f"{value!r} {where} the store {store!r}. {_OUTSIDE}"
    return click.BadParameter(reason, ctx, param)


def is_within(place: str, root: str) -> bool:
    """Return whether *place* is *root* or inside it, following links."""
    inner, outer = _real(place), _real(root)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _real(location: str) -> str:
    if is_local(location):
        return os.path.realpath(local_path(location))
    scheme, _, rest = normalise_location(location).partition("://")
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{rest}"


def find_enclosing_store(place: str) -> str | None:
    """Return the local store that contains *place*, following links; None if there is none."""
    if not is_local(place):
        return None
    real = Path(os.path.realpath(local_path(place)))
    for directory in (real, *real.parents):
        if _has_segments(directory / COMMITLOG_FOLDER):
            return str(directory)
        if _has_segments(directory):
            return str(directory.parent if directory.name == COMMITLOG_FOLDER else directory)
    return None


def _has_segments(directory: Path) -> bool:
    return any(parse_offset_name(name) is not None for name in _names(directory))


def _names(directory: Path) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in entries)
    except OSError:  # not a directory, or no permission
        return


# Returns the problem of a directory that must exist, as a sentence on the location that the user named.
_Lacks = Callable[[Path, str], str | None]


def check_places(ctx: click.Context) -> None:
    """Refuse missing local stores and lakes before anything starts or is written."""
    is_log_elsewhere = bool(ctx.params.get("commitlog") or ctx.params.get("broker_conf"))  # then STORE may be empty
    for location, lacks, param in ctx.meta.pop(_EXPECTED, []):
        path = Path(local_path(location))
        try:
            os.scandir(path).close()
            problem = None if is_log_elsewhere and lacks is _lacks_store else lacks(path, location)
        except NotADirectoryError:
            kind = "; a lake is a directory of tables"
            if lacks is not _lacks_tables:
                kind = f", but a store is a directory. To print the file:\n{tool_command()} dump {quote(location)}"
            problem = f"{location!r} is a file{kind}"
        except PermissionError:
            continue  # not a wrong argument: the verb says that it has no access, with exit code 1
        except OSError as error:  # mostly ENOENT; it becomes the refusal
            problem = f"{location}: {error.strerror or error}"
        if problem is not None:
            raise click.BadParameter(problem, ctx, param)


def skip_place_check(option: str, ctx: click.Context) -> None:
    """Drop the demands on the place that an option names, because another option replaces it."""
    ctx.meta[_EXPECTED] = [one for one in ctx.meta.get(_EXPECTED, ()) if one[2] is None or one[2].name != option]


def _lacks_store(root: Path, location: str) -> str | None:
    """Return a problem if none of the first files below *root* has a name that a broker would give it."""
    pending, looked_at = [root], 0
    while pending and looked_at < _MOST_LOOKED_AT:
        for path in pending.pop().iterdir():
            looked_at += 1
            if path.is_dir():
                pending.append(path)
            elif classify(path.relative_to(root).as_posix()).kind not in _IN_NO_STORE:
                return None
    if pending:
        return None
    if root.name in {COMMITLOG_FOLDER, CONSUME_QUEUE_FOLDER, INDEX_FOLDER}:
        return f"{location}: not a store root, but a folder of the store {str(root.parent)!r}"
    if _lacks_tables(root, location) is None:
        return (
            f"{location!r} is a lake, not a store: pass the directory that contains commitlog, consumequeue and index"
        )
    inner = next((path for path in sorted(root.iterdir()) if (path / COMMITLOG_FOLDER).is_dir()), None)
    hint = "" if inner is None else f". Did you mean {str(inner)!r}?"
    return f"{location}: not a store root: it contains no commitlog, consumequeue, index or checkpoint{hint}"


def _lacks_tables(root: Path, location: str) -> str | None:
    """Return a problem if no directory below *root* is a Delta table."""
    if any((path / "_delta_log").is_dir() for path in root.iterdir()):
        return None
    if _has_segments(root / COMMITLOG_FOLDER):
        return _not_a_lake(location, str(root))
    return f"{location}: not a lake: it has no Delta tables"


def _not_a_lake(location: str, store: str) -> str:
    ingest = f"{tool_command()} ingest {quote(store)} --lake LAKE"
    return f"{location!r} is a broker store, not a lake. Create a lake from it with:\n{ingest}"


def _lacks_both(root: Path, location: str) -> str | None:
    if _lacks_tables(root, location) is None or _lacks_store(root, location) is None:
        return None
    return f"{location}: neither a RocketMQ store (commitlog, consumequeue, index) nor a lake (Delta tables)"


class LocationType(click.ParamType[str]):
    """A path or URI to read or write; an unsupported one is refused before anything starts."""

    name = "location"

    def __init__(
        self,
        lacks: _Lacks | None = None,
        *,
        is_guarded: bool = False,
        is_writable: bool = False,
        is_output: bool = False,
    ) -> None:
        """
        Set the requirements for the place.

        Without *lacks*, the place need not exist. *is_guarded*: a store, or a lake that a store is restored from, into
        which nothing is written. *is_writable*: files can be written at such a place. *is_output*: this command writes
        there; existing files there are from its earlier runs.
        """
        self._lacks = lacks
        self._is_writable = is_writable or is_output
        self.is_guarded = is_guarded
        self.is_output = is_output

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the location, and return it unchanged."""
        text = _text(self, value, param, ctx)
        reason = why_unsupported(text, to_write=self._is_writable)
        if reason is not None:
            self.fail(reason, param, ctx)
        if ctx is not None:
            ctx.meta.setdefault(NAMED_PLACES_KEY, []).append(text)
            if self._lacks is not None and is_local(text):
                ctx.meta.setdefault(_EXPECTED, []).append((text, self._lacks, param))
            if self.is_guarded:
                ctx.meta.setdefault(_STORES, []).append(text)
                _compare_places(ctx)
        if self.is_output:
            path = Path(local_path(text)) if is_local(text) else None
            links = [] if path is None else [str(path / name) for name in _names(path) if (path / name).is_symlink()]
            for place in (text, *links):  # tables of a lake may be in other places
                _guard(place, param, ctx)
            if _kind_of(text) == "a file":
                wanted = "a lake is a directory of tables" if _is_lake(param) else "pass a directory"
                self.fail(f"{text!r} is a file; {wanted}", param, ctx)
        return text


def _kind_of(location: str) -> str | None:
    """Describe a local path in words (for example "a file"); None if it does not exist."""
    with suppress(OSError, ValueError):  # not a valid file name: the verb reports it
        path = Path(local_path(location)) if is_local(location) else None
        if path is not None and path.exists():
            return "a directory" if path.is_dir() else "a file" if path.is_file() else "not a regular file"
    return None


def _is_lake(param: click.Parameter | None) -> bool:
    return param is not None and param.name in {"lake", "findings_lake"}


class OutputPathType(click.Path):
    """A local path to write: a directory, or a file that is replaced (so it must not be a device)."""

    is_output = True

    def __init__(self, *, is_file: bool = False, makes_store: bool = False) -> None:
        super().__init__(file_okay=is_file, dir_okay=not is_file, path_type=Path)
        self._makes_store = makes_store

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Check and return the path; a URI is refused."""
        text = _text(self, value, param, ctx)
        wanted = "a directory" if self.dir_okay else "a file"
        if not is_local(text):
            self.fail(f"{text}: is not on this machine; pass the local path of {wanted}", param, ctx)
        _guard(text, param, ctx, makes_store=self._makes_store)
        kind = _kind_of(text)
        if kind not in {wanted, None}:
            self.fail(f"{text}: is {kind}; pass {wanted}", param, ctx)
        return super().convert(text, param, ctx)


class CommaSeparatedPathsType(click.ParamType[tuple[str, ...]]):
    """Paths or URIs of parts of a store, separated by commas, as in a broker's configuration."""

    name = "path[,path]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the paths in the given order."""
        given = value if isinstance(value, tuple | list) else str(value).split(",")
        paths = tuple(str(path).strip() for path in given)
        if not all(paths):
            self.fail(f"{value!r} contains an empty path", param, ctx)
        return tuple(LOG_DIRECTORY.convert(path, param, ctx) for path in paths)


def _text(type_: click.ParamType[Any], value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
    if not isinstance(value, str | os.PathLike):
        type_.fail(f"{value!r} is not a valid path", param, ctx)
    text = os.fspath(value)
    if not text or "\0" in text:
        type_.fail(f"{value!r} is not a valid path", param, ctx)
    return text


def refuse_nonempty_directory(out: str, param_hint: str = "--out") -> None:
    """Refuse a directory that is not empty, except for leftovers of a killed run, whose names begin with a dot."""
    if is_local(out):
        names = list(_names(Path(local_path(out))))
    else:
        names = []
        with suppress(FileNotFoundError):  # not there yet: it is new
            names = [info.name for info in storage_for(out, file_system_options()).list_files(out)]
    if any(not name.startswith(".") for name in names):
        reason = f"{out}: the directory is not empty; pass an empty or new directory"
        raise click.BadParameter(reason, param_hint=f"'{param_hint}'")


STORE_FILE = LocationType(is_guarded=True)
STORE = LocationType(_lacks_store, is_guarded=True)
LOG_DIRECTORY = LocationType(lambda *_: None, is_guarded=True)
LAKE = LocationType(_lacks_tables, is_guarded=True)
STORE_OR_LAKE = LocationType(_lacks_both, is_guarded=True)
# The answer may be written into a folder of it; a lake is only at places where one can be written.
QUERIED_LAKE = LocationType(_lacks_tables, is_writable=True)
CHANGED_LAKE = LocationType(_lacks_tables, is_output=True)
OUTPUT_LOCATION = LocationType(is_output=True)
OUTPUT_FILE = OutputPathType(is_file=True)
OUTPUT_DIRECTORY = OutputPathType()
NEW_STORE = OutputPathType(makes_store=True)
