"""Rows of `consume_queue`: one unit, and the result of its join with the message."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum, unique
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.lake.tables import CONSUME_QUEUE, storable_text
from jobs.store.units import Units
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName


@unique
class UnitStatus(StrEnum):
    """The result of the join for a unit."""

    MATCHED = "matched"
    MISMATCHED = "mismatched"
    DANGLING = "dangling"
    EXPIRED = "expired"
    MISSING = "missing"
    DELETED = "deleted"


SCHEMA = pa.schema(CONSUME_QUEUE.columns)
_ROWS_AT_ONCE = 1 << 17
_NAMES = [field.name for field in SCHEMA]


class RowBlock(NamedTuple):
    """Rows of one queue, column by column."""

    name: QueueName
    queue_offset: NDArray[np.int64]
    physical_offset: NDArray[np.int64]
    size: NDArray[np.int32]
    tags_code: NDArray[np.int64]
    batch_count: NDArray[np.int16] | None
    status: UnitStatus
    store_timestamp: NDArray[np.int64] | None = None
    tag_numbers: NDArray[np.int32] | None = None
    is_pre_blank: bool = False
    mismatch: tuple[str, ...] = ()


def make_row_block(
    name: QueueName,
    units: Units,
    status: UnitStatus,
    tag_numbers: NDArray[np.int32] | None = None,
    stored_positions: NDArray[np.int64] | None = None,
) -> RowBlock:
    """Return rows for expected units; for stored ones (at *stored_positions*), without the fields of records."""
    is_batch, is_stored = name.kind is QueueKind.BATCH, stored_positions is not None
    offsets = units["queue_offset"] if stored_positions is None else stored_positions
    return RowBlock(
        name,
        units["base_offset"] if is_batch and is_stored else offsets,
        units["physical_offset"],
        units["size"],
        units["tags_code"],
        units["batch_count"] if is_batch else None,
        status,
        None if is_stored else units["store_timestamp"],
        tag_numbers,
    )


def make_record_batches(blocks: Iterable[RowBlock], tags: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *blocks*; *tags* maps tag numbers to texts."""
    some: list[RowBlock] = []
    count = 0
    for block in blocks:
        some.append(block)
        count += block.queue_offset.size
        if count >= _ROWS_AT_ONCE:
            yield _make_batch(some, tags)
            some, count = [], 0
    if count:
        yield _make_batch(some, tags)


def _make_batch(blocks: Sequence[RowBlock], tags: Sequence[str]) -> pa.RecordBatch:
    counts = [block.queue_offset.size for block in blocks]
    numbers = np.repeat(np.arange(len(blocks), dtype=np.int32), counts)
    tag_numbers = np.concatenate(
        [
            np.full(block.queue_offset.size, -1, np.int32) if block.tag_numbers is None else block.tag_numbers
            for block in blocks
        ]
    )
    of_blocks = {
        "queue_id": pa.array([block.name.queue_id for block in blocks], pa.int32()),
        "is_pre_blank": pa.array([block.is_pre_blank for block in blocks], pa.bool_()),
        "mismatch": pa.array([list(block.mismatch) or None for block in blocks], pa.list_(pa.string())),
    }
    columns = {name: values.take(pa.array(numbers)) for name, values in of_blocks.items()} | {
        "topic": _dictionary_array([storable_text(block.name.topic) for block in blocks], numbers),
        "status": _dictionary_array([block.status.value for block in blocks], numbers),
        "batch_count": _optional_column([block.batch_count for block in blocks], counts, np.int16),
        "store_timestamp": _optional_column([block.store_timestamp for block in blocks], counts, np.int64),
        "tags": _dictionary_array(tags, tag_numbers),
    }
    for name in ("queue_offset", "physical_offset", "size", "tags_code"):
        columns[name] = pa.array(np.concatenate([getattr(block, name) for block in blocks]), SCHEMA.field(name).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in _NAMES], schema=SCHEMA)


def _dictionary_array(texts: Sequence[object], numbers: NDArray[np.int32]) -> pa.DictionaryArray:
    """Return the texts with these *numbers*, and NULL for -1; Parquet's writer needs each text once."""
    distinct = pa.array(texts, pa.string()).dictionary_encode()
    places = np.append(distinct.indices.to_numpy(), np.int32(-1))[numbers]
    return pa.DictionaryArray.from_arrays(pa.array(places, mask=places < 0), distinct.dictionary, safe=False)


def _optional_column(
    parts: Sequence[NDArray[Any] | None], counts: Sequence[int], type_: type[np.integer[Any]]
) -> pa.Array:
    missing = np.repeat([part is None for part in parts], counts)
    filled = [np.zeros(count, type_) if part is None else part for part, count in zip(parts, counts, strict=True)]
    return pa.array(np.concatenate(filled).astype(type_), mask=missing)
