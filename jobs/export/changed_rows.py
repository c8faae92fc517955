"""
Whether a row still is what a run wrote, in each of its columns.

`record_crc` is of all bytes that the run read: where it is right, the record is. The other columns follow from the
record. Rows of earlier versions have no `record_crc`.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import is_to_inflate, with_inflated
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, RECORD_CRC
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.assembly import COLUMNS, Assembled, assemble
from rmq_formats.commitlog.columns import message_batch, record_crcs
from rmq_formats.commitlog.scan import Records
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import PropertyParser

DERIVED = (
    "store_date", "born_time", "store_time", "is_compressed", "transaction_type", "offset_msg_id", "uniq_key", "tags",
    "keys",
)  # fmt: skip
JUDGED = ("store_id", "broker", "segment", *COLUMNS, *DERIVED, RECORD_CRC, BODY_ERROR, BODY_INFLATED)
"""The columns of `messages` by which a row is judged."""
_SEPARATOR = "\x02"  # of keys, when they are compared: no key has it

Flags = npt.NDArray[np.bool_]


def changed_rows(batch: pa.RecordBatch, dropped: frozenset[str]) -> Flags:
    """
    Return which rows another engine has changed, also those of which a record was made once, and no more.

    Columns that it has *dropped* from the whole table say nothing.
    """
    made = assemble(batch)
    changed = _flags(batch.column(RECORD_CRC).is_valid())
    if made.offsets.size:
        changed[made.rows] = _are_changed(_some(batch, made.rows), made, dropped)
    return changed


def _are_changed(rows: pa.RecordBatch, made: Assembled, dropped: frozenset[str]) -> Flags:
    """Return which rows differ from the records that were assembled from them, one each."""
    crcs = pa.array(record_crcs(made.buffer, made.positions, made.sizes))
    numbers = np.empty(made.offsets.size, np.int64)
    count = kernels.find_no_records(made.buffer, made.positions, made.sizes, made.offsets, numbers)
    is_record = np.ones(made.offsets.size, np.bool_)
    is_record[numbers[:count]] = False  # lengths that a record cannot have: no kernel may read by them
    changed = np.ones(made.offsets.size, np.bool_)
    for parser in PropertyParser:  # which one the run had, the row does not say
        again = np.flatnonzero(changed & is_record)
        if again.size:
            some = made.only(changed & is_record)
            changed[again] = _contradicts_itself(_some(rows, again), some, parser, dropped)
    return changed | _differs(rows.column(RECORD_CRC), crcs) | _inflates_otherwise(rows)


def _inflates_otherwise(rows: pa.RecordBatch) -> Flags:
    """Return which rows have an inflated body, or an error in its place, that their stored body does not give."""
    stated, failed = (_flags(rows.column(name).is_valid()) for name in (BODY_INFLATED, BODY_ERROR))
    wrong: Flags = (stated | failed) & ~is_to_inflate(rows)
    some = np.flatnonzero((stated | failed) & ~wrong)
    start = 0
    for again in with_inflated(rows.take(pa.array(some))):  # the words of an error may be of an earlier version
        here = some[start : start + again.num_rows]
        inflated = again.column(BODY_INFLATED)
        other = _differs(rows.column(BODY_INFLATED).take(pa.array(here)), inflated)
        wrong[here] = other | (failed[here] & _flags(inflated.is_valid()))
        start += again.num_rows
    return wrong


def _contradicts_itself(
    rows: pa.RecordBatch, made: Assembled, parser: PropertyParser, dropped: frozenset[str]
) -> Flags:
    """Return which rows have a body with another CRC, or columns that do not follow from their records."""
    records = Records(made.buffer, 0, made.positions, made.sizes)
    derived, bad = message_batch(records, parser, with_body=False)
    changed = np.isin(records.positions, np.array([position for position, _ in bad], np.int64))
    sound = np.flatnonzero(~changed)
    ours = _some(rows, sound)
    is_checked = _flags(ours.column(RECORD_CRC).is_valid())  # the version that wrote it has written every column
    for name in (*DERIVED, *COLUMNS):
        if name != "body" and name not in dropped:
            strict = _differs(ours.column(name), derived.column(name), is_null_wrong=True)
            changed[sound] |= strict & (is_checked | (_flags(ours.column(name).is_valid()) & (name in DERIVED)))
    return changed


def _differs(stated: pa.Array, expected: pa.Array, *, is_null_wrong: bool = False) -> Flags:
    """Compare two columns, true where they differ; a stated NULL states nothing, unless it *is_null_wrong*."""
    stated, expected = _decoded(stated), _decoded(expected)
    if stated.type == expected.type and stated.equals(expected):  # as nearly always, and soon seen
        return np.zeros(len(stated), np.bool_)
    stated, expected = _joined(stated), _joined(expected)
    same = pc.fill_null(pc.equal(stated, expected.cast(stated.type)), fill_value=False)
    other = pc.and_(stated.is_valid(), pc.invert(same))
    if is_null_wrong:
        other = pc.or_(other, pc.and_(stated.is_null(), expected.is_valid()))
    return _flags(other)


def _some(rows: pa.RecordBatch, numbers: Integers) -> pa.RecordBatch:
    """Return the rows with these *numbers*, which rise; all of them, as nearly always, are not copied."""
    return rows if numbers.size == rows.num_rows else rows.take(pa.array(numbers))


def _flags(column: pa.Array) -> Flags:
    return np.array(column.to_numpy(zero_copy_only=False), np.bool_)


def _decoded(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if isinstance(column, pa.MapArray) and not column.null_count:
        return pa.MapArray.from_arrays(column.offsets, _decoded(column.keys), _decoded(column.items))
    return column


def _joined(column: pa.Array) -> pa.Array:
    """Return the items of each row as one text, so that rows of lists and maps compare."""
    if isinstance(column, pa.MapArray):
        parts = (pa.ListArray.from_arrays(column.offsets, _decoded(part)) for part in (column.keys, column.items))
        joined = pc.binary_join_element_wise(*(pc.binary_join(part, _SEPARATOR) for part in parts), _SEPARATOR)
        return pc.if_else(column.is_valid(), joined, None)
    if isinstance(column, pa.ListArray | pa.LargeListArray):
        return pc.binary_join(column, _SEPARATOR)
    return column
