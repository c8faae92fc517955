"""
Document the columns of a lake's tables: `python -m tests.support.tables_page` writes them into docs/tables.md.

The recipes above them are written by hand.
"""

from collections.abc import Iterator
from pathlib import Path

from deltalake.schema import Field

from jobs.lake.catalog import column_comment
from jobs.lake.lake import View, list_views
from jobs.lake.tables import MESSAGES, PROVENANCE_COLUMNS, TABLES, Table, sql_type
from jobs.typed.ddl import typed_table

_START = "## Columns\n"
_HEAD = f"""\
{_START}
Numbers and times have the values that the broker stored; a column is NULL if the record has no value for it. This
section is generated from the table definitions. Every table begins with these columns, which are not repeated below:
"""

_TYPED = """\
These are followed by the columns of the body and of message properties, as [types.toml](typed.md) declares them. A
topic with several types has a table `typed/TOPIC.TYPE` for each.
"""

_VIEWS = """\
### Views

Each view is defined by an SQL file in `jobs/lake/views`, which runs in Spark and DuckDB.
`catalog LAKE` also prints the statements that create the views.

| view | each row is | reads |
|---|---|---|"""


_COLUMN_HEAD = ("| column | type | meaning |", "|---|---|---|")
_IN_EVERY_TABLE = ("broker", "store_id")

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def page() -> str:
    columns_of_all = (_row(field) for field in MESSAGES.delta_schema.fields if field.name in _IN_EVERY_TABLE)
    by_hand = PAGE.read_text(encoding="utf-8").partition(_START)[0]
    of_views = (f"| {view.name} | {_row_of(view)} | {', '.join(view.tables)} |" for view in list_views())
    tables = (*TABLES, typed_table("typed/TOPIC", ()))
    return by_hand + "\n".join(
        [
            _HEAD,
            *_COLUMN_HEAD,
            *columns_of_all,
            "",
            *("\n".join(_section(table)) for table in tables),
            _TYPED,
            _VIEWS,
            *of_views,
            "",
        ]
    )


def _row_of(view: View) -> str:
    return view.row_meaning.removeprefix("Each row is ").removesuffix(".")


_COMMENTS = {field.name: column_comment(field) for field in MESSAGES.delta_schema.fields}
_OF_TYPED_ROWS = [*_IN_EVERY_TABLE, *(field.name for field in PROVENANCE_COLUMNS)]


def _section(table: Table) -> Iterator[str]:
    yield f"### {table.name}\n"
    yield f"Each row is {table.row_meaning}.\n"
    yield from _COLUMN_HEAD
    shared: dict[str, str] = {}
    if table.name in {"superseded_messages", "tiered"}:
        shared = _COMMENTS
        missing = [f"`{name}`" for name in shared if name not in table.schema.names]
        exception = f" except {' and '.join(missing)}" if missing else ""
        yield f"| all columns of [messages](#messages){exception} | | as in `messages`, unless listed below |"
    elif table.schema.names[: len(_OF_TYPED_ROWS)] == _OF_TYPED_ROWS:
        shared = {name: _COMMENTS[name] for name in _OF_TYPED_ROWS}
        names = ", ".join(f"`{name}`" for name in _OF_TYPED_ROWS if name not in _IN_EVERY_TABLE)
        yield f"| {names} | | as in [messages](#messages) |"
    for field in table.delta_schema.fields:
        if field.name not in _IN_EVERY_TABLE and column_comment(field) != shared.get(field.name):
            yield _row(field, table)
    yield ""


def _row(field: Field, table: Table = MESSAGES) -> str:
    meaning = column_comment(field).replace("|", "\\|")
    type_ = sql_type(table.schema_without_dictionaries.field(field.name).type)
    return f"| {field.name} | `{type_}` | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
