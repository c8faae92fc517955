"""Table snapshots; a run caches them instead of opening its tables repeatedly."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from jobs.storage import object_store
from jobs.storage.locations import is_local, join_location, local_path
from jobs.storage.model import file_exists
from jobs.storage.paths import is_directory
from jobs.storage.s3 import delta_location, delta_options

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_Mark: TypeAlias = tuple[int, int]
LOG_DIRECTORY = "_delta_log"
_COMMIT = re.compile(r"\d{20}\.json")
_MANAGED = "catalog-managed table"  # part of an error message of `deltalake`
# Attribute of a snapshot: its version, and the known transactions, for each of which `deltalake` reads the log again.
_TRANSACTIONS = "known_transactions"
_LAST_CHECKPOINT, _LARGEST_HINT = "_last_checkpoint", 64 << 20


class UnsupportedTableError(OSError):
    """A table has a feature that we cannot write."""


@contextmanager
def deltalake_errors_as_oserror(location: str, options: Mapping[str, str], failed_action: str) -> Iterator[None]:
    """Turn errors of `deltalake`, which are mostly server failures, into `OSError`."""
    try:
        yield
    except (CommitFailedError, TableNotFoundError):
        raise
    except DeltaError as error:
        reason = str(error).partition("\n")[0]
        if _MANAGED in reason:
            raise UnsupportedTableError(
                f"{location}: only its catalog can commit to this table (catalogManaged); nothing was written. "
                "Ingest into a separate lake, and copy its rows into the catalog's table (CREATE TABLE … AS SELECT)"
            ) from error
        is_explained = location in reason
        raise OSError(
            reason if is_explained else f"{location}: the Delta log cannot be {failed_action}: {reason}"
        ) from error
    except OSError as error:
        # The message of the object store that caused it.
        said = error if is_local(location) else object_store(location, options).explain_error(location, error)
        if said is not error:
            raise said from error
        if error.errno is not None or location in str(error):
            raise
        raise OSError(
            f"{location}: the Delta log cannot be {failed_action}: {error}"
        ) from error  # `deltalake` names no table


def open_delta(location: str, options: Mapping[str, str]) -> DeltaTable:
    """
    Open a table at its newest version; raise `OSError` if its log has a pipe: reading it would block forever.

    `deltalake` omits a commit whose file it cannot examine (EIO, or ESTALE of a network disk), and then silently
    returns an older version. So the versions are listed first, and the table must have the newest of them.
    """
    newest = _examine_log(Path(local_path(location)) / LOG_DIRECTORY) if is_local(location) else None
    try:
        with deltalake_errors_as_oserror(location, options, "read"):
            snapshot = DeltaTable(delta_location(location), storage_options=delta_options(location, options))
    except TableNotFoundError as error:
        if newest is not None:
            raise _hidden_commit_error(newest) from error
        raise
    except OSError:
        if newest is not None:
            _refuse_incomplete_commit(newest)
        raise
    if newest is not None and snapshot.version() < int(newest.stem):
        raise _hidden_commit_error(newest, f", and only version {snapshot.version()} could be opened")
    return snapshot


def _hidden_commit_error(newest: Path, opened: str = "") -> OSError:
    return OSError(
        f"{newest}: this commit of the table exists, but it could not be read{opened}. Check the disk or the network "
        "file system, and run the command again"
    )


def refuse_older_version(location: str, version: int, recorded: int) -> None:
    """Raise `OSError` if an older *version* of a table was opened than the one that a finished run *recorded*."""
    if version < recorded:
        raise OSError(
            f"{location}: version {version} of this table was opened, but according to `runs` a run has completed "
            f"version {recorded}, so rows are missing. If {LOG_DIRECTORY} is on a network file system, run the command "
            "again; otherwise, restore the table from a backup"
        )


def _examine_log(log: Path) -> Path | None:
    """Return the newest commit of a local log; raise `OSError` for files that `deltalake` does not expect."""
    newest = ""
    try:
        with os.scandir(log) as entries:
            for entry in entries:
                if not (entry.is_file() or entry.is_dir()):
                    raise OSError(
                        f"{entry.path}: not a regular file, so the Delta log cannot be read. Move it out of "
                        f"{LOG_DIRECTORY}"
                    )
                if entry.name == _LAST_CHECKPOINT:
                    _refuse_large_hint(entry)
                    _refuse_shortened_checkpoint(Path(entry.path))
                if _COMMIT.fullmatch(entry.name):
                    newest = max(newest, entry.name)
    except (FileNotFoundError, NotADirectoryError):  # no table: DeltaTable raises TableNotFoundError
        return None
    if not newest:
        return None
    if (log / newest).stat().st_size == 0:  # `deltalake` would take it for a commit without actions
        _refuse_incomplete_commit(log / newest)
    return log / newest


def _refuse_large_hint(entry: "os.DirEntry[str]") -> None:
    """Raise `OSError` if the hint does not fit into memory: `deltalake` would abort the process."""
    if entry.stat().st_size > _LARGEST_HINT:
        raise OSError(
            f"{entry.path}: larger than {_LARGEST_HINT:,} bytes, so it is not a valid checkpoint hint. Delete it; "
            "Delta does not require it"
        )


def _refuse_incomplete_commit(newest: Path) -> None:
    """Raise `OSError` with advice if the newest commit of a log does not consist of whole lines of JSON."""
    data = newest.read_bytes()
    try:
        is_complete = bool(data) and all(isinstance(json.loads(line), dict) for line in data.splitlines())
    except (ValueError, RecursionError):
        is_complete = False
    if is_complete:
        return
    problem = f"{newest}: this newest commit of the table is {'incomplete' if data else 'empty'}"
    if int(newest.stem) == 0:
        raise OSError(f"{problem}, and without its first commit a table cannot be read. Restore it from a backup")
    raise OSError(
        f"{problem}. If the power failed before its bytes were on the disk, delete the file: the command that was "
        f"interrupted commits again. Otherwise, restore the file from a backup. To delete it: rm {quote(str(newest))}"
    )


def _refuse_shortened_checkpoint(hint: Path) -> None:
    """Raise `OSError` if a checkpoint lacks files that its *hint* counts: `deltalake` would omit their rows."""
    from pyarrow import parquet  # lazy import: a table with few commits has no checkpoint

    try:
        known = json.loads(hint.read_bytes())
        path = hint.with_name(f"{known['version']:020d}.checkpoint.parquet")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # Delta ignores an invalid hint
        return
    try:
        with parquet.ParquetFile(path) as checkpoint:
            paths = checkpoint.read(["add.path"]).flatten().column(0)
    except FileNotFoundError:  # replaced in the meantime, or a checkpoint of several files
        return
    except (pa.ArrowException, OSError, IndexError) as error:
        raise OSError(
            f"{path}: this checkpoint cannot be read: {str(error).partition(chr(10))[0]}. If {hint.parent} still has "
            "all commits since an earlier checkpoint, or since the first one, delete this file and "
            f"{hint.name}; otherwise, restore the table from a backup"
        ) from error
    found = len(paths) - paths.null_count
    expected = known.get("numOfAddFiles", found)  # other engines may omit it
    if found != expected:
        raise OSError(
            f"{path}: this checkpoint lists {found:,} files of the table, but {hint.name} states {expected}. One "
            "of the two is damaged. Restore the table from a backup"
        )


def refuse_files_elsewhere(snapshot: DeltaTable, paths: Iterable[str]) -> None:
    """Raise `OSError` if Delta's log names a file outside the table."""
    for path in paths:
        name = unquote(path)  # the engine of queries does the same
        if name.startswith("/") or ":/" in name or ".." in name.split("/"):
            raise OSError(f"{snapshot.table_uri}: the Delta log references a file outside the table: {path}")


def refuse_wrong_row_counts(metadata: "FileMetaData", groups: Iterable[int] | None = None) -> None:
    """
    Raise `pa.ArrowInvalid` if a footer states other numbers of rows for row *groups* than a column has values.

    Readers trust these numbers: they allocate memory for all rows, or omit rows. Columns of lists do not count.
    """
    columns = (at for at in range(metadata.num_columns) if metadata.schema.column(at).max_repetition_level == 0)
    column = next(columns, None)
    for number in range(metadata.num_row_groups) if groups is None else groups:
        group = metadata.row_group(number)
        values = group.num_rows if column is None else group.column(column).num_values
        if group.num_rows != values:
            text = f"its footer states {group.num_rows:,} rows in row group {number}, which has {values:,}"
            raise pa.ArrowInvalid(text)


def read_newest_transaction(snapshot: DeltaTable, app: str) -> int:
    """Return the newest transaction of *app* on a table, or 0; raise `OSError` if the log cannot be read."""
    version, found = vars(snapshot).get(_TRANSACTIONS, (-1, {}))
    if version != snapshot.version():
        found = dict[str, int]()
        vars(snapshot)[_TRANSACTIONS] = snapshot.version(), found
    if app not in found:
        found[app] = _replay_transaction(snapshot, app)
    return int(found[app])


def _replay_transaction(snapshot: DeltaTable, app: str) -> int:
    try:
        return snapshot.transaction_version(app) or 0
    except (DeltaError, OSError) as error:  # neither error names the table
        location = unquote(snapshot.table_uri).removeprefix("file://").rstrip("/")
        reason = str(error).partition("\n")[0]
        raise OSError(f"{location}: the Delta log cannot be read: {reason}") from error


# The newest snapshot of each table in this thread, None if an object store has no such table. On a local disk, with the
# mark of the commit of its version, which shows whether a table was recreated at the same location. Only a commit of
# this thread changes a snapshot.
_cached: ContextVar[dict[str, tuple[DeltaTable | None, _Mark | None]] | None] = ContextVar("cached", default=None)


@contextmanager
def cache_snapshots() -> Iterator[None]:
    """Cache the snapshots of tables that this thread opens until the outermost block ends."""
    if _cached.get() is not None:
        yield
        return
    before = _cached.set({})
    try:
        yield
    finally:
        _cached.reset(before)


def find_newest_snapshot(
    location: str, options: Mapping[str, str], open_snapshot: Callable[[], DeltaTable]
) -> DeltaTable:
    """Return the newest snapshot of a table from the cache; else call *open_snapshot*."""
    cached = _cached.get()
    if cached is None:
        return open_snapshot()
    if is_local(location) and not is_directory(Path(local_path(location)) / LOG_DIRECTORY):
        raise TableNotFoundError(location)
    if location not in cached or not _is_newest(location, options, *cached[location]):
        cached.pop(location, None)
        _cache(location, _open_or_none(open_snapshot))
    snapshot, _ = cached[location]
    if snapshot is None:
        raise TableNotFoundError(location)
    return snapshot


def _open_or_none(open_snapshot: Callable[[], DeltaTable]) -> DeltaTable | None:
    try:
        return open_snapshot()
    except TableNotFoundError:
        return None


def _is_newest(location: str, options: Mapping[str, str], snapshot: DeltaTable | None, mark: _Mark | None) -> bool:
    """
    Return whether a cached snapshot is still the newest one.

    On an object store, this takes one request or two, and opening a table takes twenty or more.
    """
    if is_local(location):
        table = Path(local_path(location))
        version = snapshot.version() if snapshot is not None else 0
        return mark is not None and mark == _mark(table, version) and _mark(table, version + 1) is None
    storage = object_store(location, options)

    def has_commit(version: int) -> bool:
        return file_exists(storage.open, join_location(location, LOG_DIRECTORY, f"{version:020d}.json"))

    if snapshot is None:
        return not has_commit(0)
    # A table that was recreated has fewer versions, or more.
    return has_commit(snapshot.version()) and not has_commit(snapshot.version() + 1)


def update_snapshot(location: str, snapshot: DeltaTable, transactions: Mapping[str, int]) -> None:
    """Update a table's newest snapshot after a commit on it with these transactions."""
    before = snapshot.version()
    known = vars(snapshot).get(_TRANSACTIONS)
    snapshot.update_incremental()
    if known is not None and known[0] == before == snapshot.version() - 1:
        vars(snapshot)[_TRANSACTIONS] = before + 1, {**known[1], **transactions}
    _cache(location, snapshot)


def _cache(location: str, snapshot: DeltaTable | None) -> None:
    cached = _cached.get()
    if cached is None:
        return
    mark = None
    if snapshot is not None and is_local(location):
        mark = _mark(Path(local_path(location)), snapshot.version())
    cached[location] = snapshot, mark


def _mark(table: Path, version: int) -> _Mark | None:
    """Return the identity of a commit's file among files with the same name; None if it does not exist."""
    try:
        status = (table / LOG_DIRECTORY / f"{version:020d}.json").stat()
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
