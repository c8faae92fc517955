"""The tables of a lake as documentation: `python -m jobs.lake.description > docs/tables.md`."""

from collections.abc import Iterator

from jobs.lake.tables import TABLES, Table

_HEAD = """\
# Tables

Delta tables, reader version 1: Spark, DuckDB, Polars, Trino and `deltalake` open them alike. Integers and times are as
stored; NULL where a record has none. This page is made from the declarations: `python -m jobs.lake.description`.
"""


def page() -> str:
    """Return the documentation of all tables."""
    return "\n".join([_HEAD, *("\n".join(_section(table)) for table in TABLES)])


def _section(table: Table) -> Iterator[str]:
    yield f"## {table.name}\n"
    yield f"One row is {table.row}.\n"
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for field in table.delta_schema.fields:
        meaning = field.metadata.get("comment", "").replace("|", "\\|")
        yield f"| {field.name} | {_type(field.type)} | {meaning} |"
    yield ""


def _type(type_: object) -> str:
    """Return a type as SQL spells it."""
    kind = getattr(type_, "type", "")
    if kind == "array":
        return f"array<{_type(getattr(type_, 'element_type', None))}>"
    if kind == "map":
        return f"map<{_type(getattr(type_, 'key_type', None))},{_type(getattr(type_, 'value_type', None))}>"
    return {"long": "bigint", "integer": "int", "short": "smallint"}.get(str(kind), str(kind))


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - this is the output
