"""Rows of Arrow as Python has them, without a detour: no import of pandas, which takes longer than a lookup."""

from typing import Any

import pyarrow as pa


def plain_rows(stream: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - whatever offers Arrow's stream interface
    """
    Return the rows of a stream without its columns of times, which stand beside the milliseconds that they are made of.

    Arrow asks pandas how to tell the zone of a time, and whether an object that it makes a table of is a data frame.
    """
    table = pa.RecordBatchReader.from_stream(stream).read_all()
    names = [field.name for field in table.schema if not pa.types.is_timestamp(field.type)]
    rows: list[dict[str, Any]] = table.select(names).to_pylist()
    return rows
