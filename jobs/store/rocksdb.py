"""
Consistent snapshots of a store's RocksDB directory, never opened in place.

Even a reader writes into a database's directory (its options, a log). So a copy is created elsewhere: links to the
table files, which never change, and copies of files that the broker may still write: the manifest, and the write-ahead
log, whose rows belong to the database. Logs are copied before the manifest that names their tables, so missing rows are
newer, not lost. If the broker merges a table away meanwhile, the attempt fails, and the next one uses the new tables.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self
from weakref import finalize

from jobs.storage.local import explaining_full_disk
from jobs.storage.locations import is_local, join_location, local_path
from jobs.storage.model import Storage
from jobs.store.repeated_reads import is_deleted_file, repeat_read
from jobs.store.store import Store
from rmq_formats.errors import CorruptData, FormatError, UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.rocksdb.layout import INDEX_FAMILY, IndexRow, decode_index_row, hour_of_key, key_after_hour, key_prefix
from rmq_formats.store import is_rocksdb_name

if TYPE_CHECKING:
    from rocksdict import Options, Rdict, RdictIter


INSTALL_COMMAND = "pip install 'rocketmq-lake[rocksdb]'"
_AT_ONCE = 1 << 16  # rows
_FEW = 64
_TABLE = ".sst"
_LOG = ".log"
_MANIFEST = "MANIFEST"
_LARGEST_OF_WORDS = 1 << 20  # bytes of any other file: RocksDB reads its name, id or settings as a whole
_BLOCK = 1 << 23
# Errors of RocksDB that say nothing about the database.
_OF_THIS_PROCESS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
_OWN_LOGS = ("LOG", "LOCK")  # files of the writing process, useless for a reader
_SNAPSHOTS = 4  # that a process keeps open


Rows = tuple[Sequence[bytes], Sequence[bytes]]  # the keys of consecutive rows of a column family, and their values
KeyRange = tuple[bytes, bytes | None]  # the first key, and the key after the last one; None after all keys


class Database:
    """An open database."""

    def __init__(self, families: Mapping[str, "Rdict"], location: str) -> None:
        self.families = families  # column families, by name
        self._location = location

    def rows(self, family: str, start: bytes = b"", batch_size: int = _AT_ONCE) -> Iterator[Rows]:
        """Yield the rows of a family, starting at the key *start*, in blocks; `CorruptData` if one cannot be read."""
        found = self.families.get(family)
        if found is None:
            return
        items = iter(found.items(from_key=start))
        last: bytes | None = None
        while some := list(islice(items, batch_size)):
            keys, values = zip(*some, strict=True)
            last = keys[-1]
            yield keys, values
        # The rows end silently before an unreadable row: a cursor at the same place has the error.
        cursor = found.iter()
        cursor.seek(start if last is None else last)
        if last is not None:
            cursor.next()
        self._check(cursor, found)

    def items(self, family: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a family one by one, starting at *start*; meant for small families, or for a few rows."""
        for keys, values in self.rows(family, start, _FEW):
            yield from zip(keys, values, strict=True)

    def plan_key_ranges(self, family: str, rows_per_range: int) -> list[KeyRange]:
        """Return ranges that cover all keys of a family, each with about so many rows; table files show the bounds."""
        found = self.families.get(family)
        tables = sorted(
            (bytes(table["start_key"]), int(table["num_entries"]))
            for table in (found.live_files() if found is not None else ())
            if table["start_key"]
        )
        starts, rows = [b""], 0
        for start, count in tables:
            if rows >= rows_per_range:
                starts.append(start)
                rows = 0
            rows += count
        return list(zip(starts, [*starts[1:], None], strict=True))

    def last_key(self, family: str, limit: bytes) -> bytes | None:
        """Return the last key of a family up to *limit*; None without one."""
        found = self.families.get(family)
        if found is None:
            return None
        cursor = found.iter()
        cursor.seek_for_prev(limit)
        if cursor.valid():
            key = cursor.key()
            return bytes(key) if isinstance(key, bytes) else None
        self._check(cursor, found)
        return None

    def _check(self, cursor: "RdictIter", family: "Rdict") -> None:
        """Raise `CorruptData` if a cursor ends before a row that cannot be read."""
        try:
            cursor.status()
        except Exception as error:  # rocksdict raises nothing more specific
            raise CorruptData(_sentence(error, Path(family.path())), None, self._location) from error


def check_rocksdict_installed(location: str, action: str) -> None:
    """Raise `UnsupportedFormat` if rocksdict, which is needed to *action* a database, is not installed."""
    try:
        import_module("rocksdict")
    except ImportError as error:
        reason = f"this is a RocksDB database. To {action} it, install the optional package: {INSTALL_COMMAND}"
        raise UnsupportedFormat(reason, None, location) from error


@contextmanager
def rocksdb_errors_as_oserror(location: str) -> Iterator[None]:
    """Raise errors of RocksDB while it writes to *location* as `OSError`, with the number of a full disk."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:  # rocksdict raises nothing more specific
            raise
        said = _sentence(error)
        number = errno.ENOSPC if os.strerror(errno.ENOSPC) in said else errno.EIO
        raise OSError(number, said, location) from error


@contextmanager
def open_database(location: str, storage: Storage) -> Iterator[Database]:
    """Open a database for reading; `UnsupportedFormat` without rocksdict, `CorruptData` if it is not sound."""
    check_rocksdict_installed(location, "read")
    from tempfile import TemporaryDirectory

    import rocksdict

    # RocksDB opens all table files immediately, so the copy can be deleted: workers that are killed leave none.
    with TemporaryDirectory(prefix="rmq-lake-rocksdb-") as directory:
        opened = _open_database(location, storage, Path(directory))
        names = rocksdict.Rdict.list_cf(opened.path(), _raw_options())
    try:
        yield Database({name: opened.get_column_family(name) for name in names}, location)
    except FormatError as error:  # of a row
        raise error.in_file(location) from error
    finally:
        opened.close()


_Signature = tuple[tuple[str, int, int], ...]  # path, size and time of each file

_snapshots: OrderedDict[tuple[str, _Signature], Database] = OrderedDict()
_lock = Lock()


def _find_snapshot(location: str, storage: Storage, signature: _Signature) -> Database:
    """Return a snapshot of a database, the same one until the files change; it is closed after its last use."""
    key = location, signature
    with _lock:
        if key not in _snapshots:
            for other in [other for other in _snapshots if other[0] == location]:
                del _snapshots[other]
            stack = ExitStack()
            _snapshots[key] = stack.enter_context(open_database(location, storage))
            finalize(_snapshots[key], stack.close)
            while len(_snapshots) > _SNAPSHOTS:
                _snapshots.popitem(last=False)
        return _snapshots[key]


@dataclass(frozen=True)
class StoredDatabase:
    """A database in a directory of a store; every process that works with it reads its own snapshot."""

    location: str
    storage: Storage = field(repr=False, compare=False)
    signature: _Signature = field(repr=False)

    @classmethod
    def in_directory(cls, store: Store, directory: str) -> Self:
        """Return the database in a directory of a store, not opened yet."""
        signature = tuple(
            (file.path_facts.path, file.size, file.modified_ms)
            for file in store.other_files
            if file.path_facts.path.startswith(f"{directory}/")
        )
        return cls(join_location(store.root, directory), store.storage, signature)

    @cached_property
    def database(self) -> Database:
        """The database, open."""
        return _find_snapshot(self.location, self.storage, self.signature)

    def __getstate__(self) -> dict[str, object]:
        """Leave out the snapshot, which belongs to this process."""
        return {name: value for name, value in self.__dict__.items() if name != "database"}


def _open_database(location: str, storage: Storage, directory: Path) -> "Rdict":
    import rocksdict

    copies = [directory]

    def copy_and_open() -> rocksdict.Rdict:
        copy = directory / str(len(copies))
        copy.mkdir()
        copies.append(copy)
        _copy(location, storage, copy)
        families = {name: _raw_options() for name in rocksdict.Rdict.list_cf(str(copy), _raw_options())}
        read_only = rocksdict.AccessType.read_only(error_if_log_file_exist=False)
        return rocksdict.Rdict(str(copy), _raw_options(), families, read_only)

    try:
        # An OSError comes from the copy. Other errors may say that the broker wrote the files while they were copied.
        return repeat_read(copy_and_open, lambda error: is_deleted_file(error) or not isinstance(error, OSError))
    except OSError:
        raise
    except Exception as error:  # rocksdict raises nothing more specific
        said = _sentence(error, copies[-1])
        number = next((number for number in _OF_THIS_PROCESS if os.strerror(number) in said), None)
        if number is not None:
            raise OSError(number, said, location) from error
        raise CorruptData(said, None, location) from error


def _raw_options() -> "Options":
    from rocksdict import BlockBasedOptions, Options

    tables = BlockBasedOptions()
    tables.disable_cache()  # rows are read once; blocks of another copy of the same table would answer for this one
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    return options


def _copy(location: str, storage: Storage, copy: Path) -> None:
    names = [name for name in _names(location, storage) if is_rocksdb_name(name) and name not in _OWN_LOGS]
    tables = [name for name in names if name.endswith(_TABLE)]
    others = [name for name in names if not name.endswith(_TABLE)]
    for name in sorted(others, key=lambda name: not name.endswith(_LOG)):
        of_rows = name.endswith(_LOG) or name.startswith(_MANIFEST)
        _fetch(join_location(location, name), storage, copy / name, None if of_rows else _LARGEST_OF_WORDS)
    # The manifest may list tables that were created while the others were copied.
    tables += [name for name in _names(location, storage) if name.endswith(_TABLE) and name not in tables]
    for name in tables:
        if is_local(location):
            (copy / name).symlink_to(Path(local_path(location), name))
        else:
            _fetch(join_location(location, name), storage, copy / name)


def _names(location: str, storage: Storage) -> list[str]:
    """Return the names of the files in the directory itself, which may also contain many directories of queues."""
    if is_local(location):
        return sorted(entry.name for entry in os.scandir(local_path(location)) if _is_file(entry))
    return [info.name for info in storage.list_files(location) if "/" not in info.name]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError as error:  # a link to itself: RocksDB misses the file
        if error.errno != errno.ELOOP:
            raise
        return False


def _fetch(location: str, storage: Storage, target: Path, limit: int | None = None) -> None:
    """Copy a file, or its beginning, block by block; holes stay holes, or are left out at the end."""
    with storage.open(location) as reader, explaining_full_disk(str(target)), target.open("wb") as file:
        size = reader.size if limit is None else min(reader.size, limit)
        at = reader.next_written(0)
        while at < size:
            file.seek(at)
            file.write(reader.read(at, min(_BLOCK, size - at)))
            at = reader.next_written(at + _BLOCK)


def _sentence(error: Exception, copy: Path | None = None) -> str:
    """Return the first line of an error of RocksDB, without the path of the copy."""
    text = str(error).removeprefix("Corruption: ") or type(error).__name__
    return f"RocksDB reports: {' '.join(text.replace(f'{copy}/', '').split('  The file ')[0].split())}"


def has_index_rows(database: Database) -> bool:
    """Return whether a database holds a row of an index: every newer store has the database."""
    return any(hour_of_key(key) is not None for key, _ in database.items(INDEX_FAMILY))


def read_index_rows_like_broker(database: Database, topic: str, kind: KeyKind, key: str) -> Iterator[IndexRow]:
    """
    Yield the rows under a key in the order in which the broker finds them: by hour, unique key and offset.

    Rows of other keys that begin with this one and `@` are among them. This takes two lookups per hour, regardless of
    the number of rows.
    """
    prefix = key_prefix(topic, kind, key)
    start: bytes | None = b""
    while start is not None:
        hour = next((hour_of_key(found) for found, _ in database.items(INDEX_FAMILY, start)), None)
        if hour is None:  # progress is stored after all hours up to the year 250,000
            return
        for found, value in database.items(INDEX_FAMILY, hour + prefix):
            if not found.startswith(hour + prefix):
                break
            yield decode_index_row(found, value)
        start = key_after_hour(hour)
