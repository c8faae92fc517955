"""
Checks, without a JVM or a compiler, whether a run is certain to have nothing or little to do.

A run leaves a note of the store and the lake as it saw them: sizes of all files, times of the log's files, the
configuration, and the newest run of each table. While these are unchanged, and nothing is written where the log ended,
another run of the same request would find nothing. Anything uncertain, errors included, is left to the run.

The note of a lake on this machine is in the user's cache. That of a lake on an object store is in the lake, because the
next run may have another machine, or a new container: there, a run without a note takes ten times as many requests.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from time import monotonic, time_ns
from typing import Any
from uuid import uuid4

import rmq_formats
from jobs import __version__
from jobs.ingest import OPEN_DAMAGE_KEY, OpenDamage, Summary
from jobs.ingest.queue_file_listing import (
    QueueFileListing,
    describe_queue_files,
    make_queue_file_listing,
)
from jobs.lake.directory_id import DirectoryId
from jobs.lake.lake import Lake
from jobs.launch.arguments import file_system_options
from jobs.launch.cache import cache_directory
from jobs.products import PRODUCTS
from jobs.requests.ingest import IngestRequest
from jobs.storage.locations import is_local, local_path, normalize_location
from jobs.storage.paths import walk_tree
from jobs.store.broker_config import read_config_files
from jobs.store.store import Store, list_store_without_queues
from rmq_formats.errors import FormatError
from rmq_formats.store import FileKind

_MANIFESTS, _LOCKS, _RUNS = "_manifests", "_locks", "runs"
# End of the name of a note among the manifests. It begins like that of a manifest of the run that the note describes,
# so that all releases delete it when they delete this manifest.
_NOTE_SUFFIX = ".nothing-new"
_ID_LENGTH = 36  # length of a store's id, with which the name of a manifest begins
_ZEROS = 4096  # bytes after the last record that must be unwritten
_TAIL = 8  # bytes before the end of the log; those of a blank may be zeros
_MOST_QUEUE_FILES = 10_000  # with more, tasks probe the queues in parallel
# Errors from a damaged store, or from an edited note or manifest.
_DOUBTS = (OSError, FormatError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class PreRunCheck:
    """The state of a store and its lake before a run."""

    def __init__(self, request: IngestRequest) -> None:
        self._request = request
        self._has_local_store = all(is_local(normalize_location(one)) for one in (request.store, *request.commitlog))
        self._has_local_lake = is_local(normalize_location(request.lake))
        self._began_ns = time_ns()
        self._seen: str | None = None  # digest of the store, before the run
        self._manifests_before: list[str] = []  # in the lake, before this run
        self._known: QueueFileListing | None = None

    @cached_property
    def _store(self) -> Store:
        return self._request.list_store()

    @cached_property
    def _lake(self) -> Lake:
        return Lake(self._request.lake, {} if self._has_local_lake else file_system_options())

    @cached_property
    def _root(self) -> str:
        return local_path(normalize_location(self._request.store))

    def summary_if_nothing_new(self) -> Summary | None:
        """Return the summary of a run that finds nothing to do; None if it may find something, or fail."""
        began = monotonic()
        if not self._has_local_store or self._request.dry_run or self._request.acknowledge:
            return None
        if self._request.backfill:
            return None
        try:
            self._manifests_before = self._list_manifests()
            note, store = self._read_note_and_store()
            if note is None or note["store"] != self._seen:
                return None
            summary = Summary(**note["summary"])
            summary.open = OpenDamage.from_state(note, summary.open)
            is_same = note["lake"] == self._describe_lake(note["summary"]["store_id"], self._manifests_before)
            end = summary.to_offset
            after = [one for one in store.segments if one.base_offset + one.readable_bytes > end]
            is_written = any(any(store.read(one, max(end - one.base_offset, 0), _ZEROS)) for one in after)
            last = store.segment_at(end - 1)  # its end may be lost without a change of its time
            is_lost = last is None or not any(store.read(last, max(end - last.base_offset - _TAIL, 0), _TAIL))
            if not is_same or is_written or is_lost:
                return None
        except _DOUBTS:
            return None
        summary.seconds = {"looking": round(monotonic() - began, 3)}
        return summary

    def _read_note_and_store(self) -> tuple[dict[str, Any] | None, Store]:
        """
        Return the note, if any, and the store, whose digest is kept.

        If no queue directory has changed since the note, the store is returned without queue files.
        """
        note = None
        with suppress(*_DOUBTS):  # no note yet, or one that was edited
            note = json.loads(self._read_note())
            self._known = QueueFileListing.from_json(note["queue_files"]) if note.get("queue_files") else None
        if self._known is None or not self._known.has_same_directories(self._root):
            self._seen = self._digest_store(self._store, describe_queue_files(self._store.queue_files))
            return note, self._store
        store = list_store_without_queues(self._request.store, self._request.commitlog)
        self._seen = self._digest_store(store, self._known.describe_files(self._root))
        return note, store

    def _digest_store(self, store: Store, queue_files: Iterable[str]) -> str:
        """Return a digest of the store; on another machine, a copy of it may have the same path, files and times."""
        digest = _digest_store(store, queue_files)
        return digest if self._has_local_lake else f"{digest} {DirectoryId.read(self._root)}"

    def remember(self, summary: Summary) -> None:
        """Store a note of what the next run would report if nothing changes; none if this run has reported more."""
        says_more = any((
            summary.behind, summary.recovered, summary.notes, summary.gaps, summary.unreadable, summary.left_out,
            summary.lost_end, summary.bytes_left, summary.superseded, summary.contradictions,
        ))  # fmt: skip
        if self._seen is None or summary.store_id is None or says_more:
            return
        next_run = summary.of_next_run_without_news()
        described = {field.name: getattr(next_run, field.name) for field in fields(next_run) if field.name != "open"}
        # If the lake cannot be read now, or the cache cannot be written, no note is kept.
        with suppress(OSError):
            manifests = self._list_manifests()
            if not self._has_only_runs_of(summary, manifests):
                return  # another run has committed since
            lake = self._describe_lake(summary.store_id, manifests)
            if "_store" in self.__dict__:  # all queue files were listed
                self._known = make_queue_file_listing(self._root, self._store.queue_files, self._began_ns)
            note = {
                "summary": described,
                OPEN_DAMAGE_KEY: summary.open._asdict(),
                "store": self._seen,
                "lake": lake,
                "queue_files": self._known.to_json() if self._known is not None else None,
            }
            self._write_note(json.dumps(note).encode(), manifests, summary.store_id)

    def _read_note(self) -> bytes:
        if self._has_local_lake:
            return self._note_path.read_bytes()
        name = max(self._list_own_notes(self._manifests_before), key=_parse_run)
        return self._lake.read(f"{_MANIFESTS}/{name}")

    def _write_note(self, note: bytes, manifests: Iterable[str], store_id: str) -> None:
        """Write the note, which replaces earlier ones of this request; in a lake, it has the newest run's number."""
        if not self._has_local_lake:
            newest = max((_parse_run(name) for name in manifests if name.startswith(store_id)), default=0)
            for name in self._list_own_notes(manifests):
                self._lake.delete(f"{_MANIFESTS}/{name}")
            self._lake.create(f"{_MANIFESTS}/{store_id}-{newest}-{self._key}{_NOTE_SUFFIX}", note)
            return
        self._note_path.parent.mkdir(exist_ok=True)
        begun = self._note_path.with_name(f".{uuid4()}")
        try:
            begun.write_bytes(note)
            begun.replace(self._note_path)
        finally:
            begun.unlink(missing_ok=True)

    def _list_own_notes(self, manifests: Iterable[str]) -> list[str]:
        return [name for name in manifests if name.endswith(f"-{self._key}{_NOTE_SUFFIX}")]

    @property
    def _note_path(self) -> Path:
        return cache_directory() / "nothing-new" / f"{self._key}.json"

    @cached_property
    def _key(self) -> str:
        """A digest of this program and of the request."""
        asked = self._request
        store, lake, *log = map(normalize_location, (asked.store, asked.lake, *asked.commitlog))
        request = replace(asked, store=store, lake=lake, commitlog=log, command_id="", tables=frozenset())
        program = _list_program_files() if self._has_local_lake else _digest_program_files()
        key = f"{__version__} {program} {request} {sorted(asked.tables)}"
        return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    def _describe_lake(self, store_id: str, manifests: Iterable[str]) -> list[Any]:
        """
        Return the newest runs of a store, and whether one is unfinished or active.

        On another machine, each file would be a request: the listed files of each table's log are compared.
        """
        lake, read = self._lake, _read_transaction if self._has_local_lake else _digest_log
        manifests = [name for name in manifests if name.startswith(store_id) and not name.endswith(_NOTE_SUFFIX)]
        locks = [info.size for info in lake.list_files(_LOCKS) if info.name == store_id]
        tables = sorted({_RUNS, *(table for product in PRODUCTS for table in product.tables)})
        return [manifests, locks, {table: read(lake, table, store_id) for table in tables}]

    def _list_manifests(self) -> list[str]:
        try:
            return sorted(info.name for info in self._lake.list_files(_MANIFESTS))
        except FileNotFoundError:  # a new lake
            return []

    def _has_only_runs_of(self, summary: Summary, manifests: Iterable[str]) -> bool:
        """Return whether nothing but the runs of this command has been committed since the check."""
        newest = summary.run or 0
        own = [f"{summary.store_id}-{newest - step}-" for step in range(summary.steps if newest else 0)]
        added = {*manifests}.difference(self._manifests_before)
        return all(name.startswith(tuple(own)) or name.endswith(_NOTE_SUFFIX) for name in added)


def _digest_store(store: Store, queue_files: Iterable[str]) -> str:
    """Return a digest of all that a run can find in the store, except bytes at the log's end."""
    digest = sha256()
    for line in queue_files:
        digest.update(line.encode("utf-8", "surrogatepass"))
    for file in (*store.index_files, *store.other_files):
        # An idle broker writes only its checkpoint and its configuration.
        time = file.modified_ms if file.path_facts.kind is FileKind.ROCKSDB else ""
        digest.update(f"{file.location} {file.size} {time}\n".encode("utf-8", "surrogatepass"))
    for segment in store.segments:
        times = Path(local_path(segment.location)).stat().st_mtime_ns
        digest.update(f"{segment.location} {segment.size} {times}\n".encode("utf-8", "surrogatepass"))
    for _, _, data in read_config_files(store):
        digest.update(sha256(data or b"").digest())
    return digest.hexdigest()


@cache
def _list_program_files() -> list[tuple[str, int]]:
    """Return the files of this program with their times: another version may find more in the same store."""
    directories = (Path(__file__).parents[1], Path(rmq_formats.__file__).parent)
    paths = (path for directory in directories for path in walk_tree(directory) if path.suffix == ".py")
    return [(path.name, path.stat().st_mtime_ns) for path in paths]


@cache
def _digest_program_files() -> str:
    """Return a digest of the files of this program, which is the same on all machines."""
    digest = sha256()
    for directory in (Path(__file__).parents[1], Path(rmq_formats.__file__).parent):
        for path in sorted(path for path in walk_tree(directory) if path.suffix == ".py"):
            digest.update(f"{path.relative_to(directory)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _read_transaction(lake: Lake, table: str, store_id: str) -> int:
    """Return the newest run of a store in a table; -1 without such a table."""
    from deltalake.exceptions import TableNotFoundError

    from jobs.lake.snapshots import open_delta, read_newest_transaction

    try:
        return read_newest_transaction(open_delta(lake.locate(table), lake.options), store_id)
    except TableNotFoundError:
        return -1


def _digest_log(lake: Lake, table: str, _store_id: str) -> str:
    """
    Return a digest of the files in a table's log, which change with each commit, and after the table was restored.

    Of the table `runs`, which every run reads, all files count.
    """
    files = lake.list_files(table if table == _RUNS else f"{table}/_delta_log")
    lines = [f"{info.name} {info.size} {info.modified_ms}\n" for info in files]
    return sha256("".join(lines).encode()).hexdigest()


def _parse_run(name: str) -> int:
    """Return the number of the run in the name of a manifest or note; 0 in another name."""
    number = name[_ID_LENGTH + 1 :].partition("-")[0]
    return int(number) if number.isdecimal() else 0
