"""Table snapshots; a process that follows a store caches and updates them instead of opening tables repeatedly."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from jobs.storage import object_store_error
from jobs.storage.locations import is_local, local_path
from jobs.storage.s3 import delta_location, delta_options

_Mark: TypeAlias = tuple[int, int]
_LOG = "_delta_log"


def open_delta(location: str, options: Mapping[str, str]) -> DeltaTable:
    """Open a table at its newest version; raise `OSError` if its log has a pipe: reading it would block forever."""
    if is_local(location):
        # No table: DeltaTable raises TableNotFoundError.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(Path(local_path(location)) / _LOG) as entries:
            for entry in entries:
                if not (entry.is_file() or entry.is_dir()):
                    raise OSError(
                        f"{entry.path}: not a regular file, so the Delta log cannot be read. Move it out of {_LOG}"
                    )
    try:
        return DeltaTable(delta_location(location), storage_options=delta_options(location, options))
    except TableNotFoundError:
        raise
    except (DeltaError, OSError) as error:
        said = object_store_error(location, options, error) if isinstance(error, OSError) else error
        if said is not error:
            raise said from error
        if location in str(error):
            raise
        raise type(error)(f"{location}: {error}") from error


def read_newest_transaction(snapshot: DeltaTable, app: str) -> int:
    """Return the newest transaction of *app* on a table, or 0; raise `OSError` if the log cannot be read."""
    try:
        return snapshot.transaction_version(app) or 0
    except (DeltaError, OSError) as error:  # both name no table
        location = unquote(snapshot.table_uri).removeprefix("file://").rstrip("/")
        reason = str(error).partition("\n")[0]
        raise OSError(f"{location}: the Delta log cannot be read: {reason}") from error


class Snapshots:
    """Cached snapshots by table: shared ones for reading, and separate ones for changes."""

    def __init__(self) -> None:
        # By table, and whether its caller may change it: a snapshot, its version, and the mark of that version's
        # commit, by which a table that was recreated at the same location is recognised.
        self._cached: dict[tuple[Path, bool], tuple[DeltaTable, int, _Mark | None]] = {}

    def newest(self, table: Path, opened: Callable[[], DeltaTable], *, own: bool) -> DeltaTable:
        """
        Return the newest snapshot of a table; if none is cached, it is *opened*.

        A shared snapshot stays unchanged until `refresh`. A caller's *own* snapshot may change when the next caller
        asks for one.
        """
        snapshot, version, mark = self._cached.get((table, own), (None, 0, None))
        is_of_table = mark is not None and mark == _mark(table, version)
        if snapshot is None or not is_of_table or not (own or _mark(table, version + 1) is None):
            snapshot = opened()
        elif own and (_mark(table, snapshot.version()) is None or _mark(table, snapshot.version() + 1) is not None):
            snapshot.update_incremental()
        self._cache(table, snapshot, own=own)
        return snapshot

    def _cache(self, table: Path, snapshot: DeltaTable, *, own: bool) -> None:
        version = snapshot.version()
        self._cached[table, own] = snapshot, version, _mark(table, version)

    def refresh(self) -> None:
        """Update the shared snapshots; call this when no caller uses one."""
        for (table, own), (snapshot, version, mark) in list(self._cached.items()):
            is_of_table = mark is not None and mark == _mark(table, version)
            if own or (is_of_table and _mark(table, version + 1) is None):
                continue
            del self._cached[table, own]
            with suppress(DeltaError, OSError):  # the next caller that opens it gets the error
                if is_of_table:
                    snapshot.update_incremental()
                    self._cache(table, snapshot, own=False)


_kept: ContextVar[Snapshots | None] = ContextVar("kept", default=None)  # of this thread


@contextmanager
def cache_snapshots() -> Iterator[Snapshots]:
    """Cache the snapshots of tables that this thread opens until the outermost block ends."""
    kept = _kept.get()
    if kept is not None:
        yield kept
        return
    before = _kept.set(kept := Snapshots())
    try:
        yield kept
    finally:
        _kept.reset(before)


def newest_snapshot(location: str, opened: Callable[[], DeltaTable], *, own: bool) -> DeltaTable:
    """Return the newest snapshot of a table from the cache, shared or the caller's *own*; else it is *opened*."""
    kept = _kept.get()
    if kept is None or not is_local(location):
        return opened()
    table = Path(local_path(location))
    if not (table / _LOG).is_dir():
        raise TableNotFoundError(location)
    return kept.newest(table, opened, own=own)


def _mark(table: Path, version: int) -> _Mark | None:
    """Return the identity of a commit's file among files with the same name; None if it does not exist."""
    try:
        status = (table / _LOG / f"{version:020d}.json").stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def rows_without_timestamps(stream: object) -> list[dict[str, Any]]:
    """
    Return a stream's rows as dictionaries without its timestamps, whose milliseconds have their own columns.

    For timestamps, Arrow imports pandas to determine time zones, and to check whether an object is a data frame.
    """
    table = pa.RecordBatchReader.from_stream(stream).read_all()
    names = [field.name for field in table.schema if not pa.types.is_timestamp(field.type)]
    rows: list[dict[str, Any]] = table.select(names).to_pylist()
    return rows
