"""The tables that a typing writes: one for each type of a topic, and `dead_letters` and `typings` for all of them."""

import re
from collections.abc import Sequence

import pyarrow as pa

from jobs.lake.tables import PROVENANCE, Table
from jobs.typed.ddl import SchemaError, without_demands
from rmq_formats.arrow import column

FOLDER = "typed"
TYPING = "typing"  # the transaction, and in the place of a store's id in the names of files
LONGEST_FOLDER = 200  # bytes: file systems take 255
RESERVED = frozenset({"broker", "store_id", *(field.name for field in PROVENANCE)})
_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")


def folder_of(topic: str) -> str:
    """Return the name of a topic's folder: one that leads nowhere else, for any name of a topic."""
    return _UNSAFE.sub(lambda match: b"~%02X" % match[0][0], topic.encode()).decode()


def table_name(topic: str, type_: str | None) -> str:
    """Return the name of the table of a topic, or of one of its types."""
    return f"{FOLDER}/{folder_of(topic)}" + ("" if type_ is None else f".{folder_of(type_)}")


def typed_table(name: str, columns: Sequence[pa.Field]) -> Table:
    """Return a typed table: where each row is from, and the columns of its body."""
    refuse_reserved(columns)
    of_body = (column(field.name, without_demands(field.type), "of the body") for field in columns)
    return Table(
        name,
        "the body of one message",
        (*PROVENANCE, *of_body),
        statistics=("physical_offset", "store_timestamp"),
    )


def refuse_reserved(columns: Sequence[pa.Field]) -> None:
    """Raise `SchemaError` for the name of a column that every typed table has."""
    taken = sorted(field.name for field in columns if field.name.lower() in RESERVED)
    if taken:
        raise SchemaError(
            f"{taken[0]!r}: a column that every typed table has for the message itself; give the body's another name, "
            f'and say from which field it is: from = {{ body_{taken[0]} = "{taken[0]}" }}'
        )
