"""
Runs: how the rows of a store come into the lake exactly once.

A run writes its files first, then a manifest that lists them, then one row in `runs` that names the manifest under the
transaction (store, run number). That row decides: before it the run never was, and what it wrote is litter; after it
the run will be, whoever finishes it, from the manifest alone. Of two runs with one number, one loses there. Where the
next run begins is what the newest prepared manifest says.
"""

import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from jobs.lake.commit import TransactionTakenError, commit, committed_transaction, open_table
from jobs.lake.tables import QUARANTINE, RUNS, Table, messages_table
from jobs.lake.writing import Action, FileNaming, TableFile
from jobs.source.reading import Fingerprint
from jobs.storage import join, storage_of

MANIFEST_VERSION = 1
MANIFESTS = "_manifests"
REGISTERED = "registered"
PREPARED = "prepared"
DONE = "done"
_NEWEST_KEPT = 32
_REGISTRY = "stores"  # the transaction that serialises registrations


class HeldByOtherError(Exception):
    """Another run of the same store is at work, or was faster."""


@dataclass(frozen=True, slots=True)
class Lake:
    """Where the tables are, and the settings to reach them."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a run will commit, and where the next one begins."""

    store_id: str
    broker: str
    run: int
    from_offset: int
    to_offset: int
    store_timestamp: int | None  # of the last record before to_offset
    fingerprints: tuple[Fingerprint, ...]
    tables: Mapping[str, tuple[Action, ...]]  # in the order of commits
    selection: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)  # where queues and index go on
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[Mapping[str, Any], ...] = ()
    started: str = ""
    version: int = MANIFEST_VERSION

    def to_json(self) -> bytes:
        """Return the stored form."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """Read the stored form."""
        values = json.loads(data)
        if values["version"] > MANIFEST_VERSION:
            raise OSError(f"manifest version {values['version']}: this lake was written by a newer program")
        values["fingerprints"] = tuple(Fingerprint(*item) for item in values["fingerprints"])
        values["tables"] = {name: tuple(Action(*item) for item in items) for name, items in values["tables"].items()}
        values["gaps"] = tuple(values["gaps"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class KnownStore:
    """A store that the lake has seen, and its newest run."""

    store_id: str
    broker: str
    registered: tuple[Fingerprint, ...]
    newest: Manifest | None = None

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """Bytes that this store has, newest first."""
        recent = self.newest.fingerprints if self.newest else ()
        return tuple(sorted({*self.registered, *recent}, reverse=True))

    @property
    def next_run(self) -> int:
        """The number of the next run."""
        return self.newest.run + 1 if self.newest else 1


def known_stores(lake: Lake) -> list[KnownStore]:
    """Return every store of the lake, in the order of their registration."""
    found = []
    for row in _rows(lake, RUNS.name, ["store_id", "broker", "time", "detail"], run=0):
        registered = tuple(Fingerprint(*item) for item in json.loads(row["detail"])["fingerprints"])
        found.append((row["time"], KnownStore(row["store_id"], row["broker"], registered)))
    return [_with_newest(lake, store) for _, store in sorted(found, key=lambda item: item[0])]


def _with_newest(lake: Lake, store: KnownStore) -> KnownStore:
    run = committed_transaction(lake.location, RUNS.name, store.store_id, lake.options)
    return KnownStore(store.store_id, store.broker, store.registered, read_manifest(lake, store.store_id, run))


def read_manifest(lake: Lake, store_id: str, run: int) -> Manifest | None:
    """Return the manifest that a prepared run names; None for run 0."""
    for row in _rows(lake, RUNS.name, ["store_id", "state", "manifest"], run=run) if run else ():
        if row["store_id"] == store_id and row["state"] == PREPARED:
            location = join(lake.location, row["manifest"])
            with storage_of(location, lake.options).open(location) as file:
                return Manifest.from_json(bytes(file.read(0, file.size)))
    if run:
        raise OSError(f"{lake.location}: run {run} of store {store_id} is prepared, but its row or manifest is gone")
    return None


def _rows(lake: Lake, table: str, columns: list[str], *, run: int) -> list[dict[str, Any]]:
    """Return the rows of one run number; the statistics in Delta's log leave few files to open."""
    import pyarrow.dataset as ds

    snapshot = open_table(lake.location, table, lake.options)
    if snapshot is None:
        return []
    dataset = snapshot.to_pyarrow_dataset()
    return dataset.to_table(columns=columns, filter=ds.field("run") == run).to_pylist()  # type: ignore[no-any-return]


def register(lake: Lake, broker: str, fingerprints: Iterable[Fingerprint], registrations: int) -> KnownStore:
    """
    Make a store known under a new id; *registrations* is how many stores were known when it was found to be new.

    `HeldByOtherError` when another registration came between: the store may be known now.
    """
    store = KnownStore(str(uuid4()), broker, tuple(fingerprints))
    detail = {"fingerprints": store.registered}
    try:
        _append_row(lake, store, 0, REGISTERED, (_REGISTRY, registrations + 1), detail=json.dumps(detail))
    except TransactionTakenError as error:
        raise HeldByOtherError("another store was registered at the same moment") from error
    return store


def prepare(lake: Lake, manifest: Manifest) -> None:
    """Decide that *manifest* will be committed; `HeldByOtherError` when another run of this number was faster."""
    name = f"{MANIFESTS}/{manifest.store_id}-{manifest.run}-{uuid4()}.json"
    location = join(lake.location, name)
    storage_of(location, lake.options).create(location, manifest.to_json())
    try:
        _append_row(
            lake,
            KnownStore(manifest.store_id, manifest.broker, ()),
            manifest.run,
            PREPARED,
            (manifest.store_id, manifest.run),
            from_offset=manifest.from_offset,
            to_offset=manifest.to_offset,
            messages=manifest.counts.get("messages", 0),
            manifest=name,
            detail=json.dumps({"counts": dict(manifest.counts), "gaps": list(manifest.gaps)}),
        )
    except TransactionTakenError as error:
        storage_of(location, lake.options).delete(location)
        raise HeldByOtherError(f"run {manifest.run} of this store was prepared by another process") from error


def commit_prepared(lake: Lake, manifest: Manifest) -> dict[str, int]:
    """Commit what a prepared run wrote, table by table, and mark it done; whatever is committed already stays so."""
    versions = {}
    for table in lake_tables():
        actions = manifest.tables.get(table.name, ())
        if not actions:
            continue
        note = {"store_id": manifest.store_id, "run": str(manifest.run)}
        try:
            versions[table.name] = commit(
                lake.location, table, actions, (manifest.store_id, manifest.run), note, lake.options
            )
        except TransactionTakenError:
            continue
    store = KnownStore(manifest.store_id, manifest.broker, ())
    with suppress(TransactionTakenError):  # somebody else finished it
        done = (_done(manifest.store_id), manifest.run)
        _append_row(lake, store, manifest.run, DONE, done, detail=json.dumps({"versions": versions}))
    return versions


def unfinished(lake: Lake, store: KnownStore) -> Manifest | None:
    """Return the prepared run that is not marked done, if the store has one."""
    done = committed_transaction(lake.location, RUNS.name, _done(store.store_id), lake.options)
    return store.newest if store.newest and store.newest.run > done else None


def sweep(lake: Lake, manifest: Manifest) -> list[str]:
    """
    Delete what attempts of this run left behind that are not in its prepared manifest; they can never be committed.

    Only after `prepare` succeeded: until then, another attempt of the same number may still win.
    """
    removed = []
    prefix = FileNaming(manifest.store_id, manifest.run).prefix
    for table in lake_tables():
        directory = join(lake.location, table.name)
        kept = {action.path for action in manifest.tables.get(table.name, ())}
        storage = storage_of(directory, lake.options)
        try:
            names = [info.name for info in storage.list_files(directory)]
        except FileNotFoundError:
            continue
        for name in names:
            if name.startswith(prefix) and name not in kept:
                storage.delete(join(directory, name))
                removed.append(f"{table.name}/{name}")
    return removed


def thinned(fingerprints: Iterable[Fingerprint]) -> tuple[Fingerprint, ...]:
    """Keep the newest fingerprints, and ever fewer of the older ones: a few dozen know a store for ever."""
    newest_first = sorted(set(fingerprints), reverse=True)
    kept = newest_first[:_NEWEST_KEPT]
    step = 2
    rest = newest_first[_NEWEST_KEPT:]
    while rest:
        kept.append(rest[0])
        rest = rest[step:]
        step *= 2
    return tuple(kept)


def lake_tables() -> tuple[Table, ...]:
    """Return the tables that runs commit to, in the order of commits."""
    return (messages_table(), QUARANTINE)


def _done(store_id: str) -> str:
    return f"{store_id}/done"


def _append_row(
    lake: Lake,
    store: KnownStore,
    run: int,
    state: str,
    transaction: tuple[str, int],
    **values: Any,  # noqa: ANN401
) -> None:
    """Append one row to `runs` under *transaction*."""
    constants = {"broker": store.broker, "store_id": store.store_id}
    name = FileNaming(store.store_id, run).name(state)
    row = {"run": run, "state": state, "time": datetime.now(UTC), "host": socket.gethostname(), **values}
    with TableFile(lake.location, RUNS, name, constants, lake.options) as file:
        file.write_rows([row])
        actions = [action for action in [file.close()] if action is not None]
    try:
        commit(lake.location, RUNS, actions, transaction, {}, lake.options)
    except TransactionTakenError:
        file.discard()
        raise
