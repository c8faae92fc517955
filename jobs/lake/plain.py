"""Rows of Arrow as Python has them, without a detour: no import of pandas, which takes longer than a lookup."""

from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

Row = TypeVar("Row", bound=NamedTuple)


class Stream(Protocol):
    """Anything that offers Arrow's stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


def plain_rows(stream: Stream) -> list[dict[str, Any]]:
    """
    Return the rows of a stream without its columns of times, which are beside the milliseconds that they are made of.

    Arrow asks pandas how to tell the zone of a time, and whether an object that it makes a table of is a data frame.
    """
    table = pa.RecordBatchReader.from_stream(stream).read_all()
    names = [field.name for field in table.schema if not pa.types.is_timestamp(field.type)]
    rows: list[dict[str, Any]] = table.select(names).to_pylist()
    return rows
