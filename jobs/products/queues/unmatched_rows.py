"""Rows of `consume_queue` for units and records that were not matched at their address."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jobs.products.queues.records_at import RecordAt
from jobs.products.queues.rows import RowBlock, Status
from jobs.store.units import Units, is_gone
from rmq_formats.consumequeue.unit import QueueKind, QueueName

Row = dict[str, Any]


def block_rows(name: QueueName, start: int, units: Units, expired: Any, blanks: Any) -> Iterator[RowBlock]:  # noqa: ANN401 - masks
    """Yield the rows of expired units and of blanks."""
    positions = np.arange(start, start + units.size)
    is_batch = name.kind is QueueKind.BATCH
    for chosen, is_blank in ((expired, False), (blanks, True)):
        some = units[chosen]
        if some.size and not is_gone(some).all():
            yield RowBlock(
                name,
                some["base_offset"] if is_batch else positions[chosen],
                some["physical_offset"],
                some["size"],
                some["tags_code"],
                some["batch_count"] if is_batch else None,
                Status.EXPIRED,
                is_pre_blank=is_blank,
            )


def unit_row(  # noqa: PLR0913, PLR0917 - what a row is made of
    name: QueueName,
    position: int,
    stored: Any,  # noqa: ANN401 - one packed unit
    status: Status,
    mismatch: Sequence[str],
    record: RecordAt | None,
    *,
    is_pre_blank: bool,
) -> Row:
    """Return the row of a unit that is stored; *record* is what it leads to."""
    is_batch = name.kind is QueueKind.BATCH
    return {
        "topic": name.topic,
        "queue_id": name.queue_id,
        "queue_offset": int(stored["base_offset"]) if is_batch else position,
        "physical_offset": int(stored["physical_offset"]),
        "size": int(stored["size"]),
        "tags_code": int(stored["tags_code"]),
        "is_pre_blank": is_pre_blank,
        "batch_count": int(stored["batch_count"]) if is_batch else None,
        "status": status.value,
        "mismatch": list(mismatch) or None,
        "store_timestamp": record.store_timestamp if record else None,
        "tags": record.tags if record else None,
    }


def missing_row(name: QueueName, unit: Any, tags: str | None, status: Status) -> Row:  # noqa: ANN401 - one packed unit
    """Return the row of a record that has no unit."""
    return {
        "topic": name.topic,
        "queue_id": name.queue_id,
        "queue_offset": int(unit["queue_offset"]),
        "physical_offset": int(unit["physical_offset"]),
        "size": int(unit["size"]),
        "tags_code": int(unit["tags_code"]),
        "is_pre_blank": False,
        "batch_count": int(unit["batch_count"]) if name.kind is QueueKind.BATCH else None,
        "status": status.value,
        "mismatch": None,
        "store_timestamp": int(unit["store_timestamp"]),
        "tags": tags,
    }
