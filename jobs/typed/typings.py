"""
Typings: how rows are written to typed tables exactly once.

The row in `typings` that names a typing's manifest is the commit point, as a run's row in `runs` is: any later typing
completes it from the manifest alone. The newest manifest states where the next typing begins.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow.dataset as ds

from jobs.lake.commit import (
    TransactionTakenError,
    commit,
    commit_rows,
    committed_transaction,
    lost_files,
    refuse_lost_files,
    rows,
)
from jobs.lake.lake import Lake
from jobs.lake.runs import (
    MANIFEST_VERSION,
    OtherRunActiveError,
    delete_old_manifests,
    discard_files,
    read_stored_manifest,
    stored_manifest,
    sweep_table,
)
from jobs.lake.superseded import ObsoleteRows, rewrite_without_rows
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.lake.tables import DEAD_LETTERS, TYPINGS, Table
from jobs.typed.ddl import TYPING_APPLICATION, parse_columns, typed_table

_KEPT = 8  # manifests
EVERY_ROW = ObsoleteRows({}, 0)


@dataclass(frozen=True, slots=True)
class StoreState:
    """How far a topic of a store is typed."""

    run: int  # the newest run of the store whose messages were there
    to_offset: int  # messages before it are typed


@dataclass(frozen=True, slots=True)
class TopicState:
    """How a topic is typed, and how far."""

    declared: Mapping[str, object]  # `TopicType.described`
    stores: Mapping[str, StoreState]
    tables: Mapping[str, str]  # the columns of its tables


NEVER_TYPED = TopicState({}, {}, {})


@dataclass(frozen=True, slots=True)
class TableChange:
    """One commit of a typing."""

    table: str
    columns: str | None  # of the bodies, in SQL; None of `dead_letters`
    added: tuple[AddedFile, ...] = ()
    removed: tuple[ObsoleteRows, ...] = ()
    replaces: bool = False  # all rows that the table has


@dataclass(frozen=True, slots=True)
class Typing:
    """Everything that a typing will commit, and where the next one begins."""

    number: int
    topics: Mapping[str, TopicState]
    changes: tuple[TableChange, ...]
    detail: Mapping[str, object] = field(default_factory=dict)
    version: int = MANIFEST_VERSION

    @property
    def naming(self) -> FileNaming:
        """How the files of the typing are called."""
        return FileNaming(TYPING_APPLICATION, self.number)

    def to_json(self) -> bytes:
        """Return the stored form."""
        values = asdict(self)
        for change in values["changes"]:
            change["removed"] = [{**one.values, "from_offset": one.from_offset} for one in change["removed"]]
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Typing":
        """Return the typing with these stored values."""
        for one in values["changes"]:
            one["added"] = tuple(AddedFile(*action) for action in one["added"])
            one["removed"] = tuple(map(_obsolete, one["removed"]))
        for state in values["topics"].values():
            state["stores"] = {store: StoreState(**reached) for store, reached in state["stores"].items()}
        values["changes"] = tuple(TableChange(**one) for one in values["changes"])
        values["topics"] = {topic: TopicState(**state) for topic, state in values["topics"].items()}
        return cls(**values)


def _obsolete(removed: dict[str, str | int | None]) -> ObsoleteRows:
    from_offset = removed.pop("from_offset")
    return ObsoleteRows({name: value for name, value in removed.items() if value is not None}, int(from_offset or 0))


def newest_typing(lake: Lake) -> Typing:
    """Return the newest typing that was prepared; in a lake that was never typed an empty one with the number 0."""
    number = committed_transaction(lake, TYPINGS.name, TYPING_APPLICATION)
    if not number:
        return Typing(0, {}, ())
    found = rows(lake, TYPINGS.name, ("manifest",), ds.field("typing") == number)
    if not found:
        raise OSError(f"{lake.locate(TYPINGS.name)}: typing {number} is prepared, but its row is missing")
    missing = "this manifest is missing; without it no topic can be typed any further"
    return read_stored_manifest(lake, found[0][0], Typing.from_json, "typing", missing)


def typed_tables(lake: Lake) -> list[Table]:
    """Return the typed tables that a lake has, in the order of their names."""
    columns = {name: text for state in newest_typing(lake).topics.values() for name, text in state.tables.items()}
    return [typed_table(name, parse_columns(text)) for name, text in sorted(columns.items())]


def prepare(lake: Lake, typing: Typing) -> None:
    """Decide that *typing* will be committed; `OtherRunActiveError` when another one of its number was faster."""
    for change in typing.changes:
        refuse_lost_files(lake, change.table, change.added)
    row = {
        "typing": typing.number,
        "time": datetime.now(UTC),
        "host": socket.gethostname(),
        "detail": json.dumps(typing.detail),
    }
    whose, name = {"broker": "", "store_id": ""}, typing.naming.name("prepared")
    try:
        with stored_manifest(lake, typing.naming, typing.to_json()) as path:
            commit_rows(lake, TYPINGS, name, whose, [{**row, "manifest": path}], (TYPING_APPLICATION, typing.number))
    except TransactionTakenError as error:
        discard_files(lake, {change.table: change.added for change in typing.changes})
        raise OtherRunActiveError(f"typing {typing.number} of this lake was prepared by another process") from error


def commit_typing(lake: Lake, typing: Typing) -> None:
    """Commit the files of a prepared typing, table by table; those committed already stay so."""
    transaction = (TYPING_APPLICATION, typing.number)
    note = {"typing": str(typing.number)}
    for change in typing.changes:
        table = DEAD_LETTERS if change.columns is None else typed_table(change.table, parse_columns(change.columns))
        with suppress(TransactionTakenError):  # another process committed it
            rewrite = rewrite_without_rows(lake, table, change.removed, transaction) if change.removed else None
            commit(lake, table, change.added, transaction, note, rewrite, replaces=change.replaces)


def remaining_changes(lake: Lake, typing: Typing) -> Typing:
    """Return a typing with the changes alone that no table has yet."""
    changes = (
        one for one in typing.changes if committed_transaction(lake, one.table, TYPING_APPLICATION) < typing.number
    )
    return replace(typing, changes=tuple(changes))


def lost_file(lake: Lake, typing: Typing) -> str | None:
    """Return the location of a file that a typing wrote and that is not there any more."""
    return next((lost for one in typing.changes for lost in lost_files(lake, one.table, one.added)), None)


def sweep_typing(lake: Lake, typing: Typing) -> None:
    """Delete what attempts of a committed typing left, and the manifests of long ago."""
    tables = {table for state in typing.topics.values() for table in state.tables}
    for table in {*(change.table for change in typing.changes), DEAD_LETTERS.name, TYPINGS.name, *tables}:
        sweep_table(lake, table, typing.naming)
    delete_old_manifests(lake, TYPING_APPLICATION, typing.number - _KEPT)
