"""Small lakes for tests of queries: the tables that an ingest makes, without Spark."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from jobs.lake.bodies import with_inflated
from jobs.lake.tables import CONSUMER_OFFSETS, MESSAGES, RUNS, TIERED, TRACES
from jobs.products.messages import trace_rows, with_record_crc
from jobs.query.lake_source import LakeSource, open_lake_stores
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import plan_ranges
from jobs.store.store import list_store
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import Piece
from rmq_formats.indexfile.file import typed_index_keys
from rmq_formats.properties import index_key_hash
from rmq_formats.release import Release
from tests.support.lakes import table_of

BROKER = "b0"
STORE_ID = "00000000-0000-4000-8000-000000000001"

_ENTRIES = pa.schema(
    {
        "broker": pa.string(),
        "store_id": pa.string(),
        "key_hash": pa.int32(),
        "physical_offset": pa.int64(),
        "topic": pa.string(),
        "key": pa.string(),
        "kind": pa.string(),
        "store_timestamp": pa.int64(),
    }
)


def write_messages(lake: Path, store: Path, release: Release, *, with_body: bool = True) -> None:
    for range_ in plan_ranges(list_store(str(store))):
        for item in RangeReader(range_).pieces():
            if not isinstance(item, Piece):
                batch, _ = message_batch(item, release.property_parser, with_body=with_body)
                rows = pa.Table.from_batches(list(with_inflated(with_record_crc(batch, item, wanted=True))))
                whose = {"broker": BROKER, "store_id": STORE_ID, "segment": range_.base_offset}
                for name, value in whose.items():
                    field = MESSAGES.schema.field(name)
                    rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
                names = MESSAGES.schema.names
                write_deltalake(lake / "messages", rows.select(names), mode="append", schema_mode="merge")
                for traces in trace_rows(batch):
                    write_deltalake(lake / "traces", _traces(traces), mode="append")


def write_copies(lake: Path) -> None:
    rows = table_of(lake / "messages")
    rows = rows.append_column("generation", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    write_deltalake(lake / "tiered", rows.select(TIERED.schema.names))


def _traces(rows: pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches([rows])
    for name, value in (("broker", BROKER), ("store_id", STORE_ID)):
        table = table.append_column(name, pa.repeat(value, rows.num_rows))
    return table.select(TRACES.plain_schema.names).cast(TRACES.plain_schema)


def write_entries(lake: Path, records: list[MessageRecord], release: Release) -> None:
    rows: list[dict[str, Any]] = [
        {
            "broker": BROKER,
            "store_id": STORE_ID,
            "key_hash": index_key_hash(key.text),
            "physical_offset": record.physical_offset,
            "topic": key.topic,
            "key": key.key,
            "kind": str(key.kind),
            "store_timestamp": record.store_timestamp,
        }
        for record in records
        for key in typed_index_keys(record, release)
    ]
    rows.sort(key=lambda row: row["key_hash"])
    write_deltalake(lake / "index_entries", pa.Table.from_pylist(rows, schema=_ENTRIES))


def write_progress(lake: Path, end: int, offsets: dict[tuple[str, str, int], int]) -> None:
    """Write the tables of runs and of offsets as one run leaves them that has taken the log up to *end*."""
    whose = {"broker": BROKER, "store_id": STORE_ID, "run": 1, "to_offset": end}
    readers: list[dict[str, Any]] = [
        {
            **whose,
            "kind": "consumer",
            "consumer_group": group,
            "topic": topic,
            "queue_id": queue_id,
            "next_offset": next_,
        }
        for (group, topic, queue_id), next_ in offsets.items()
    ]
    run: dict[str, Any] = {**whose, "state": "prepared", "time": datetime.now(UTC), "from_offset": 0}
    write_deltalake(lake / "runs", pa.Table.from_pylist([run], schema=RUNS.plain_schema))
    write_deltalake(lake / "consumer_offsets", pa.Table.from_pylist(readers, schema=CONSUMER_OFFSETS.plain_schema))


def open_lake(
    lake: Path | str, release: Release | None = None, broker: str | None = None, *, through_log: bool = False
) -> LakeSource:
    """Open the only store of a lake, or the one of a broker."""
    (source,) = open_lake_stores(str(lake), broker, release, through_log=through_log)
    return source
