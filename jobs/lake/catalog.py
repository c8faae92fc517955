"""
Registers a lake's tables in a catalog, by SQL statements or in an Iceberg catalog; the tables stay where they are.

An Iceberg catalog shows the same Parquet files to readers that support only Iceberg. Delta's log stays authoritative: a
registration compares the files of its newest version with those of the Iceberg table, and commits the difference. Files
are added or removed, never copied; files that Iceberg's readers cannot filter are first rewritten in the Delta table.
So after a failed registration the next one completes it, and a registration of an unchanged table does nothing.

Iceberg's metadata is in `_iceberg` below the lake, not in the tables' directories, where Delta's vacuum would delete
it.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from jobs.console.result import RequestError
from jobs.lake.commit import open_table, quote_sql_text
from jobs.lake.features import needs_spark
from jobs.lake.lake import Lake, list_views
from jobs.lake.snapshot_files import SnapshotFile, has_view_columns, list_snapshot_files
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.tables import DEAD_LETTERS, TABLES, Table, sql_type
from jobs.lake.upkeep import MergeGroup, merge_here, rewrite_files
from jobs.launch.engine import SetupError
from jobs.storage.locations import S3_SCHEMES, is_local, local_path
from jobs.storage.s3 import delta_location, iceberg_options

if TYPE_CHECKING:
    from deltalake.schema import Field
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table import Transaction
    from pyiceberg.table.snapshots import Snapshot

METADATA_DIRECTORY = "_iceberg"  # below the lake
_NAMESPACE = "rocketmq"  # the default
_OWNER = "rmq-lake.delta-table"  # property of a table: location of the Delta table that it shows
# Properties of a snapshot: the id and version of the Delta table that it shows.
_TABLE_ID, _VERSION = "rmq-lake.delta-id", "rmq-lake.delta-version"
_ATTEMPTS = 20  # attempts to commit, because other registrations may commit first
_OTHER_WRITERS = "part-"  # the names of files by deltalake and Spark begin like this; ours do not
_KEPT = 50  # snapshots that older readers may still request
_PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


# Statements by kind of catalog, except Hive's. Columns and comments are read from Delta's log; if the statement named
# them, they would have to be the same.
_BY_SPARK = "CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {place}"
_FROM_LOG = {
    "spark": _BY_SPARK,
    "unity": _BY_SPARK,
    "glue": "CREATE EXTERNAL TABLE {name}\nLOCATION {place}\nTBLPROPERTIES ('table_type' = 'DELTA')",
}


def catalog_statements(
    lake: Lake, kind: str, schema: str, typed_tables: Iterable[Table] = ()
) -> Iterator[tuple[str | None, str]]:
    """
    Yield each table's name and statement, *typed_tables* last. The first statement creates the schema and has no name.

    The *kind* of catalog (spark, unity, glue or hive) determines the SQL dialect.
    """
    if kind in {"unity", "glue"} and is_local(lake.location):
        reason = f"{lake.location}: {kind.title()} cannot read local paths; pass the lake's s3a:// location"
        raise RequestError(reason)
    there = [
        (table, snapshot)
        for table in (*TABLES, *typed_tables)
        if (snapshot := open_table(lake, table.name)) is not None
    ]
    name = ".".join(_quote(part, kind) for part in schema.split("."))
    if there:
        kind_of_schema = "SCHEMA" if kind == "unity" else "DATABASE"
        yield None, f"CREATE {kind_of_schema} IF NOT EXISTS {name}"
    taken = set[str]()
    for table, snapshot in there:
        place = quote_sql_text(_location_in_sql(lake.locate(table.name), kind))
        own = catalog_name(table)
        # Catalogs ignore case. The table that was typed first keeps its name, because it may be registered already.
        distinct = next(
            one for one in (own, *(f"{own}_{n}" for n in range(2, len(there) + 2))) if one.lower() not in taken
        )
        taken.add(distinct.lower())
        full_name = f"{name}.{_quote(distinct, kind)}"
        yield table.name, _create_statement(kind, full_name, place, table, snapshot)
    if kind in {"spark", "unity"}:
        known = {table.name for table, _ in there}
        for view in list_views():
            if known.issuperset(view.tables):
                # Without the schema, the engine would look for the tables in the querying user's current schema.
                sql = re.sub(rf"\b(FROM|JOIN) ({'|'.join(view.tables)})\b", rf"\1 {name}.\2", view.sql)
                comment = quote_sql_text(view.row_meaning)
                yield view.name, f"CREATE OR REPLACE VIEW {name}.{view.name} COMMENT {comment} AS\n{sql.rstrip()}"


def catalog_name(table: Table) -> str:
    """
    Return a table's name in a catalog.

    `dead_letters` is the name of the view of messages that consumers gave up on.
    """
    return f"typed_{table.name}" if table is DEAD_LETTERS else table.name.replace("/", "_")


def _create_statement(kind: str, name: str, location: str, table: Table, snapshot: DeltaTable) -> str:
    if kind != "hive":
        return _FROM_LOG[kind].format(name=name, place=location)
    schema = snapshot.schema()
    columns = ",\n".join(
        f"  {_quote(field.name, kind)} {sql_type(type_)}" + (f" COMMENT {quote_sql_text(comment)}" if comment else "")
        for field, type_ in zip(schema.fields, pa.schema(schema).types, strict=True)
        for comment in [column_comment(field)]
    )
    return (
        f"CREATE EXTERNAL TABLE IF NOT EXISTS {name} (\n{columns}\n)\n"
        f"COMMENT {quote_sql_text(f'Each row is {table.row_meaning}.')}\n"
        f"STORED BY 'io.delta.hive.DeltaStorageHandler'\nLOCATION {location}"
    )


def _location_in_sql(location: str, kind: str) -> str:
    """Return a location with the URI scheme that the catalog's engine uses: s3a is Hadoop's name for S3."""
    scheme, separator, rest = location.partition("://")
    if kind in {"unity", "glue"} and scheme in S3_SCHEMES:
        return f"s3://{rest}/"
    return location if separator else f"file://{location}"


def _quote(name: str, kind: str) -> str:
    # Athena does not accept backquotes around a dot.
    return name if kind == "glue" else f"`{name.replace('`', '``')}`"


def column_comment(field: "Field") -> str:
    """Return a column's comment; empty if another engine added the column."""
    return str(field.metadata.get("comment", ""))


def parse_iceberg_target(text: str) -> str:
    """Return CATALOG.NAMESPACE for such a text or for CATALOG alone; raise `ValueError` if it is not configured."""
    catalog, _, namespace = text.partition(".")
    if find_spec("pyiceberg") is None:
        raise SetupError("--iceberg requires pyiceberg: pip install 'rocketmq-lake[iceberg]'")
    try:
        from pyiceberg.utils.config import Config

        known = Config().get_known_catalogs()
    except Exception as error:  # the errors of a YAML parser, for a file that users write
        reason = " ".join(str(error).split())
        raise ValueError(f"pyiceberg cannot read its configuration, .pyiceberg.yaml: {reason}") from error
    if catalog not in known:
        raise ValueError(
            f"pyiceberg has no catalog {catalog!r}: define it in ~/.pyiceberg.yaml, or set "
            f"PYICEBERG_CATALOG__{catalog.upper()}__URI"
        )
    return f"{catalog}.{namespace or _NAMESPACE}"


class Registration(NamedTuple):
    """The effect of a registration on one table."""

    table: str
    version: int  # the version of the Delta table
    added: int = 0  # files
    removed: int = 0


_Shown: TypeAlias = tuple[str | None, int]  # a Delta table and its version; for a foreign snapshot None and -1


def _version_shown_by(snapshot: "Snapshot | None") -> _Shown:
    noted = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return (noted[_TABLE_ID], int(noted[_VERSION])) if _TABLE_ID in noted else (None, -1)


def _version_of(snapshot: DeltaTable) -> _Shown:
    return str(snapshot.metadata().id), snapshot.version()


class Registrar:
    """Keeps an Iceberg catalog up to date with a lake; can be used repeatedly."""

    def __init__(self, target: str) -> None:
        """Store the target; each registration opens its own connection."""
        self._target = target
        self._name, *namespace = target.split(".")
        self._namespace = tuple(namespace)
        self._shown: dict[str, _Shown] = {}  # the last known state of the catalog, by table

    def register(self, lake: Lake, typed_tables: Iterable[Table] = ()) -> list[Registration]:
        """Register the newest version of each table, including *typed_tables*; raise `OSError` if one failed."""
        done, refused = [], []
        try:
            with closing(self._connect(lake)) as catalog:
                for table in (*TABLES, *typed_tables):
                    try:
                        registration = self._register(catalog, lake, table)
                    except UnsupportedTableError as error:  # the other tables are still registered
                        refused.append(str(error))
                    else:
                        done += [registration] if registration is not None else []
        except Exception as error:  # a catalog is a server, a database, or third-party code
            raise self._failure(lake, str(error) or type(error).__name__) from error
        if refused:
            raise self._failure(lake, "; ".join(refused))
        return done

    def _failure(self, lake: Lake, reason: str) -> OSError:
        first = next(iter(reason.strip().splitlines()), "")
        return OSError(
            f"Iceberg catalog {self._target}: not up to date with {lake.location}: {first}; the Delta tables are "
            f"complete, and the next command with --iceberg {self._target} registers the missing files"
        )

    def _connect(self, lake: Lake) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        # pyiceberg warns about each column without statistics, which our writer leaves out on purpose.
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)
        catalog = load_catalog(self._name, **iceberg_options(lake.location, lake.options))
        with ExitStack() as stack:
            stack.callback(catalog.close)
            if not catalog.namespace_exists(self._namespace):
                catalog.create_namespace_if_not_exists(self._namespace)
            stack.pop_all()
        return catalog

    def _register(self, catalog: "Catalog", lake: Lake, table: Table) -> Registration | None:
        """Register the newest version of a table; None if the table does not exist."""
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_ATTEMPTS):
            snapshot = open_table(lake, table.name)
            if snapshot is None:
                return None
            if self._shown.get(table.name) == _version_of(snapshot):
                return Registration(table.name, snapshot.version())
            if _rewrite_unreadable_files(lake, table, snapshot):
                snapshot = open_table(lake, table.name) or snapshot
            newest = _version_of(snapshot)
            registered = self._load(catalog, lake, table, snapshot)
            shown = _version_shown_by(registered.current_snapshot())
            if shown[0] == newest[0] and shown[1] > newest[1]:
                snapshot = open_table(lake, table.name) or snapshot  # opened after the catalog's, so at least as new
                newest = _version_of(snapshot)
            try:
                change = _commit_difference(registered, lake, table, snapshot) if shown != newest else (0, 0)
            except CommitFailedException:  # another process registers this table
                continue
            self._shown[table.name] = newest
            return Registration(table.name, newest[1], *change)
        raise OSError(
            f"{table.name}: {_ATTEMPTS} commit attempts failed because of concurrent commits. Run the command again"
        )

    def _load(self, catalog: "Catalog", lake: Lake, table: Table, snapshot: DeltaTable) -> "IcebergTable":
        """Return the catalog's table, creating it if necessary; refuse a table with another owner."""
        from pyiceberg.exceptions import NoSuchTableError

        name = (*self._namespace, catalog_name(table))
        owner = _location_in_iceberg(lake.locate(table.name))
        try:
            found = catalog.load_table(name)
        except NoSuchTableError:
            found = catalog.create_table_if_not_exists(
                name,
                _arrow_schema(snapshot),
                location=_location_in_iceberg(lake.locate(METADATA_DIRECTORY, *name)),
                properties={_OWNER: owner, **_PROPERTIES},
            )
        known = found.properties.get(_OWNER)
        if known != owner:
            whose = f"belongs to {known}" if known else "was not created by rmq-lake"
            raise UnsupportedTableError(
                f"{'.'.join(name)} {whose}, and was not changed: choose another namespace "
                f"(--iceberg {self._name}.NAME), or drop that table"
            )
        return found


def _rewrite_unreadable_files(lake: Lake, table: Table, snapshot: DeltaTable) -> bool:
    """
    Rewrite files with types that pyiceberg cannot compare, in a commit that changes no data; return whether any were.

    A DELETE, UPDATE or MERGE of deltalake writes Arrow's views (`string_view`) into the schema of a file.
    """
    unreadable = {
        file.path
        for file in list_snapshot_files(lake, snapshot, table)
        if file.path.rpartition("/")[2].startswith(_OTHER_WRITERS) and has_view_columns(lake, table, file)
    }
    if not unreadable:
        return False
    if needs_spark(snapshot):
        raise _unsupported_type(f"{lake.locate(table.name)}/{min(unreadable)}", "string_view", lake.locate(table.name))

    def plan(stored: Sequence[SnapshotFile]) -> list[MergeGroup]:
        return [([file], f"compacted-{uuid4()}.parquet", None) for file in stored if file.path in unreadable]

    rewrite_files(lake, table, plan, merge_here)
    return True


def _commit_difference(registered: "IcebergTable", lake: Lake, table: Table, snapshot: DeltaTable) -> tuple[int, int]:
    """Commit the difference between the Iceberg and the Delta table; return the number of added and removed files."""
    wanted = _list_wanted_paths(lake, table, snapshot)
    there = _list_data_files(registered)
    new, gone = [path for path in wanted if path not in there], there.keys() - wanted
    # If pyiceberg repeated the commit after a concurrent registration, it would add the same files a second time.
    registered.metadata.properties["commit.retry.num-retries"] = "0"  # in this object only, not in the catalog
    transaction = registered.transaction()
    _adapt_schema(transaction, _arrow_schema(snapshot), is_replaced=there.keys() <= gone)
    if new or gone:
        if transaction.table_metadata.name_mapping() is None:  # our files have no field ids
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})
        table_id, version = _version_of(snapshot)
        noted = {_TABLE_ID: str(table_id), _VERSION: str(version)}
        update = transaction.update_snapshot(snapshot_properties=noted)
        with update.overwrite() if gone else update.merge_append() as producer:
            for path in gone:
                producer.delete_data_file(there[path])
            for path in new:
                producer.append_data_file(_describe_file(registered, transaction, path, lake.locate(table.name)))
    _forget_snapshots(transaction.commit_transaction())
    return len(new), len(gone)


def _describe_file(registered: "IcebergTable", transaction: "Transaction", path: str, table: str) -> "DataFile":
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, parquet_file_to_data_file

    try:
        return parquet_file_to_data_file(registered.io, transaction.table_metadata, path)
    except (KeyError, UnsupportedPyArrowTypeException) as error:
        # Times in 96 bits, as Spark writes them by default; elements of a list that are not called `element`.
        raise _unsupported_type(path, str(error), table) from error


def _unsupported_type(path: str, kind: str, table: str) -> UnsupportedTableError:
    statements = "SET spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS; INSERT OVERWRITE {0} SELECT * FROM {0}"
    return UnsupportedTableError(
        f"{path}: another engine wrote a column of a type that pyiceberg does not support ({kind}). To rewrite the "
        f"table, run in Spark SQL: {statements.format(f'delta.`{table}`')}"
    )


def _list_wanted_paths(lake: Lake, table: Table, snapshot: DeltaTable) -> list[str]:
    """Return the paths of a snapshot's files; raise `UnsupportedTableError` if they do not contain exactly its rows."""
    stored = list_snapshot_files(lake, snapshot, table)
    location = lake.locate(table.name)
    if any(file.kept_row_mask is not None for file in stored):
        raise UnsupportedTableError(
            f"{location}: another engine has deleted rows with deletion vectors, which this registration does not "
            "support; run in Spark SQL: SET spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS; REORG TABLE "
            f"delta.`{location}` APPLY (PURGE)"
        )
    return [_location_in_iceberg(lake.locate(table.name, file.path)) for file in stored]


def _list_data_files(registered: "IcebergTable") -> "dict[str, DataFile]":
    from pyiceberg.manifest import ManifestContent

    current = registered.current_snapshot()
    found: dict[str, DataFile] = {}
    for manifest in current.manifests(registered.io) if current is not None else ():
        if manifest.content is ManifestContent.DELETES:
            name = ".".join(registered.name())
            raise UnsupportedTableError(
                f"{name}: another engine has deleted rows of this Iceberg table. Drop the Iceberg table without PURGE; "
                "the next run registers it again"
            )
        entries = manifest.fetch_manifest_entry(registered.io)
        found |= {entry.data_file.file_path: entry.data_file for entry in entries}
    return found


def _adapt_schema(transaction: "Transaction", schema: pa.Schema, *, is_replaced: bool) -> None:
    """Give the Iceberg table the Delta table's columns; their types may change only if every file *is_replaced*."""
    known, wanted = _types(transaction.table_metadata.schema().as_arrow()), _types(schema)
    if known == wanted:
        return
    changed = [name for name, type_ in known.items() if wanted.get(name) != type_] if is_replaced else []
    if changed:
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            for name in changed:
                update.delete_column(name)
    with transaction.update_schema() as update:
        update.union_by_name(schema)


def _types(schema: pa.Schema) -> Mapping[str, str]:
    """Return the type of each column as in Iceberg, without field ids."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    plain = pa.schema([pa.field(field.name, field.type) for field in schema])
    return {field.name: str(field.field_type) for field in _pyarrow_to_schema_without_ids(plain).fields}


def _forget_snapshots(registered: "IcebergTable") -> None:
    """Expire old snapshots once there are many, and delete the files that only they need."""
    snapshots = sorted(registered.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    if len(snapshots) < 2 * _KEPT:
        return
    named = {reference.snapshot_id for reference in registered.metadata.refs.values()}
    old = [snapshot for snapshot in snapshots[:-_KEPT] if snapshot.snapshot_id not in named]
    # A removed manifest is never used again, so the oldest remaining snapshot lists every old manifest in use.
    stay = [snapshots[-_KEPT], *(snapshot for snapshot in snapshots if snapshot.snapshot_id in named)]
    needed = set(_list_manifests(registered, stay))
    needless = {*_list_manifests(registered, old), *(snapshot.manifest_list for snapshot in old)} - needed
    registered.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
    for path in needless:
        with suppress(OSError):  # remaining files only take a little space
            registered.io.delete(path)


def _list_manifests(registered: "IcebergTable", snapshots: "Iterable[Snapshot]") -> Iterator[str]:
    return (manifest.manifest_path for snapshot in snapshots for manifest in snapshot.manifests(registered.io))


def _arrow_schema(snapshot: DeltaTable) -> pa.Schema:
    comments = {field.name: column_comment(field) for field in snapshot.schema().fields}
    return pa.schema(
        [
            pa.field(field.name, field.type, metadata={"doc": comments[field.name]} if comments[field.name] else None)
            for field in pa.schema(snapshot.schema())
        ]
    )


def _location_in_iceberg(location: str) -> str:
    """Return a location in the form that Iceberg readers use; pyiceberg would truncate a URI at these characters."""
    if not is_local(location):
        if any(character in location for character in "#?"):
            raise UnsupportedTableError(f"{location}: Iceberg does not support '#' and '?' in the location of a lake")
        return delta_location(location)
    path = local_path(location)
    return path if any(character in path for character in "#?") else f"file://{path}"
