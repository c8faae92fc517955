"""
Types of options that name a place to read or to write.

Nothing is written into a store, by no option, through no link: every option that names a place to write has a type that
derives from `Output`, and that type refuses a place in any store. A store is known as the one that this command reads,
and by its log: a directory with the segments of a CommitLog, or with a `commitlog` that has them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from jobs.storage.locations import S3_SCHEMES, is_local, local_path, normalise, refusal
from rmq_formats.store import COMMITLOG_FOLDER, offset_of_name

_STORES, _OUTPUTS = f"{__name__}.stores", f"{__name__}.outputs"  # that a command names, in click's context


class Output:
    """The base of each type of a place to write: it refuses places in a store."""

    makes_store = False  # what is written there is a store: one that it has begun may be there already

    def guard(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> None:
        """Refuse a place in a store."""
        store = store_around(value)
        if store is not None and not (self.makes_store and is_within(store, value)):
            _refuse(value, param, ctx, store)
        if ctx is not None:
            ctx.meta.setdefault(_OUTPUTS, []).append((value, param))
            for store in ctx.meta.get(_STORES, []):
                _refuse(value, param, ctx, store if is_within(value, store) else None)


def note_store(store: str, ctx: click.Context | None) -> None:
    """Refuse what this command would write into *store*, whichever of the two is named first."""
    if ctx is None:
        return
    ctx.meta.setdefault(_STORES, []).append(store)
    for value, param in ctx.meta.get(_OUTPUTS, []):
        _refuse(value, param, ctx, store if is_within(value, store) else None)


def _refuse(value: str, param: click.Parameter | None, ctx: click.Context | None, store: str | None) -> None:
    if store is not None:
        reason = f"{value} is in the store {store}: nothing is written into a store. Name a place outside of it"
        raise click.BadParameter(reason, ctx, param)


def is_within(place: str, root: str) -> bool:
    """Return whether *place* is *root* or in it, links followed."""
    inner, outer = _real(place), _real(root)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _real(location: str) -> str:
    if is_local(location):
        return os.path.realpath(local_path(location))
    scheme, _, rest = normalise(location).partition("://")
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{rest}"


def store_around(place: str) -> str | None:
    """Return the store of this machine that *place* is in, links followed; None when it is in none."""
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
    return any(offset_of_name(name) is not None for name in _names(directory))


def _names(directory: Path) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in entries)
    except OSError:  # it is none, or nobody may look
        return


class LocationType(click.ParamType[str]):
    """A path or a URI to read; one that no part of the program can reach is refused before anything starts."""

    name = "location"
    to_write = False

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is."""
        text = _text(self, value, param, ctx)
        reason = refusal(text, to_write=self.to_write)
        if reason is not None:
            self.fail(reason, param, ctx)
        return text

    def refuse_file(self, location: str, param: click.Parameter | None, ctx: click.Context | None) -> None:
        """Refuse a file of this machine where a directory is meant."""
        if _is_file(location):
            kind = "a lake is a directory with tables" if _is_lake(param) else "name a directory"
            self.fail(f"{location} is a file: {kind}", param, ctx)


def _is_file(location: str) -> bool:
    with suppress(OSError, ValueError):  # a text that can be no name: of what is not there, the verb says so
        return is_local(location) and Path(local_path(location)).is_file()
    return False


def _is_lake(param: click.Parameter | None) -> bool:
    return param is not None and param.name == "lake"


class StoreType(LocationType):
    """The place of a store, or of a part of one: nothing is written there."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is."""
        location = super().convert(value, param, ctx)
        note_store(location, ctx)
        return location


class LakeType(StoreType):
    """The place of a lake that is only read."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is."""
        location = super().convert(value, param, ctx)
        self.refuse_file(location, param, ctx)
        return location


class OutputLocationType(Output, LocationType):
    """A path or a URI to write: files that are there are ours."""

    to_write = True

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is."""
        location = super().convert(value, param, ctx)
        for place in (location, *_links_in(location)):
            self.guard(place, param, ctx)
        self.refuse_file(location, param, ctx)
        return location


def _links_in(location: str) -> Iterator[str]:
    """Yield the links in a directory of this machine: tables of a lake may lie elsewhere."""
    if is_local(location):
        path = Path(local_path(location))
        yield from (str(path / name) for name in _names(path) if (path / name).is_symlink())


class _OutputPathType(Output, click.Path):
    """A path of this machine that something is written to."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; a URI would be taken for one."""
        text = _text(self, value, param, ctx)
        if not is_local(text):
            kind = "directory" if self.dir_okay else "file"
            self.fail(f"{text}: name a {kind} of this machine", param, ctx)
        self.guard(text, param, ctx)
        return super().convert(text, param, ctx)


class OutputFileType(_OutputPathType):
    """A file of this machine that will be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; what is there is replaced, and no device of the system must be."""
        path = super().convert(value, param, ctx)
        place = Path(os.fsdecode(path))
        if place.exists() and not place.is_file():
            self.fail(f"{place} is no regular file: name a file", param, ctx)
        return path


class OutputDirectoryType(_OutputPathType):
    """A directory of this machine that files will be written into."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)


class PathListType(click.ParamType[tuple[str, ...]]):
    """Parts of a store: paths or URIs, separated by commas as in a broker's own configuration."""

    name = "path[,path]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the paths in the order given."""
        given = value if isinstance(value, tuple | list) else str(value).split(",")
        paths = tuple(str(path).strip() for path in given)
        if not all(paths):
            self.fail(f"{value!r} holds an empty path", param, ctx)
        return tuple(STORED.convert(path, param, ctx) for path in paths)


def _text(type_: click.ParamType[Any], value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
    """Return a path as text; a configuration file may give anything."""
    if not isinstance(value, str | os.PathLike):
        type_.fail(f"{value!r} is no path", param, ctx)
    text = os.fspath(value)
    if not text or "\0" in text:
        type_.fail(f"{value!r} is no path", param, ctx)
    return text


class NewStoreType(OutputDirectoryType):
    """A directory of this machine that a store will be made in."""

    makes_store = True


STORED = StoreType()
LAKE = LakeType()
WRITTEN = OutputLocationType()
OUTPUT_FILE = OutputFileType()
OUTPUT_DIRECTORY = OutputDirectoryType()
NEW_STORE = NewStoreType()
