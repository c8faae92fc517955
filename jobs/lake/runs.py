"""
Runs: how the rows of a store are written to the lake exactly once.

The row in `runs` that names a run's manifest is the commit point: before it, the run can be discarded, and its
files are garbage; afterwards any process can complete the run from the manifest alone. docs/internals/guarantees.md
describes the protocol.

After a crash a broker may truncate its log and write other records at the same offsets, as may a slave that becomes
master. The rows that the lake has of the truncated part are then superseded. They are moved, and never deleted: they
are copied to `superseded_messages`, in a commit before the one that removes them from `messages`, so they are always in
at least one of the two tables. The files with these rows are determined when the commit is made: other files may
contain the rows by then.
"""

import gzip
import json
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, TypedDict, TypeVar, cast
from uuid import uuid4

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.console.amounts import names_text, utc_time_text
from jobs.console.result import OtherRunActiveError
from jobs.lake.commit import (
    VECTORS_ONLY_LOCAL_ERROR,
    ExpiredRows,
    FileShare,
    LaterEntries,
    LaterUnits,
    ObsoleteRows,
    RemovedRows,
    SnapshotRewrite,
    TransactionTakenError,
    abort_file_replacements,
    commit,
    commit_rows,
    file_paths,
    find_newest_transaction,
    list_files_with_rows,
    open_table,
    read_rows,
    read_snapshot,
    refuse_lost_files,
    rewrite_without_rows,
)
from jobs.lake.lake import (
    BACKFILLED_KEY,
    EXPIRY_DETAIL_SHAPE,
    FILLED_KEY,
    FULL_STATE_KEY,
    GAPS_SHAPE,
    REGISTRATION_DETAIL_SHAPE,
    UNDONE_KEY,
    Lake,
    drop_undone_runs,
    parse_run_detail,
)
from jobs.lake.snapshot_files import SnapshotFile, read_batches, read_rows_where, table_for_rewriting
from jobs.lake.snapshots import UnsupportedTableError, read_newest_transaction, refuse_older_version
from jobs.lake.table_file import MERGED_MARK, AddedFile, FileNaming, TableFile
from jobs.lake.tables import (
    CONSUME_QUEUE,
    INDEX_ENTRIES,
    LOG_PIECES,
    MESSAGES,
    PRODUCT_TABLES,
    QUARANTINE,
    RUNS,
    SUPERSEDED_MESSAGES,
    TRACES,
    WRITTEN_BY_RUNS,
    Table,
)
from jobs.storage.json_file import find_problem, parse_json_file
from jobs.storage.locations import is_local
from jobs.store.intervals import Interval, merge_intervals, subtract_intervals
from jobs.store.record_places import Fingerprint
from jobs.store.release import RELEASE_SETTING, RELEASES, RELEASES_ORIGIN
from jobs.store.selection import TOPIC_CHOICES_KEY, Selection, TopicChoices
from rmq_formats.consumequeue.dispatch import QueueKind
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import IndexHeader
from rmq_formats.release import Release
from rmq_formats.store import FileKind

MANIFEST_VERSION = 2
_VERSION_WITHOUT_FILES = 1  # of manifests without a file for the ends of queues, which all releases can read
MANIFEST_DIRECTORY = "_manifests"
QUEUE_ENDS_MARK = "queue-ends"  # in the names of files with the ends of all queues, which are next to the manifests
ALL_ENDS_KEY = "all_ends"  # key in the state of the queues: the path of such a file, if the store has many queues
ALL_SETTINGS_KEY = "all_settings"  # key in the state of the configuration: the path of a file with all of it
QUEUES_STATE, BROKER_CONFIG_STATE = "queues", "broker_config"  # keys of the states of products
REGISTERED_STATE = "registered"
PREPARED_STATE = "prepared"
UNKNOWN_PIECE = "unknown"  # kind of rows of `log_pieces`: bytes that the lake does not have
DONE_STATE = "done"
EXPIRED_STATE = "expired"
OPEN_RANGES_KEY = "open_ranges"  # key in a manifest's state: missing and damaged ranges that a run may fill
COMMAND_ID_KEY = "command"  # key in a manifest's state and in `detail`; the steps of one command share its value
TABLES_BEFORE_KEY = "tables"  # key in a manifest's state: the newest earlier run of each table
_NO_GAPS = '"gaps": []'  # part of the detail of a run
_NEWEST_KEPT = 32
# Columns from which `LaterUnits` and `LaterEntries` are recognized.
_OF_UNDONE_ROWS = (
    *("store_id", "topic", "queue_id", "queue_offset", "physical_offset", "status", "batch_count"),
    *("index_file", "entry"),
)
_REWRITTEN = (MESSAGES.name, CONSUME_QUEUE.name, LOG_PIECES.name)
_DEAD_AFTER_MS = 600_000  # a commit takes milliseconds
# Errors from parsing an invalid manifest.
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, FormatError)
REGISTRY_TRANSACTION = "stores"  # the transaction that serializes registrations
T = TypeVar("T")
# A range of a log that a lake will never have, as in manifests and summaries.
GapRow = TypedDict("GapRow", {"broker": str, "from": int, "to": int, "why": str})


_TOPICS = {"topics?": [str], "exclude_topics?": [str]}
BROKER_CONFIG_SHAPE = {
    "settings": [[str, str, str]],
    "offsets": [[str, (str, NoneType), str, {str: (int, NoneType)}]],
    f"{ALL_SETTINGS_KEY}?": str,
    f"{FULL_STATE_KEY}?": [int, int],
}
# The saved state in a manifest, by key: the current format of each product, and the formats of earlier versions.
_STATE = {
    f"{TABLES_BEFORE_KEY}?": {str: int},
    f"{COMMAND_ID_KEY}?": str,
    f"{RELEASE_SETTING}?": str,
    f"{QUEUES_STATE}?": {
        **dict.fromkeys(("dispatched", "boundary"), int),
        "queues": [[frozenset(QueueKind), str, int, int]],
        f"{ALL_ENDS_KEY}?": str,
    },
    "index?": {
        **dict.fromkeys(("to_offset", "file", "left_out?"), int),
        "header?": [int, int, int, int, int, int],
        "geometry": [int, int],
        "stated?": [int, int],
        "geometry_origin": str,
        "rules": [[int, str]],
        f"{RELEASES}?": str,
        f"{RELEASES_ORIGIN}?": str,
    },
    "config_files?": {"files?": {str: str}},
    f"{BROKER_CONFIG_STATE}?": BROKER_CONFIG_SHAPE,
    "chosen_until?": int,
    "choices?": [[[str], [str]]],
    "backfilled?": [[str, int, int]],
    "selected_since?": int,
    f"{OPEN_RANGES_KEY}?": [[int, int]],
    "directories?": [[str, int, int, int, int]],
    "seen_queues?": {"sizes?": [[frozenset(FileKind), int, str]], "batch_topics?": [str]},
    "open?": {
        **dict.fromkeys(("since_run", "quarantined", "superseded", "contradictions", "gap_count", "unreadable?"), int),
        "gaps": GAPS_SHAPE,
    },
}
_MANIFEST = {
    **dict.fromkeys(("store_id", "broker", "started?"), str),
    **dict.fromkeys(("run", "from_offset", "to_offset", "store_timestamp?"), int),
    "fingerprints": [[int, int, str]],
    "tables": {str: [[str, int, int, str, int]]},
    "selection": _TOPICS,
    "state": _STATE,
    "counts?": {str: int},
    "gaps": GAPS_SHAPE,
    "superseded?": [str, int, int, int, str],
    "filled?": [[int, int, str]],
    "backfilled?": [[str, int, int, str]],
    "undone_from?": int,
}


class FilledRange(NamedTuple):
    """A range of the log that earlier runs found missing or damaged, and that a run has read."""

    start: int
    end: int
    source: str  # the directory from which it was read

    def to_dict(self) -> dict[str, object]:
        """Return the form in the column `detail` of `runs`."""
        return {"from": self.start, "to": self.end, "source": self.source}


class BackfilledTopic(NamedTuple):
    """A topic that earlier runs left out, and the range of the log from which a run has read its messages."""

    topic: str
    start: int
    end: int
    source: str  # the directory from which it was read

    def to_dict(self) -> dict[str, object]:
        """Return the form in the column `detail` of `runs`."""
        return {"topic": self.topic, "from": self.start, "to": self.end, "source": self.source}


class Expiry(NamedTuple):
    """The rows of a store that have expired by `optimize --keep`."""

    number: int  # counts the expiries of the store
    cutoffs: Mapping[str, int]  # by topic: messages stored before this time, in ms, have expired; "": other topics
    to_offset: int  # every message before this offset of the log has expired
    until: int  # no message at or after this offset has expired
    messages: int  # number of messages that have expired since the previous expiry

    @property
    def text(self) -> str:
        """Which messages have expired."""
        times = {topic: utc_time_text(cutoff) for topic, cutoff in sorted(self.cutoffs.items()) if cutoff > 0}
        every = [f"before {times.pop('')}"] if "" in times else []
        of_topics = [f"of {topic!r} before {time}" for topic, time in times.items()]
        return f"`optimize --keep` has removed messages that were stored {names_text([*every, *of_topics])}"

    def rows_of(self, store_id: str) -> ExpiredRows:
        """Return the rows to remove from tables."""
        return ExpiredRows(store_id, self.cutoffs, self.to_offset)


class SupersededRows(NamedTuple):
    """Outdated rows of a store, and the run that found them."""

    store_id: str
    run: int
    from_offset: int  # the log differs from here on
    to_offset: int  # the rows reached up to here
    why: str = ""

    @property
    def obsolete_rows(self) -> ObsoleteRows:
        """The rows."""
        return ObsoleteRows({"store_id": self.store_id}, self.from_offset)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a run will commit, and the start of the next run."""

    store_id: str
    broker: str
    run: int
    from_offset: int
    to_offset: int
    store_timestamp: int | None  # store time of the last record before to_offset
    fingerprints: tuple[Fingerprint, ...]
    tables: Mapping[str, tuple[AddedFile, ...]]  # in commit order; a table without files only gets the run's number
    selection: Mapping[str, object] = field(default_factory=dict)
    state: Mapping[str, object] = field(default_factory=dict)  # the saved state of each product, under its own key
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[GapRow, ...] = ()
    superseded: SupersededRows | None = None  # rows of earlier runs that are no longer in the log
    # A run with one of these reads only parts of the log before the watermark.
    filled: tuple[FilledRange, ...] = ()
    backfilled: tuple[BackfilledTopic, ...] = ()
    undone_from: int | None = None  # the first run that this one has undone: it removes rows, and adds none
    started: str = ""
    version: int = _VERSION_WITHOUT_FILES

    def make_empty_successor(self, run: int, started: str) -> "Manifest":
        """Return a run that begins where this one ended, with its state, and changes no row."""
        return replace(
            self,
            run=run,
            from_offset=self.to_offset,
            tables={},
            counts={},
            gaps=(),
            superseded=None,
            filled=(),
            backfilled=(),
            undone_from=None,
            started=started,
        )

    @property
    def state_files(self) -> frozenset[str]:
        """The paths of files with large parts of the state: the manifest has only what has changed since."""
        keys = ((QUEUES_STATE, ALL_ENDS_KEY), (BROKER_CONFIG_STATE, ALL_SETTINGS_KEY))
        found = (cast("dict[str, Any]", self.state.get(product) or {}).get(key) for product, key in keys)
        return frozenset(path for path in found if path)

    @property
    def tables_before(self) -> Mapping[str, int]:
        """The newest run of each table before this one."""
        return cast("Mapping[str, int]", self.state.get(TABLES_BEFORE_KEY, {}))

    def to_json(self) -> bytes:
        """Return the stored form."""
        # No indentation: the first run of a huge store lists 100,000 files, and `json` writes only this form quickly.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        version = MANIFEST_VERSION if self.state_files else _VERSION_WITHOUT_FILES
        return json.dumps({**values, "version": version}).encode()

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Manifest":
        """Return the manifest with these stored values."""
        problem = find_problem(values, _MANIFEST)
        if problem is not None:
            raise TypeError(problem)
        for _, release in (values["state"].get("index") or {"rules": ()})["rules"]:
            Release.from_version(release)
        recorded_release(values["state"])
        values["fingerprints"] = tuple(Fingerprint(*item) for item in values["fingerprints"])
        values["tables"] = {name: tuple(AddedFile(*item) for item in items) for name, items in values["tables"].items()}
        values["gaps"] = tuple(values["gaps"])
        superseded = values.get("superseded")
        values["superseded"] = SupersededRows(*superseded) if superseded else None
        values["filled"] = tuple(FilledRange(*item) for item in values.get("filled") or ())
        values["backfilled"] = tuple(BackfilledTopic(*item) for item in values.get("backfilled") or ())
        values["version"] = _VERSION_WITHOUT_FILES
        return cls(**values)


@dataclass(frozen=True, slots=True)
class LakeStore:
    """A store as a lake has it: its labels and fingerprints, and the manifest of its newest run."""

    store_id: str
    broker: str
    registered_fingerprints: tuple[Fingerprint, ...]
    newest_manifest: Manifest | None = None
    is_tier: bool = False  # tiered storage, which rmq-lake 1.0 also read; such a store is never continued
    expiry: Expiry | None = None

    @property
    def newest_fingerprints(self) -> tuple[Fingerprint, ...]:
        """The fingerprints of the newest run, or of the registration before the first run; newest first."""
        return tuple(
            sorted(
                self.newest_manifest.fingerprints if self.newest_manifest else self.registered_fingerprints,
                reverse=True,
            )
        )

    @property
    def lowest_fingerprint_offset(self) -> int:
        """The lowest offset of a fingerprint, approximately the start of the log when it was first read."""
        newest = self.newest_manifest.fingerprints if self.newest_manifest else ()
        return min((one.offset for one in (*self.registered_fingerprints, *newest)), default=0)

    @property
    def topic_choices(self) -> TopicChoices:
        """The part of the log from which runs took only selected topics."""
        return (
            TopicChoices.from_state(self.newest_manifest.state, self.newest_manifest.selection)
            if self.newest_manifest
            else TopicChoices()
        )

    @property
    def next_run(self) -> int:
        """The number of the next run."""
        return self.newest_manifest.run + 1 if self.newest_manifest else 1


def list_lake_stores(lake: Lake) -> list[LakeStore]:
    """
    Return every store of the lake, in the order of registration, each with its newest run.

    All are read from one snapshot of `runs`: on an object store, each snapshot loads Delta's log.
    """
    return read_snapshot(lake, RUNS.name, partial(_read_stores, lake)) or []


def _read_stores(lake: Lake, snapshot: DeltaTable) -> list[LakeStore]:
    stores = _read_registrations(lake, snapshot)
    numbers = {store.store_id: read_newest_transaction(snapshot, store.store_id) for store in stores}
    wanted = sorted({number for number in numbers.values() if number})
    names = ["store_id", "run", "state", "manifest"]
    prepared = read_rows_where(lake, snapshot, names, ds.field("run").isin(wanted)).to_pylist() if wanted else []
    manifests = {(row["store_id"], row["run"]): row["manifest"] for row in prepared if row["state"] == PREPARED_STATE}
    found = []
    for store in stores:
        run = numbers[store.store_id]
        if run:
            path = manifests.get((store.store_id, run))
            if path is None:
                raise _missing_row_error(lake, store.store_id, run)
            found.append(replace(store, newest_manifest=read_manifest_at(lake, path, run)))
        else:
            _refuse_forgotten_runs(lake, store)
            found.append(store)
    return found


def _read_registrations(lake: Lake, snapshot: DeltaTable) -> list[LakeStore]:
    found = []
    expired = dict[str, Expiry]()
    columns = ["store_id", "broker", "state", "time", "detail"]
    for row in read_rows_where(lake, snapshot, columns, ds.field("run") == 0).to_pylist():
        store_id = row["store_id"]
        if row["state"] == EXPIRED_STATE:
            expiry = Expiry(**parse_run_detail(lake.location, row["detail"], EXPIRY_DETAIL_SHAPE)["expired"])
            expired[store_id] = max(expired.get(store_id, expiry), expiry, key=lambda one: one.number)
        if row["state"] != REGISTERED_STATE:  # otherwise a row of another engine
            continue
        if "/" in store_id:  # files are named after it
            raise OSError(f"{lake.locate(RUNS.name)}: {store_id!r} is not a valid store id")
        detail = parse_run_detail(lake.location, row["detail"], REGISTRATION_DETAIL_SHAPE)
        registered = tuple(Fingerprint(*item) for item in detail["fingerprints"])
        # A clock may be set back, but lakes of older versions have only the time.
        order = detail.get("registration") or 0, row["time"]
        found.append((order, LakeStore(store_id, row["broker"], registered, is_tier="tier" in detail)))
    # Another engine may have inserted a row twice.
    stores = {store.store_id: store for _, store in sorted(found, key=lambda item: item[0])}
    return [replace(store, expiry=expired.get(store_id)) for store_id, store in stores.items()]


def open_complete_table(lake: Lake, name: str) -> DeltaTable | None:
    """
    Return the newest snapshot of a table for reading; None if the table does not exist.

    Raises `OSError` if it is older than the newest finished run of any store recorded. It may be newer: other engines
    commit, too.
    """
    recorded = read_snapshot(lake, RUNS.name, partial(_read_recorded_versions, lake)) or {}
    snapshot = open_table(lake, name)
    if snapshot is not None:
        refuse_older_version(lake.locate(name), snapshot.version(), recorded.get(name, 0))
    return snapshot


def _read_recorded_versions(lake: Lake, snapshot: DeltaTable) -> dict[str, int]:
    """Return the version of each table that the newest finished runs recorded."""
    stores = [store.store_id for store in _read_registrations(lake, snapshot)]
    done = {store_id: read_newest_transaction(snapshot, done_transaction_app(store_id)) for store_id in stores}
    names = ["store_id", "run", "state", "detail"]
    rows = read_rows_where(lake, snapshot, names, ds.field("run").isin(sorted({*done.values()} - {0}))).to_pylist()
    found: dict[str, int] = {}
    for row in rows:
        if row["state"] == DONE_STATE and row["run"] == done.get(row["store_id"]):
            versions = parse_run_detail(lake.location, row["detail"]).get("versions") or {}
            found |= {name: max(version, found.get(name, 0)) for name, version in versions.items()}
    return found


def refresh_newest_run(lake: Lake, store: LakeStore) -> LakeStore:
    """Return *store* with its current newest run."""
    run = find_newest_transaction(lake, RUNS.name, store.store_id)
    if store.newest_manifest is not None and store.newest_manifest.run == run:
        return store
    if not run:
        _refuse_forgotten_runs(lake, store)
    return replace(store, newest_manifest=read_manifest(lake, store.store_id, run))


def _refuse_forgotten_runs(lake: Lake, store: LakeStore) -> None:
    """Raise `OSError` if `runs` has runs that Delta's log does not know: every message would be ingested twice."""
    found = read_rows(lake, RUNS.name, ("run", "state"), ds.field("store_id") == store.store_id)
    numbers = [run for run, state in found if state == PREPARED_STATE]
    if numbers and not find_newest_transaction(lake, RUNS.name, store.store_id):
        raise OSError(
            f"{lake.locate(RUNS.name)}: this table has rows of run {max(numbers)} of store {store.store_id}, but its "
            "Delta log has no transaction of this store. Without it, every message would be ingested twice. Another "
            "engine has probably rewritten the table (CREATE TABLE … AS SELECT, CLONE), or set "
            "delta.setTransactionRetentionDuration. Restore the table from a backup, including `_delta_log`, or "
            "ingest the store into a new lake"
        )


def read_manifest(lake: Lake, store_id: str, run: int) -> Manifest | None:
    """Return the manifest of a prepared run; None for run 0."""
    return read_manifest_at(lake, read_prepared_row(lake, store_id, run)["manifest"], run) if run else None


def read_manifest_at(lake: Lake, path: str, run: int) -> Manifest:
    """Read the manifest of a run at a path below the lake."""
    missing = (
        f"this manifest of run {run} is missing; without it, the store cannot be ingested further. Restore the "
        "file from a backup of the lake"
    )
    return read_stored_manifest(lake, path, Manifest.from_json, "run", missing)


def read_stored_manifest(
    lake: Lake, path: str, parse: Callable[[dict[str, Any]], T], kind_of_run: str, missing_reason: str
) -> T:
    """Read the manifest of a run or of a run of `type`; raise `OSError` if it is missing or invalid."""
    location = lake.locate(path)
    try:
        values = json.loads(lake.read(path))
        if values["version"] > MANIFEST_VERSION:
            raise OSError(
                f"manifest version {values['version']}: this lake was written by a newer release of rmq-lake; "
                "upgrade rmq-lake"
            )
        return parse(values)
    except FileNotFoundError as error:
        raise OSError(f"{location}: {missing_reason}") from error
    except _NOT_OURS as error:
        raise OSError(f"{location}: not a valid manifest of a {kind_of_run}: {error}") from error


def read_prepared_row(lake: Lake, store_id: str, run: int) -> Mapping[str, Any]:
    """Return the row of `runs` that prepares a run; raise `OSError` if it is missing."""
    row = _find_prepared_row(lake, store_id, run)
    if row is None:
        raise _missing_row_error(lake, store_id, run)
    return row


def _missing_row_error(lake: Lake, store_id: str, run: int) -> OSError:
    return OSError(
        f"{lake.location}: run {run} of store {store_id} is prepared, but its row in `runs` is missing. Restore `runs` "
        "from a backup"
    )


def _find_prepared_row(lake: Lake, store_id: str, run: int) -> Mapping[str, Any] | None:
    names = ("store_id", "state", "time", "host", "to_offset", "manifest")
    found = read_rows(lake, RUNS.name, names, ds.field("run") == run)
    return next((dict(zip(names, row, strict=True)) for row in found if row[:2] == (store_id, PREPARED_STATE)), None)


def list_broker_stores(lake: Lake) -> list[LakeStore]:
    """Return the stores that have a broker's log, that is, all except tiers."""
    return [store for store in list_lake_stores(lake) if not store.is_tier]


def refuse_lost_registrations(lake: Lake) -> None:
    """Raise `OSError` if another engine has deleted registrations: their messages would be ingested twice."""
    registrations = find_newest_transaction(lake, RUNS.name, REGISTRY_TRANSACTION)
    lake_store = len(list_lake_stores(lake))  # read last: a store registered meanwhile only increases it
    if registrations > lake_store:
        location = lake.locate(RUNS.name)
        statement = (
            "INSERT INTO {0} SELECT * FROM {0} VERSION AS OF <an earlier version from DESCRIBE HISTORY> WHERE "
            "state = '{1}' AND store_id NOT IN (SELECT store_id FROM {0} WHERE state = '{1}')"
        )
        raise OSError(
            f"{location}: {registrations} stores were registered, but only the rows of {lake_store} are left: another "
            "engine has deleted the others, and their messages would be ingested twice. To restore the rows, run in "
            "Spark SQL: " + statement.format(f"delta.`{location}`", REGISTERED_STATE)
        )


def register_store(lake: Lake, store: LakeStore, registrations: int) -> LakeStore:
    """
    Register a store under a new id; *registrations* is the number of lake stores when it was found to be new.

    Raises `OtherRunActiveError` if another store was registered in between: it may be this one.
    """
    named = replace(store, store_id=store.store_id or str(uuid4()))
    detail = {"fingerprints": named.registered_fingerprints, "registration": registrations + 1}
    naming, transaction = FileNaming(named.store_id, 0), (REGISTRY_TRANSACTION, registrations + 1)
    try:
        _append_row(lake, naming, named.broker, REGISTERED_STATE, transaction, detail=json.dumps(detail))
    except TransactionTakenError as error:
        raise OtherRunActiveError("another store was registered at the same moment") from error
    return named


def refuse_taken_run(lake: Lake, store_id: str, run: int, cause: Exception) -> None:
    """Raise `OtherRunActiveError` from *cause*, a missing file, if another run with this number deleted the file."""
    if find_newest_transaction(lake, RUNS.name, store_id) >= run:
        raise _faster_run_error(lake, store_id, run) from cause


def prepare_run(lake: Lake, manifest: Manifest) -> None:
    """Commit to *manifest*; raise `OtherRunActiveError` if another run with this number was faster."""
    if find_newest_transaction(lake, RUNS.name, manifest.store_id) >= manifest.run:  # it may have deleted our files
        discard_files(lake, manifest.tables)
        raise _faster_run_error(lake, manifest.store_id, manifest.run)
    for table, actions in manifest.tables.items():
        refuse_lost_files(lake, table, actions)
    try:
        _append_prepared(lake, manifest, (manifest.store_id, manifest.run))
    except TransactionTakenError as error:
        discard_files(lake, manifest.tables)
        raise _faster_run_error(lake, manifest.store_id, manifest.run) from error


def replace_prepared_manifest(lake: Lake, manifest: Manifest, replaced: Manifest) -> None:
    """
    Replace the prepared manifest *replaced* by *manifest*, of the same run, in one commit.

    Raises `OtherRunActiveError` if another process was faster: a transaction counts these commits.
    """
    app = f"{manifest.store_id}/replaced"
    number = find_newest_transaction(lake, RUNS.name, app)
    if read_manifest(lake, replaced.store_id, replaced.run) != replaced:
        raise _faster_run_error(lake, replaced.store_id, replaced.run)
    prepared = ObsoleteRows({"store_id": replaced.store_id, "run": replaced.run, "state": PREPARED_STATE})
    change = rewrite_without_rows(lake, RUNS, [prepared], (replaced.store_id, replaced.run))
    try:
        _append_prepared(lake, manifest, (app, number + 1), change)
    except TransactionTakenError as error:
        raise _faster_run_error(lake, replaced.store_id, replaced.run) from error


def recorded_release(state: Mapping[str, Any]) -> Release | None:
    """Return the release whose rules a run applied to the end of the log; None if no run has recorded it."""
    rules = (state.get("index") or {}).get("rules")  # where earlier versions recorded it
    name = state.get(RELEASE_SETTING) or (rules[-1][1] if rules else None)
    return None if name is None else Release.from_version(name)


def _append_prepared(
    lake: Lake, manifest: Manifest, transaction: tuple[str, int], rewrite: SnapshotRewrite | None = None
) -> None:
    rules = cast("dict[str, Any]", manifest.state.get("index", {})).get("rules")
    full_state = cast("dict[str, Any]", manifest.state.get(BROKER_CONFIG_STATE) or {}).get(FULL_STATE_KEY)
    undone = manifest.undone_from
    detail = {
        "counts": dict(manifest.counts),
        "gaps": list(manifest.gaps),
        COMMAND_ID_KEY: manifest.state.get(COMMAND_ID_KEY),
        TOPIC_CHOICES_KEY: TopicChoices.from_state(manifest.state, manifest.selection).state,
        **({RELEASE_SETTING: rules[-1][1]} if rules else {}),
        **({FULL_STATE_KEY: full_state[0]} if full_state else {}),
        **({FILLED_KEY: [one.to_dict() for one in manifest.filled]} if manifest.filled else {}),
        **({BACKFILLED_KEY: [one.to_dict() for one in manifest.backfilled]} if manifest.backfilled else {}),
        **({UNDONE_KEY: {"first_run": undone, "from": manifest.to_offset}} if undone is not None else {}),
    }
    values = {
        "from_offset": manifest.from_offset,
        "to_offset": manifest.to_offset,
        "messages": manifest.counts.get("messages", 0),
        "detail": json.dumps(detail),
    }
    naming = FileNaming(manifest.store_id, manifest.run)
    with storing_manifest(lake, naming, manifest.to_json(), manifest.tables) as path:
        _append_row(lake, naming, manifest.broker, PREPARED_STATE, transaction, rewrite, manifest=path, **values)


@contextmanager
def storing_manifest(
    lake: Lake, naming: FileNaming, data: bytes, files: Mapping[str, Sequence[AddedFile]]
) -> Iterator[str]:
    """
    Store a manifest for a row that names it; delete it again if the row's transaction is taken.

    The names of its *files*, by table, are made durable first: a power failure must not leave the row without them.
    """
    for table in (name for name, added in files.items() if added):
        lake.flush_directory(table)
    path = f"{MANIFEST_DIRECTORY}/{naming.prefix}{uuid4()}.json"
    lake.create(path, data)
    try:
        yield path
    except TransactionTakenError:
        lake.delete(path)
        raise


def discard_files(lake: Lake, files: Mapping[str, Iterable[AddedFile]]) -> None:
    """Delete the files, by table, of a run that lost to another one, or that will not be prepared."""
    for table, actions in files.items():
        for action in actions:
            lake.delete(f"{table}/{action.path}")


def _faster_run_error(lake: Lake, store_id: str, run: int) -> OtherRunActiveError:
    row = _find_prepared_row(lake, store_id, run)
    by_whom = f" on {row['host']} at {row['time']:%Y-%m-%d %H:%M:%S} UTC" if row else ""
    return OtherRunActiveError(
        f"run {run} of this store was prepared by another process{by_whom}. Run the command again"
    )


def commit_prepared(lake: Lake, manifest: Manifest) -> dict[str, int]:
    """Commit a prepared run to the tables that do not have it yet, and mark the run as done."""
    transaction = (manifest.store_id, manifest.run)
    note = {"store_id": manifest.store_id, "run": str(manifest.run)}
    gone = []
    if manifest.superseded is not None:
        # Copy the rows before any table loses them: after a kill, readers may find them twice, but never miss them.
        copy_superseded_rows(lake, manifest.superseded, transaction, note)
        gone = [manifest.superseded.obsolete_rows]
    versions = {}
    changed = tables_with_superseded_rows(manifest.tables_before)
    for table in PRODUCT_TABLES:
        actions = manifest.tables.get(table.name, ())
        removed = [*(gone if table.name in changed else ()), *_list_replaced_rows(manifest, table)]
        undone = list(_list_undone_rows(lake, manifest, table))
        find_share = partial(_find_undone_share, lake, table, undone) if undone else _find_unknown_share
        removed += undone
        change = rewrite_without_rows(lake, table, removed, transaction, find_share) if removed else None
        if table.name not in manifest.tables and change is None:
            continue
        with suppress(TransactionTakenError):  # another process committed it
            versions[table.name] = commit(lake, table, actions, transaction, note, change)
    naming, done = FileNaming(*transaction), (done_transaction_app(manifest.store_id), manifest.run)
    with suppress(TransactionTakenError):  # another process finished it
        _append_row(lake, naming, manifest.broker, DONE_STATE, done, detail=json.dumps({"versions": versions}))
    return versions


def _list_replaced_rows(manifest: Manifest, table: Table) -> list[ObsoleteRows]:
    """Return the rows about damage in ranges that a run has filled, and those about bytes that it has read."""
    if table not in {QUARANTINE, LOG_PIECES} or table.name not in manifest.tables:
        return []
    whose = {"store_id": manifest.store_id}
    replaced = [ObsoleteRows(whose, one.start, one.end) for one in manifest.filled]
    if table == LOG_PIECES and Selection.from_manifest(manifest.selection).topic_filter is None:
        # The lake may have bytes that could belong to any message only if no topic is left out.
        replaced += [ObsoleteRows({**whose, "kind": UNKNOWN_PIECE}, one.start, one.end) for one in manifest.backfilled]
    return replaced


def read_time_of_gap(lake: Lake, lake_store: LakeStore, gap: GapRow) -> datetime | None:
    """Return when a run first recorded a gap; None if no row of `runs` has it."""
    wanted = (pc.field("store_id") == lake_store.store_id) & (pc.field("state") == PREPARED_STATE)
    wanted &= ~pc.match_substring(pc.field("detail"), _NO_GAPS)
    rows = read_rows(lake, RUNS.name, ["time", "detail"], wanted)
    return min(
        (time for time, detail in rows if gap in (parse_run_detail(lake.location, detail).get("gaps") or ())),
        default=None,
    )


def _list_undone_rows(lake: Lake, manifest: Manifest, table: Table) -> Iterator[RemovedRows]:
    """Yield the rows of the runs that a run has undone; its own state is that of the run before them."""
    first, store_id = manifest.undone_from, manifest.store_id
    if first is None or table.name not in manifest.tables:
        return
    if table == CONSUME_QUEUE:
        queues = cast("dict[str, Any]", manifest.state.get(QUEUES_STATE) or {"dispatched": 0, "queues": []})
        yield LaterUnits(store_id, queues["dispatched"], read_plain_queue_ends(lake, queues))
    elif table == INDEX_ENTRIES:
        index = cast("dict[str, Any]", manifest.state.get("index") or {"file": 0, "header": None})
        yield LaterEntries(store_id, index["file"], IndexHeader(*(index["header"] or ())).entry_count)
    elif "physical_offset" in table.schema.names:
        yield ObsoleteRows({"store_id": store_id}, manifest.to_offset)
    else:
        yield from (ObsoleteRows({"store_id": store_id, "run": run}) for run in range(first, manifest.run))


def _find_unknown_share(_: SnapshotFile) -> FileShare:
    """Return that some rows are removed: without reading the file, their share is unknown."""
    return FileShare.SOME


def _find_undone_share(lake: Lake, table: Table, undone: Sequence[RemovedRows], file: SnapshotFile) -> FileShare:
    """Return how many rows of a file are undone; most files with units or index entries of a store have none."""
    if table not in {CONSUME_QUEUE, INDEX_ENTRIES}:
        return FileShare.SOME
    names = [name for name in _OF_UNDONE_ROWS if name in table.schema.names]
    count = gone = 0
    for batch in read_batches(lake, table, file, names):
        count += batch.num_rows
        gone += sum(one.mask_rows(batch).true_count for one in undone)
    return FileShare.NONE if not gone else FileShare.ALL if gone == count else FileShare.SOME


def read_plain_queue_ends(lake: Lake, state: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the ends of plain queues, by topic and queue id, that `jobs.products.queues.processed_ends` has stored."""
    path, kind = state.get(ALL_ENDS_KEY), QueueKind.PLAIN.value
    stored = {}
    if path:
        shape = {f"{kind}?": {str: [[int, int]]}}
        stored = parse_json_file(gzip.decompress(lake.read(path)), shape, lake.locate(path)).get(kind, {})
    ends = {(topic, queue_id): end for topic, queues in stored.items() for queue_id, end in queues}
    return ends | {(topic, queue_id): end for one, topic, queue_id, end in state["queues"] if one == kind}


def find_undone_offset(lake: Lake, store_id: str, after: int, until: int) -> int | None:
    """Return the lowest offset from which the runs later than *after*, up to *until*, have undone earlier ones."""
    wanted = (pc.field("store_id") == store_id) & (pc.field("state") == PREPARED_STATE)
    wanted &= (pc.field("run") > after) & (pc.field("run") <= until)
    wanted &= pc.match_substring(pc.field("detail"), f'"{UNDONE_KEY}"')
    details = [parse_run_detail(lake.location, detail) for (detail,) in read_rows(lake, RUNS.name, ["detail"], wanted)]
    return min((detail[UNDONE_KEY]["from"] for detail in details), default=None)


def read_gaps_and_filled(lake: Lake, lake_store: LakeStore) -> tuple[list[GapRow], list[Interval]]:
    """
    Return the gaps that runs of a store have found, and the ranges that later runs have filled.

    The part of a gap after the end of its run is left out up to the offset that later runs have read.
    """
    newest_end = lake_store.newest_manifest.to_offset if lake_store.newest_manifest else 0
    wanted = (pc.field("store_id") == lake_store.store_id) & (pc.field("state") == PREPARED_STATE)
    # There may be millions of rows without gaps.
    has_others = pc.match_substring_regex(pc.field("detail"), f'"({FILLED_KEY}|{UNDONE_KEY})"')
    wanted &= ~pc.match_substring(pc.field("detail"), _NO_GAPS) | has_others
    rows = read_rows(lake, RUNS.name, ["run", "to_offset", "detail"], wanted)
    details = drop_undone_runs((run, end, parse_run_detail(lake.location, detail)) for run, end, detail in rows)
    found = [(end, gap) for end, detail in details for gap in detail.get("gaps") or ()]
    gaps = [
        cast("GapRow", {**gap, "from": start, "to": stop})
        for run_end, gap in found
        for start, stop in subtract_intervals([(gap["from"], gap["to"])], [(run_end, max(run_end, newest_end))])
    ]
    filled = [(one["from"], one["to"]) for _, detail in details for one in detail.get(FILLED_KEY) or ()]
    return gaps, merge_intervals(filled)


def tables_with_superseded_rows(newest_runs: Mapping[str, int]) -> frozenset[str]:
    """
    Return the tables that contain superseded rows; *newest_runs* has the store's newest run in each table.

    Traces were introduced later than the others, and few stores have any: the table is included if the store has rows
    there.
    """
    return frozenset({*_REWRITTEN, *([TRACES.name] if newest_runs.get(TRACES.name) else ())})


def refuse_deletion_vectors(lake: Lake, superseded: SupersededRows) -> None:
    """Raise `UnsupportedTableError` if rows would have to be removed from files that cannot be replaced."""
    for name in () if is_local(lake.location) else (*_REWRITTEN, TRACES.name):
        snapshot = open_table(lake, name)
        touched = list_files_with_rows(lake, snapshot, [superseded.obsolete_rows]) if snapshot is not None else ()
        if any(file.kept_row_mask is not None for file in touched):
            reason = f"the log has different records starting at offset {superseded.from_offset}; nothing was written"
            raise vectors_error(lake, name, reason)


def vectors_error(lake: Lake, table: str, reason: str) -> UnsupportedTableError:
    """Return the error for a table with deletion vectors of another engine, whose rows cannot be removed."""
    location = lake.locate(table)
    return UnsupportedTableError(
        f"{location}: {VECTORS_ONLY_LOCAL_ERROR}, and {reason}. Run in Spark SQL: REORG TABLE delta.`{location}` "
        "APPLY (PURGE)"
    )


def copy_superseded_rows(
    lake: Lake, superseded: SupersededRows, transaction: tuple[str, int], note: Mapping[str, str]
) -> None:
    """Copy the superseded rows to their own table, once."""
    app, number = transaction
    if find_newest_transaction(lake, SUPERSEDED_MESSAGES.name, app) >= number:
        return
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None or read_newest_transaction(snapshot, app) >= number:
        return  # already removed from there, so copied before
    naming = FileNaming(superseded.store_id, superseded.run)
    constants = {"superseded_by_run": superseded.run}
    touched = list_files_with_rows(lake, snapshot, [superseded.obsolete_rows])
    rows = table_for_rewriting(snapshot, MESSAGES)
    theirs = rows.columns[len(MESSAGES.columns) :]
    moved = replace(SUPERSEDED_MESSAGES, columns=(*SUPERSEDED_MESSAGES.columns, *theirs), has_foreign_rows=True)
    read = (batch for stored in touched for batch in read_batches(lake, rows, stored))
    file = TableFile(lake, moved, naming.new_file_name("superseded"), constants)
    action = file.write_all(batch.filter(superseded.obsolete_rows.mask_rows(batch)) for batch in read)
    with suppress(TransactionTakenError):  # another run has moved the same rows
        commit(lake, moved, [action] if action else [], transaction, note)


def expiry_app(store_id: str) -> str:
    """Return the application whose transactions count the expiries of a store."""
    return f"{store_id}/expired"


def record_expiry(lake: Lake, store: LakeStore, expiry: Expiry) -> None:
    """
    Record which rows of a store have expired; they can then be removed from each table.

    The row replaces that of the previous expiry. Raises `OtherRunActiveError` if another process was faster.
    """
    naming = FileNaming(store.store_id, 0)
    before = ObsoleteRows({"store_id": store.store_id, "run": 0, "state": EXPIRED_STATE})
    change = rewrite_without_rows(lake, RUNS, [before], naming)
    detail, transaction = json.dumps({"expired": expiry._asdict()}), (expiry_app(store.store_id), expiry.number)
    try:
        _append_row(lake, naming, store.broker, EXPIRED_STATE, transaction, change, detail=detail)
    except TransactionTakenError as error:
        raise OtherRunActiveError(
            f"another process removes expired rows of broker {store.broker} at this moment. Run the command again"
        ) from error


def finish_expiry(lake: Lake, store: LakeStore, expiry: Expiry) -> None:
    """Note that all tables have lost the rows of an expiry."""
    run = store.newest_manifest.run if store.newest_manifest else 0
    transaction = (f"{expiry_app(store.store_id)}/done", expiry.number)
    naming, detail = FileNaming(store.store_id, run), json.dumps({"expired": expiry._asdict()})
    with suppress(TransactionTakenError):  # another process finished it
        _append_row(lake, naming, store.broker, EXPIRED_STATE, transaction, to_offset=expiry.to_offset, detail=detail)


def is_expiry_finished(lake: Lake, store: LakeStore) -> bool:
    """Return whether all tables have lost the rows that have expired."""
    number = store.expiry.number if store.expiry else 0
    return find_newest_transaction(lake, RUNS.name, f"{expiry_app(store.store_id)}/done") >= number


def find_unfinished_run(lake: Lake, store: LakeStore) -> Manifest | None:
    """Return the prepared run that is not marked as done, if any."""
    done = find_newest_transaction(lake, RUNS.name, done_transaction_app(store.store_id))
    return store.newest_manifest if store.newest_manifest and store.newest_manifest.run > done else None


def delete_files_outside_manifest(lake: Lake, manifest: Manifest) -> None:
    """
    Delete files of this run's attempts that are not part of it; they can never be committed.

    Call this only when the run is prepared: until then, another attempt with the same number may still win.
    """
    naming = FileNaming(manifest.store_id, manifest.run)
    dead_before = time.time() * 1000 - _DEAD_AFTER_MS
    for table in WRITTEN_BY_RUNS:
        # Listed once: a file that another process writes later may be committed, because nothing aborts its commit.
        names = _file_names(lake, table.name)
        merged_prefix = f"{naming.prefix}{MERGED_MARK}-"  # the prefix of files that the run merged after it was done
        if any(name.startswith(merged_prefix) for name in names):
            abort_file_replacements(lake, table)  # otherwise a slow process may still commit it
        log = f"{table.name}/_delta_log"
        for info in lake.list_files(log):  # unfinished commits: `deltalake` begins their names with '#'
            if ("#" in info.name or ".json.attempt-" in info.name) and info.modified_ms < dead_before:
                lake.delete(f"{log}/{info.name}")
        kept_names = {action.path for action in manifest.tables.get(table.name, ())}
        _delete_uncommitted(lake, table.name, {name for name in names if name.startswith(naming.prefix)} - kept_names)
    row = _find_prepared_row(lake, manifest.store_id, manifest.run)
    kept = {
        (path or "").removeprefix(f"{MANIFEST_DIRECTORY}/") for path in (row and row["manifest"], *manifest.state_files)
    }
    for name in _file_names(lake, MANIFEST_DIRECTORY):
        # A file that is being created has a dot before its name.
        if name not in kept and name.removeprefix(".").startswith(naming.prefix):
            lake.delete(f"{MANIFEST_DIRECTORY}/{name}")


def delete_uncommitted_files(lake: Lake, table: str, naming: FileNaming) -> None:
    """Delete files of a run that no version of a table has."""
    _delete_uncommitted(lake, table, {name for name in _file_names(lake, table) if name.startswith(naming.prefix)})


def _delete_uncommitted(lake: Lake, table: str, names: Collection[str]) -> None:
    snapshot = open_table(lake, table)
    for name in sorted(set(names).difference(file_paths(snapshot) if snapshot is not None else ())):
        lake.delete(f"{table}/{name}")


def has_leftover_files(lake: Lake, store: LakeStore) -> bool:
    """Return whether an attempt of the store's next run has left files."""
    prefix = FileNaming(store.store_id, store.next_run).prefix
    directories = (*(table.name for table in WRITTEN_BY_RUNS), MANIFEST_DIRECTORY)
    return any(
        name.lstrip(".").startswith(prefix) for directory in directories for name in _file_names(lake, directory)
    )


def delete_manifests_up_to(lake: Lake, store_id: str, newest_run: int, needed: Collection[str] = ()) -> None:
    """Delete the manifests and state files of runs up to *newest_run*, except the *needed* ones."""
    prefix = f"{store_id}-"
    for name in _file_names(lake, MANIFEST_DIRECTORY):
        run = name.removeprefix(prefix).partition("-")[0]
        is_needed = f"{MANIFEST_DIRECTORY}/{name}" in needed
        if name.startswith(prefix) and run.isdigit() and int(run) <= newest_run and not is_needed:
            lake.delete(f"{MANIFEST_DIRECTORY}/{name}")


def _file_names(lake: Lake, directory: str) -> Sequence[str]:
    return [info.name for info in lake.list_files(directory)]


def thin_fingerprints(fingerprints: Iterable[Fingerprint]) -> tuple[Fingerprint, ...]:
    """
    Keep the newest fingerprints, and fewer of the older ones: a few dozen are enough to identify a store.

    The log is divided into fixed cells that grow with their distance from its end; repeated thinning keeps one
    fingerprint in each.
    """
    newest_first = sorted(set(fingerprints), reverse=True)
    kept = {("newest", offset): fingerprint for offset, fingerprint in enumerate(newest_first[:_NEWEST_KEPT])}
    for fingerprint in newest_first[_NEWEST_KEPT:]:
        distance = newest_first[0].offset - fingerprint.offset
        # A cell has 2^bits bytes, a quarter to a half of the distance from the newest, so that each doubling of the
        # distance has two or three cells: a log of 1 TiB in segments of 1 GiB keeps about thirty fingerprints.
        bits = max(distance.bit_length() - 2, 0)
        kept.setdefault((str(bits), fingerprint.offset >> bits), fingerprint)
    return tuple(sorted(kept.values(), reverse=True))


def done_transaction_app(store_id: str) -> str:
    """Return the application whose transactions state which runs of a store are done."""
    return f"{store_id}/done"


def _append_row(  # noqa: PLR0913, PLR0917 - the parts of a row and of its commit
    lake: Lake,
    naming: FileNaming,
    broker: str,
    state: str,
    transaction: tuple[str, int],
    rewrite: SnapshotRewrite | None = None,
    **values: object,
) -> None:
    constants = {"broker": broker, "store_id": naming.store_id}
    row = {"run": naming.run, "state": state, "time": datetime.now(UTC), "host": socket.gethostname(), **values}
    commit_rows(lake, RUNS, naming.new_file_name(state), constants, [row], transaction, rewrite)
