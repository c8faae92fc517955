"""The tables' documentation is their declaration."""

from pathlib import Path

from jobs.lake.tables import TABLES
from tests.support.tables_page import page

DOCS = Path(__file__).parents[3] / "docs" / "tables.md"


def test_the_page_is_made_from_the_declarations() -> None:
    assert page() == DOCS.read_text(encoding="utf-8")


def test_every_table_and_column_says_what_it_is() -> None:
    assert [] == [
        (table.name, field.name)
        for table in TABLES
        for field in table.schema
        if not (field.metadata or {}).get(b"comment")
    ]


def test_bodies_come_last() -> None:
    messages = TABLES[0]

    assert messages.schema.names[-2:] == ["body", "body_inflated"]
    assert messages.schema.names[:2] == ["broker", "store_id"]
