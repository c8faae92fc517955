"""
Delta features that other engines enable on our tables: which ones we maintain, and which ones we refuse.

Every writer of a table must respect its features. Some require nothing of us, and some (deletion vectors) are
supported. The others are refused: the error names them and the statements that drop them. This is checked at the start
of a command, and for each snapshot on which a commit is based. The table in docs/internals/guarantees.md lists them.

`deltalake` writes tables whose features are all in `SUPPORTED_FEATURES`. For those in `SPARK_ONLY_FEATURES`, Spark's
Delta commits our files (`jobs.lake.commit`), on local file systems only: on S3 it supports only one writing driver.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from deltalake import DeltaTable, Schema

from jobs.lake.lake import Lake
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.tables import TABLES_BY_NAME, Table
from jobs.launch.engine import has_session, why_spark_cannot_start
from jobs.storage.locations import is_local

SUPPORTED_FEATURES = frozenset(
    {
        "appendOnly",  # every table of version 2 has it; the property decides
        "changeDataFeed",  # readers derive changes from whole files: no commit of ours changes a part of one
        "checkConstraints",  # decided by constraints
        "deletionVectors",
        "generatedColumns",  # decided by a column's expression
        "invariants",  # every table of version 2 has it; a column's expression decides
        "timestampNtz",
        "v2Checkpoint",
    }
)
SPARK_ONLY_FEATURES = frozenset(
    {
        "allowColumnDefaults",  # decided by a column's default
        "checkpointProtection",
        "clustering",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "typeWidening",  # only for columns that others added: a changed type of our own columns is refused
        "typeWidening-preview",
        "vacuumProtocolCheck",
    }
)
_DROPPED = ("rowTracking", "domainMetadata", "inCommitTimestamp")  # the features that can be dropped, in this order
_CONSTRAINT = "delta.constraints."
_FORGOTTEN_RUNS = "delta.setTransactionRetentionDuration"  # Delta's log forgets which runs a table has
_EXPRESSIONS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}
_DEFAULT = "CURRENT_DEFAULT"
_COMMIT = re.compile(r"\d{20}\.json")

_Refusal: TypeAlias = tuple[str, tuple[str, ...]]  # a feature that we do not write, and the statements that drop it


def refuse_unsupported_features(lake: Lake, snapshot: DeltaTable, table: Table) -> None:
    """Raise `UnsupportedTableError` if a table has a feature that we cannot write."""
    location = lake.locate(table.name)
    found = list(_find_refusals(lake, snapshot, table))
    lacking = why_spark_cannot_start() if needs_spark(snapshot) and not has_session() else ""
    if lacking:
        used = _features(snapshot) & SPARK_ONLY_FEATURES
        what, drop = _describe_refused(lake, table, used)
        # RESTORE would also remove the rows that runs have added since with Spark.
        found.append((what, drop if used <= {*_DROPPED} else ()))
    if not found:
        return
    statements = dict.fromkeys(line.format(table=f"delta.`{location}`") for _, drop in found for line in drop)
    what = ", ".join(what for what, _ in found)
    raise UnsupportedTableError(
        f"{location}: another engine has enabled features on this table that rmq-lake does not support"
        f"{' without Spark' if lacking else ''}: {what}; nothing was written. "
        + (f"Delta Lake on Spark could write it, but Spark cannot be started: {lacking} " if lacking else "")
        + (f"To remove these features, run in Spark SQL: {'; '.join(statements)}" if statements else "")
    )


def needs_spark(snapshot: DeltaTable) -> bool:
    """Return whether a table has features for which only Spark's Delta can write correct commits."""
    return bool(SPARK_ONLY_FEATURES & _features(snapshot))


def _features(snapshot: DeltaTable) -> set[str]:
    protocol = snapshot.protocol()
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}


def _writable(lake: Lake) -> frozenset[str]:
    return SUPPORTED_FEATURES | SPARK_ONLY_FEATURES if is_local(lake.location) else SUPPORTED_FEATURES


def refuse_unreadable_layout(
    lake: Lake, snapshot: DeltaTable, paths: Iterable[str], table: Table | None = None
) -> None:
    """Refuse a table with column mapping, changed columns or partitions, or *paths* in another table (CLONE)."""
    table = table or TABLES_BY_NAME[snapshot.table_uri.rstrip("/").rpartition("/")[2]]
    location = lake.locate(table.name)
    metadata = snapshot.metadata()
    what = ["column mapping"] if _is_mapped(metadata.configuration) else []
    what += _find_layout_differences(snapshot.schema(), metadata.partition_columns, table)
    statements = _restore_statements(lake, table) if what else ()
    if not what and any(":/" in path for path in paths):
        what = ["files of another table (CLONE)"]
        statements = ("CREATE OR REPLACE TABLE {table} USING delta AS SELECT * FROM {table}",)
    if what:
        raise UnsupportedTableError(
            f"{location}: another engine has enabled features on this table that rmq-lake cannot read: "
            f"{', '.join(what)}. To remove these features, run in Spark SQL: "
            f"{'; '.join(statements).format(table=f'delta.`{location}`')}"
        )


def _find_refusals(lake: Lake, snapshot: DeltaTable, table: Table) -> Iterator[_Refusal]:
    used = _features(snapshot)
    configuration = snapshot.metadata().configuration
    for name, value in sorted(configuration.items()):
        if name.startswith(_CONSTRAINT):
            constraint = name.removeprefix(_CONSTRAINT)
            drop = f"ALTER TABLE {{table}} DROP CONSTRAINT `{constraint}`"
            yield (f"the constraint {constraint} CHECK ({value})", (drop,))
    if (configuration.get("delta.appendOnly") or "").lower() == "true":
        yield ("delta.appendOnly", ("ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'false')",))
    if _FORGOTTEN_RUNS in configuration:
        yield (_FORGOTTEN_RUNS, (f"ALTER TABLE {{table}} UNSET TBLPROPERTIES ('{_FORGOTTEN_RUNS}')",))
    if _is_mapped(configuration):
        used.add("columnMapping")  # a protocol of version 5 names no features
    schema = snapshot.schema()
    for field in schema.fields:
        if not field.nullable:
            drop = f"ALTER TABLE {{table}} ALTER COLUMN `{field.name}` DROP NOT NULL"
            yield (f"NOT NULL for the column {field.name}", (drop,))
        if _DEFAULT in field.metadata:
            drop = f"ALTER TABLE {{table}} ALTER COLUMN `{field.name}` DROP DEFAULT"
            yield (f"a column default: {field.name}", (drop,))
    refused = used - _writable(lake)
    columns = list(_find_refused_columns(schema, snapshot.metadata().partition_columns, table))
    if refused or columns:
        yield _describe_refused(lake, table, refused, columns)


def _describe_refused(lake: Lake, table: Table, features: set[str], columns: Sequence[str] = ()) -> _Refusal:
    """Return the refused features and columns, with the statements that drop them."""
    if not columns and features <= {*_DROPPED}:
        dropped = [one for one in _DROPPED if one in features]
        what = ", ".join(f"the feature {one}" for one in dropped)
        return (what, tuple(f"ALTER TABLE {{table}} DROP FEATURE {one}" for one in dropped))
    what = ", ".join([*(f"the feature {feature}" for feature in sorted(features)), *columns])
    return (what, _restore_statements(lake, table))


def _restore_statements(lake: Lake, table: Table) -> tuple[str, ...]:
    """Return the statements that restore the last version that we can write: nothing else drops all features."""
    known = _find_newest_writable_version(lake, table)
    version = "<an earlier version from DESCRIBE HISTORY>" if known is None else str(known)
    allow = "SET spark.databricks.delta.restore.protocolDowngradeAllowed = true"
    return allow, f"RESTORE TABLE {{table}} TO VERSION AS OF {version}"


def _find_newest_writable_version(lake: Lake, table: Table) -> int | None:
    """Return the newest version that we, or Spark, can write; None if the log's commits do not reach back to one."""
    log = f"{table.name}/_delta_log"
    found: int | None = None
    newest: dict[str, Mapping[str, Any]] = {}
    is_writable = False
    for name in sorted(info.name for info in lake.list_files(log) if _COMMIT.fullmatch(info.name)):
        actions = [json.loads(line) for line in lake.read(f"{log}/{name}").splitlines() if line.strip()]
        changed = {kind: one[kind] for one in actions for kind in ("protocol", "metaData") if one.get(kind)}
        newest |= changed
        if changed and len(newest) > 1:  # few commits change either
            is_writable = _is_writable(newest["protocol"], newest["metaData"], table, _writable(lake))
        found = int(name[:20]) if is_writable else found
    return found


def _is_writable(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], table: Table, writable: frozenset[str]
) -> bool:
    columns = _find_refused_columns(Schema.from_json(metadata["schemaString"]), metadata["partitionColumns"], table)
    features = (*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ()))
    return writable.issuperset(features) and not (_is_mapped(metadata.get("configuration", {})) or any(columns))


def _is_mapped(configuration: Mapping[str, str | None]) -> bool:
    return (configuration.get("delta.columnMapping.mode") or "none").lower() != "none"


def _find_refused_columns(schema: Schema, partitions: Sequence[str], table: Table) -> Iterator[str]:
    yield from _find_layout_differences(schema, partitions, table)
    for field in schema.fields:
        yield from (f"{what}: {field.name}" for key, what in _EXPRESSIONS.items() if key in field.metadata)


def _find_layout_differences(schema: Schema, partitions: Sequence[str], table: Table) -> Iterator[str]:
    """Yield the reasons why a table's files do not store columns as our files do."""
    if partitions:
        yield "partitions by " + ", ".join(partitions)
    there = {field.name for field in schema.fields}
    lacking = [field.name for field in table.schema if not field.nullable and field.name not in there]
    if lacking:
        yield "columns without " + " and ".join(lacking)
    ours = {field.name: field for field in table.delta_schema.fields}
    for field in schema.fields:
        known = ours.get(field.name)
        if known is not None and known.type != field.type:
            yield f"an unexpected type for the column {field.name}"
