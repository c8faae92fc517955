"""Views over a lake's tables: one SQL file each, the same statement for Spark and DuckDB."""

from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

_NEEDS = {
    "dead_letters": ("messages",),
    "not_consumed": ("messages", "consumer_offsets"),
    "timers_pending": ("messages",),
    "transactions": ("messages",),
}


class View(NamedTuple):
    """A query with a name, and the tables that it reads."""

    name: str
    tables: tuple[str, ...]
    row: str  # one row of it, in words
    sql: str


def views() -> Iterator[View]:
    """Yield every view by name; its first line says what a row is."""
    folder = files(__package__)
    for name, tables in _NEEDS.items():
        first, _, sql = (folder / f"{name}.sql").read_text(encoding="utf-8").partition("\n")
        yield View(name, tables, first.removeprefix("-- "), sql)
