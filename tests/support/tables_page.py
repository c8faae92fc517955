"""The tables of a lake as documentation: `python -m tests.support.tables_page > docs/tables.md`."""

from collections.abc import Iterator

from jobs.lake.catalog import comment_of, sql_type
from jobs.lake.tables import TABLES, Table
from jobs.lake.views import views
from jobs.typed.tables import typed_table

_HEAD = """\
# Tables

Delta tables, reader version 1: Spark, DuckDB, Polars, Trino and `deltalake` open them alike. Integers and times are as
stored; NULL where a record has none. This page is made from the declarations: `python -m tests.support.tables_page`.
"""

_TYPED = """\
Then come the columns of the body, and those of properties of the message, as [types.toml](typed.md) declares them. A
topic of several types has a table `typed/TOPIC.TYPE` for each.
"""

_VIEWS = """\
## Views

Plain SQL over these tables, the same statement in Spark and DuckDB: `jobs/lake/views`, a file each. `catalog LAKE`
names them beside the tables.

| view | one row is | reads |
|---|---|---|"""


def page() -> str:
    of_views = (f"| {view.name} | {view.row[len('One row is ') :]} | {', '.join(view.tables)} |" for view in views())
    tables = (*TABLES, typed_table("typed/TOPIC", ()))
    return "\n".join([_HEAD, *("\n".join(_section(table)) for table in tables), _TYPED, _VIEWS, *of_views, ""])


def _section(table: Table) -> Iterator[str]:
    yield f"## {table.name}\n"
    yield f"One row is {table.row}.\n"
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for field in table.delta_schema.fields:
        meaning = comment_of(field).replace("|", "\\|")
        yield f"| {field.name} | {sql_type(field.type)} | {meaning} |"
    yield ""


if __name__ == "__main__":
    print(page(), end="")
