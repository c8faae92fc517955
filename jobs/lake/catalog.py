"""SQL statements that register a lake's tables in a catalog; the tables stay where they are."""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum, unique
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from jobs.console.result import RequestError
from jobs.lake.commit import open_table, quote_sql_text
from jobs.lake.lake import Lake, list_views
from jobs.lake.tables import DEAD_LETTERS, TABLES, Table, sql_type
from jobs.storage.locations import S3_SCHEMES, is_local

if TYPE_CHECKING:
    from deltalake.schema import Field


@unique
class CatalogKind(StrEnum):
    """The kind of catalog, which determines the SQL dialect."""

    SPARK = "spark"
    UNITY = "unity"
    GLUE = "glue"
    HIVE = "hive"


def catalog_statements(
    lake: Lake, kind: CatalogKind, schema: str, typed: Iterable[Table] = ()
) -> Iterator[tuple[str | None, str]]:
    """Yield each table's name and statement, *typed* ones last; first the statement for the schema, without a name."""
    if kind in {CatalogKind.UNITY, CatalogKind.GLUE} and is_local(lake.location):
        reason = f"{lake.location}: {kind.title()} cannot read local paths; pass the lake's s3a:// location"
        raise RequestError(reason)
    there = [(table, snapshot) for table in (*TABLES, *typed) if (snapshot := open_table(lake, table.name)) is not None]
    name = ".".join(_quote(part, kind) for part in schema.split("."))
    if there:
        kind_of_schema = "SCHEMA" if kind is CatalogKind.UNITY else "DATABASE"
        yield None, f"CREATE {kind_of_schema} IF NOT EXISTS {name}"
    for table, snapshot in there:
        place = quote_sql_text(_location_for(lake.locate(table.name), kind))
        full_name = f"{name}.{_quote(catalog_name(table), kind)}"
        yield table.name, _create_statement(kind, full_name, place, table, snapshot)
    if kind in {CatalogKind.SPARK, CatalogKind.UNITY}:
        known = {table.name for table, _ in there}
        for view in list_views():
            if known.issuperset(view.tables):
                # Without the schema, the engine would look for the tables in the querying user's current schema.
                sql = re.sub(rf"\b(FROM|JOIN) ({'|'.join(view.tables)})\b", rf"\1 {name}.\2", view.sql)
                comment = quote_sql_text(view.row)
                yield view.name, f"CREATE OR REPLACE VIEW {name}.{view.name} COMMENT {comment} AS\n{sql.rstrip()}"


def catalog_name(table: Table) -> str:
    """Return a table's name in a catalog; `dead_letters` is taken by the view of messages that consumers gave up."""
    return f"typed_{table.name}" if table is DEAD_LETTERS else table.name.replace("/", "_")


# Columns and comments are read from Delta's log; if the statement named them, they would have to be the same.
_BY_SPARK = "CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {place}"
_FROM_LOG = {
    CatalogKind.SPARK: _BY_SPARK,
    CatalogKind.UNITY: _BY_SPARK,
    CatalogKind.GLUE: "CREATE EXTERNAL TABLE {name}\nLOCATION {place}\nTBLPROPERTIES ('table_type' = 'DELTA')",
}


def _create_statement(kind: CatalogKind, name: str, place: str, table: Table, snapshot: DeltaTable) -> str:
    if kind is not CatalogKind.HIVE:
        return _FROM_LOG[kind].format(name=name, place=place)
    schema = snapshot.schema()
    columns = ",\n".join(
        f"  {_quote(field.name, kind)} {sql_type(type_)}" + (f" COMMENT {quote_sql_text(comment)}" if comment else "")
        for field, type_ in zip(schema.fields, pa.schema(schema).types, strict=True)
        for comment in [column_comment(field)]
    )
    return (
        f"CREATE EXTERNAL TABLE IF NOT EXISTS {name} (\n{columns}\n)\n"
        f"COMMENT {quote_sql_text(f'One row is {table.row}.')}\n"
        f"STORED BY 'io.delta.hive.DeltaStorageHandler'\nLOCATION {place}"
    )


def _location_for(location: str, kind: CatalogKind) -> str:
    """Return a location with the URI scheme that the catalog's engine uses: s3a is Hadoop's name for S3."""
    scheme, separator, rest = location.partition("://")
    if kind in {CatalogKind.UNITY, CatalogKind.GLUE} and scheme in S3_SCHEMES:
        return f"s3://{rest}/"
    return location if separator else f"file://{location}"


def _quote(name: str, kind: CatalogKind) -> str:
    # Athena takes no backquotes around a dot.
    return name if kind is CatalogKind.GLUE else f"`{name.replace('`', '``')}`"


def column_comment(field: "Field") -> str:
    """Return a column's comment; empty if another engine added the column."""
    return str(field.metadata.get("comment", ""))
