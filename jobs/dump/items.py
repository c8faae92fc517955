"""The items that every dumper yields: things in a file, each with its place, in words and as values."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from jobs.console.amounts import counted
from rmq_formats.layout import Layout


class Field(NamedTuple):
    """One field of an item, and its place."""

    offset: int
    name: str
    text: str


class Item(NamedTuple):
    """
    One thing in a file.

    *offset* is physical in a log, else that in the file. *fields* name every byte; *values* are what JSON says.
    """

    offset: int
    size: int
    kind: str
    text: str
    values: Mapping[str, object]
    fields: Sequence[Field] = ()
    is_damage: bool = False


def damage(offset: int, size: int, reason: str) -> Item:
    """Return the item for bytes that are not what a broker writes."""
    return Item(offset, size, "damage", reason, {"reason": reason}, is_damage=True)


class DumpRequest(NamedTuple):
    """
    The wanted part of a file: items from the offset *start* on, at most *limit*.

    Of an index file, *chain* is one slot, by its number or by a key that hangs in it; its geometry may be given.

    What is neither *as_json* nor *with_fields* needs no values and no fields.
    """

    start: int = 0
    limit: int | None = None
    as_json: bool = False
    with_fields: bool = False
    chain: str | None = None
    hash_slots: int | None = None
    index_num: int | None = None


def counts_text(items: str, damaged: int, start: int) -> str:
    """Return the number of items and of damaged places that were read from position *start* on, in words."""
    before = f" after byte {start}; the bytes before it were not read" if start else ""
    return f"{items}, {counted(damaged, 'damaged place')}{before}"


def layout_fields(layout: Layout, values: Sequence[int | bytes], offset: int) -> list[Field]:
    """Return each field of a layout that begins at *offset*."""
    return [
        Field(offset + row.offset, row.name, value.hex() if isinstance(value, bytes) else str(value))
        for row, value in zip(layout.rows(), values, strict=True)
    ]


def time_text(timestamp: int) -> str:
    """Write milliseconds as a time in UTC, or as a number if no calendar has that time."""
    try:
        moment = datetime.fromtimestamp(timestamp // 1000, UTC)
    except (OverflowError, ValueError, OSError):  # no time that a calendar has; no I/O
        return f"{timestamp} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp % 1000:03d}Z"
