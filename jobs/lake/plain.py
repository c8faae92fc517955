"""Rows of Arrow as Python has them, without a detour: no import of pandas, which takes longer than a lookup."""

from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

Row = TypeVar("Row", bound=NamedTuple)


def plain_rows(stream: object) -> list[dict[str, Any]]:
    """
    Return the rows of a stream without its columns of times, which are beside the milliseconds that they are made of.

    Arrow asks pandas how to tell the zone of a time, and whether an object that it makes a table of is a data frame.
    """
    table = pa.RecordBatchReader.from_stream(stream).read_all()
    names = [field.name for field in table.schema if not pa.types.is_timestamp(field.type)]
    rows: list[dict[str, Any]] = table.select(names).to_pylist()
    return rows
