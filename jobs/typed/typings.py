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
from types import NoneType
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from jobs.console.result import OtherRunActiveError
from jobs.lake.commit import (
    ObsoleteRows,
    TransactionTakenError,
    commit,
    commit_rows,
    find_newest_transaction,
    read_rows,
    refuse_lost_files,
    rewrite_without_rows,
)
from jobs.lake.lake import Lake
from jobs.lake.lock import hold_lock
from jobs.lake.manifest import read_stored_manifest, storing_manifest
from jobs.lake.runs import delete_manifests_up_to, delete_uncommitted_files, discard_files
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.lake.tables import DEAD_LETTERS, TYPING_APPLICATION, TYPINGS, Table, sql_columns
from jobs.storage.json_file import find_problem
from jobs.typed.ddl import parse_columns, typed_table

_KEPT = 8  # manifests
_DECLARED = {"columns": str, "from": dict, "properties": [str]}  # the keys that the next typing compares
_MANIFEST = {
    "number": int,
    "topics": {
        str: {
            "declared": (_DECLARED, {"by": str, "types": {str: _DECLARED}}),
            "stores": {str: {"run": int, "to_offset": int}},
            "tables": {str: str},
            "open?": {"since": int, "reasons": {str: int}},
        }
    },
    "changes": [
        {
            "table": str,
            "columns": (str, NoneType),
            "added": [[str, int, int, str, int]],
            "removed": [{"store_id?": str, "from_offset": (int, NoneType)}],
            "replaces": bool,
        }
    ],
    "detail": dict,
}
EVERY_ROW = ObsoleteRows({}, 0)


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """The progress of typing the messages of a store."""

    run: int  # the newest run of the store that was typed
    to_offset: int  # messages before it are typed


@dataclass(frozen=True, slots=True)
class OpenDeadLetters:
    """The dead letters since the typing that had more than its limit allows, and that no user has acknowledged."""

    since: int  # the number of this typing
    reasons: Mapping[str, int]  # the number of messages, by reason

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(self.reasons.values())


@dataclass(frozen=True, slots=True)
class TopicState:
    """The declaration by which a topic is typed, and the progress."""

    declared: Mapping[str, object]  # the result of `TopicType.to_dict`
    stores: Mapping[str, StoreProgress]
    tables: Mapping[str, pa.Schema]  # the columns of the bodies, by table
    open: OpenDeadLetters | None = None


NEVER_TYPED = TopicState({}, {}, {})


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit of a typing."""

    table: str
    columns: pa.Schema | None  # the columns of the bodies; None for `dead_letters`
    added: tuple[AddedFile, ...] = ()
    removed: tuple[ObsoleteRows, ...] = ()
    replaces: bool = False  # whether all rows of the table are replaced


@dataclass(frozen=True, slots=True)
class Typing:
    """Everything that a typing will commit, and where the next one begins."""

    number: int
    topics: Mapping[str, TopicState]
    changes: tuple[TableCommit, ...]
    detail: Mapping[str, object] = field(default_factory=dict)
    version: int = 1

    @property
    def naming(self) -> FileNaming:
        """The scheme by which the typing's files are named."""
        return FileNaming(TYPING_APPLICATION, self.number)

    def to_json(self) -> bytes:
        """Return the stored form."""
        values = asdict(self)
        for change in values["changes"]:
            change["removed"] = [{**one.values, "from_offset": one.from_offset} for one in change["removed"]]
        return json.dumps(values, default=sql_columns).encode()  # schemas as SQL

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Typing":
        """Return the typing with these stored values."""
        problem = find_problem(values, _MANIFEST)
        if problem is not None:
            raise TypeError(problem)
        for one in values["changes"]:
            one["columns"] = None if one["columns"] is None else pa.schema(parse_columns(one["columns"]))
            one["added"] = tuple(AddedFile(*action) for action in one["added"])
            one["removed"] = tuple(
                ObsoleteRows({name: value for name, value in rows.items() if value is not None}, from_offset or 0)
                for rows, from_offset in ((rows, rows.pop("from_offset")) for rows in one["removed"])
            )
        for state in values["topics"].values():
            state["stores"] = {store: StoreProgress(**reached) for store, reached in state["stores"].items()}
            state["tables"] = {table: pa.schema(parse_columns(text)) for table, text in state["tables"].items()}
            state["open"] = OpenDeadLetters(**state["open"]) if state.get("open") else None
        values["changes"] = tuple(TableCommit(**one) for one in values["changes"])
        values["topics"] = {topic: TopicState(**state) for topic, state in values["topics"].items()}
        return cls(**values)


def read_newest_typing(lake: Lake) -> Typing:
    """Return the newest prepared typing; an empty one with number 0 if the lake was never typed."""
    number = find_newest_transaction(lake, TYPINGS.name, TYPING_APPLICATION)
    if not number:
        return Typing(0, {}, ())
    found = read_rows(lake, TYPINGS.name, ("manifest",), ds.field("typing") == number)
    if not found:
        raise OSError(
            f"{lake.locate(TYPINGS.name)}: run {number} of `type` is prepared, but its row is missing. Restore this "
            "table from a backup"
        )
    missing = "this manifest is missing; without it, `type` cannot continue. Restore the file from a backup of the lake"
    return read_stored_manifest(lake, found[0][0], Typing.from_json, "typing", missing)


def list_typed_tables(lake: Lake) -> list[Table]:
    """Return the typed tables of a lake, in the order in which their topics were first typed."""
    return [table for _, table in list_tables_by_topic(lake)]


def list_tables_by_topic(lake: Lake) -> list[tuple[str, Table]]:
    """Return each typed table of a lake with its topic, in the order in which the topics were first typed."""
    topics = read_newest_typing(lake).topics.items()
    return [(topic, typed_table(name, columns)) for topic, one in topics for name, columns in one.tables.items()]


def prepare_typing(lake: Lake, typing: Typing) -> None:
    """Prepare *typing*, so that it will be committed; `OtherRunActiveError` if its number is already taken."""
    for change in typing.changes:
        refuse_lost_files(lake, change.table, change.added)
    row = {
        "typing": typing.number,
        "time": datetime.now(UTC),
        "host": socket.gethostname(),
        "detail": json.dumps(typing.detail),
    }
    whose, name = {"broker": "", "store_id": ""}, typing.naming.new_file_name("prepared")
    try:
        files = {change.table: change.added for change in typing.changes}
        with storing_manifest(lake, typing.naming, typing.to_json(), files) as path:
            commit_rows(lake, TYPINGS, name, whose, [{**row, "manifest": path}], (TYPING_APPLICATION, typing.number))
    except TransactionTakenError as error:
        discard_files(lake, {change.table: change.added for change in typing.changes})
        raise OtherRunActiveError(
            f"run {typing.number} of `type` on this lake was prepared by another process. Run the command again"
        ) from error


def commit_typing(lake: Lake, typing: Typing) -> None:
    """Commit a prepared typing, table by table, to the tables that do not have it yet."""
    transaction = (TYPING_APPLICATION, typing.number)
    note = {"typing": str(typing.number)}
    for change in typing.changes:
        table = DEAD_LETTERS if change.columns is None else typed_table(change.table, change.columns)
        with suppress(TransactionTakenError):  # another process committed it
            rewrite = rewrite_without_rows(lake, table, change.removed, transaction) if change.removed else None
            commit(lake, table, change.added, transaction, note, rewrite, replaces=change.replaces)


def complete_typing(lake: Lake) -> None:
    """Commit the newest prepared typing to the tables that do not have it yet, unless another process is doing so."""
    if not find_newest_transaction(lake, TYPINGS.name, TYPING_APPLICATION):
        return
    # If files of the typing were lost, `type` reads the messages again.
    with suppress(OtherRunActiveError, FileNotFoundError), hold_lock(lake, TYPING_APPLICATION):
        commit_typing(lake, without_committed_changes(lake, read_newest_typing(lake)))


def without_committed_changes(lake: Lake, typing: Typing) -> Typing:
    """Return a typing with only the changes that are not committed yet."""
    changes = (
        one for one in typing.changes if find_newest_transaction(lake, one.table, TYPING_APPLICATION) < typing.number
    )
    return replace(typing, changes=tuple(changes))


def delete_typing_leftovers(lake: Lake, typing: Typing) -> None:
    """Delete the leftover files of a committed typing, and old manifests."""
    tables = {table for state in typing.topics.values() for table in state.tables}
    for table in {*(change.table for change in typing.changes), DEAD_LETTERS.name, TYPINGS.name, *tables}:
        delete_uncommitted_files(lake, table, typing.naming)
    delete_manifests_up_to(lake, TYPING_APPLICATION, typing.number - _KEPT)
