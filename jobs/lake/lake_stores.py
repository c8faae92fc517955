"""
The stores of a lake.

Their registrations and labels, the newest run of each, and the gaps that their runs have left.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple, cast
from uuid import uuid4

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.console.amounts import names_text, utc_time_text
from jobs.console.result import OtherRunActiveError
from jobs.lake.commit import (
    ExpiredRows,
    TransactionTakenError,
    find_newest_transaction,
    open_table,
    read_rows,
    read_snapshot,
)
from jobs.lake.lake import (
    EXPIRY_DETAIL_SHAPE,
    FILLED_KEY,
    REGISTRATION_DETAIL_SHAPE,
    UNDONE_KEY,
    Lake,
    drop_undone_runs,
    parse_run_detail,
)
from jobs.lake.manifest import GapRow, Manifest, read_manifest_of_row
from jobs.lake.run_rows import (
    DONE_STATE,
    EXPIRED_STATE,
    PREPARED_STATE,
    REGISTERED_STATE,
    REGISTRY_TRANSACTION,
    append_run_row,
    done_transaction_app,
    missing_row_error,
    read_manifest,
)
from jobs.lake.snapshot_files import read_rows_where
from jobs.lake.snapshots import read_newest_transaction, refuse_older_version
from jobs.lake.table_file import FileNaming
from jobs.lake.tables import RUNS
from jobs.store.intervals import Interval, merge_intervals, subtract_intervals
from jobs.store.record_places import Fingerprint
from jobs.store.selection import TopicChoices

_NO_GAPS = '"gaps": []'  # part of the detail of a run


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
    names = ["store_id", "run", "state", "to_offset", "manifest"]
    prepared = read_rows_where(lake, snapshot, names, ds.field("run").isin(wanted)).to_pylist() if wanted else []
    rows = {(row["store_id"], row["run"]): row for row in prepared if row["state"] == PREPARED_STATE}
    found = []
    for store in stores:
        run = numbers[store.store_id]
        if run:
            row = rows.get((store.store_id, run))
            if row is None:
                raise missing_row_error(lake, store.store_id, run)
            found.append(replace(store, newest_manifest=read_manifest_of_row(lake, row)))
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

    Raises `OSError` if it is older than the newest finished run of any store recorded. It may be newer,
    because other engines also commit.
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
        append_run_row(lake, naming, named.broker, REGISTERED_STATE, transaction, detail=json.dumps(detail))
    except TransactionTakenError as error:
        raise OtherRunActiveError("another store was registered at the same moment") from error
    return named


def read_time_of_gap(lake: Lake, lake_store: LakeStore, gap: GapRow) -> datetime | None:
    """Return when a run first recorded a gap; None if no row of `runs` has it."""
    wanted = (pc.field("store_id") == lake_store.store_id) & (pc.field("state") == PREPARED_STATE)
    wanted &= ~pc.match_substring(pc.field("detail"), _NO_GAPS)
    rows = read_rows(lake, RUNS.name, ["time", "detail"], wanted)
    return min(
        (time for time, detail in rows if gap in (parse_run_detail(lake.location, detail).get("gaps") or ())),
        default=None,
    )


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
