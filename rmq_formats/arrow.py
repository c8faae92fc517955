"""How a table's columns are declared: name, type, meaning, and whether a row may lack it."""

import pyarrow as pa


def column(name: str, type_: pa.DataType, comment: str) -> pa.Field:
    """Return a column that may be NULL, and its meaning."""
    return pa.field(name, type_, metadata={"comment": comment})


def required(name: str, type_: pa.DataType, comment: str) -> pa.Field:
    """
    Return a column that every row has, since the table's first version: a file then says of no row that it is there.

    A column that a table gets later is never one of these: merged files have rows from before.
    """
    return pa.field(name, type_, nullable=False, metadata={"comment": comment})


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that readers see: dictionaries are only how a column is held in memory."""
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_map(type_):
        return pa.map_(plain_type(type_.key_type), plain_type(type_.item_type))
    return type_
