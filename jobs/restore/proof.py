"""
Whether a row still is what a run wrote: its record is taken apart again, and compared with what else the lake says.

Columns that a record is not made of follow from it (ids, keys, times), the body has its CRC, and `consume_queue` has
topic, queue and number once more. What only one column says (flag, reconsume times, producer's host) proves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.assembly import Assembled
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.consumequeue.unit import LMQ_PREFIX
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import PropertyParser

DERIVED = (
    "store_date", "born_time", "store_time", "is_compressed", "transaction_type", "offset_msg_id", "uniq_key", "tags",
    "keys",
)  # fmt: skip
UNIT_COLUMNS = ("store_id", "physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "status")
_OF_RECORDS = ("matched", "missing")  # units whose row says what their record says
_SEPARATOR = "\x02"  # of keys, when they are compared: no key has it

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Units:
    """Rows of `consume_queue`, by the record that they lead to."""

    rows: pa.Table

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> "Units":
        """Keep what says where a record belongs; a light queue has another topic and number than its record."""
        kept = []
        for batch in batches:
            is_said = pc.is_in(batch.column("status"), pa.array(_OF_RECORDS))
            is_light = pc.starts_with(batch.column("topic"), LMQ_PREFIX)
            kept.append(batch.filter(pc.and_(is_said, pc.invert(is_light))).drop_columns(["store_id", "status"]))
        return cls(pa.Table.from_batches(kept).sort_by("physical_offset") if kept else pa.table({}))

    @cached_property
    def _offsets(self) -> Integers:
        return np.asarray(self.rows.column("physical_offset").to_numpy(), np.int64)

    def contradict(self, rows: pa.RecordBatch, offsets: Integers) -> Flags:
        """Return for which rows there are units, none of which says the same."""
        if not self.rows.num_rows:
            return np.zeros(offsets.size, np.bool_)
        first, last = (np.searchsorted(self._offsets, offsets, side) for side in ("left", "right"))
        agrees = first == last
        for step in range(int((last - first).max(initial=0))):
            there = np.flatnonzero(first + step < last)
            units, ours = self.rows.take(pa.array(first[there] + step)), rows.take(pa.array(there))
            says = np.ones(there.size, np.bool_)
            for name in ("topic", "queue_id", "queue_offset", "store_timestamp"):
                says &= ~_differs(units.column(name).combine_chunks(), ours.column(name))
            agrees[there] |= says
        contradicted: Flags = ~agrees
        return contradicted


def is_changed(batch: pa.RecordBatch, made: Assembled, units: Units) -> Flags:
    """Return which of the records that the rows of *batch* were made into something else in the lake contradicts."""
    if not made.offsets.size:
        return np.zeros(0, np.bool_)
    rows = batch.take(pa.array(made.rows))
    numbers = np.empty(made.offsets.size, np.int64)
    count = kernels.find_no_records(made.buffer, made.positions, made.sizes, made.offsets, numbers)
    is_record = np.ones(made.offsets.size, np.bool_)
    is_record[numbers[:count]] = False  # lengths that a record cannot have: no kernel may read by them
    changed = np.ones(made.offsets.size, np.bool_)
    for parser in PropertyParser:  # which one the run had, the row does not say
        again = np.flatnonzero(changed & is_record)
        if again.size:
            changed[again] = _contradicts_itself(rows.take(pa.array(again)), made, again, parser)
    return changed | units.contradict(rows, made.offsets)


def _contradicts_itself(rows: pa.RecordBatch, made: Assembled, some: Integers, parser: PropertyParser) -> Flags:
    """Return which rows have a body with another CRC, or columns that do not follow from their records."""
    records = Records(made.buffer, 0, made.positions[some], made.sizes[some])
    derived, bad = message_batch(records, parser, with_body=False)
    changed = np.isin(records.positions, np.array([position for position, _ in bad], np.int64))
    sound = np.flatnonzero(~changed)
    ours = rows.take(pa.array(sound))
    for name in DERIVED:
        changed[sound] |= _differs(ours.column(name), derived.column(name))
    return changed


def _differs(stated: pa.Array, expected: pa.Array) -> Flags:
    """Return where what is stated is not what is expected; NULL states nothing."""
    stated, expected = _plain(stated), _plain(expected)
    same = pc.fill_null(pc.equal(stated, expected.cast(stated.type)), fill_value=False)
    return np.asarray(pc.and_(stated.is_valid(), pc.invert(same)).to_numpy(zero_copy_only=False), np.bool_)


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if isinstance(column, pa.ListArray | pa.LargeListArray):
        return pc.binary_join(column, _SEPARATOR)
    return column
