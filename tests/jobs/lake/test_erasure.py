"""The scripts of the guide erase a customer: no file of the lake has a byte of it, and no run brings one back."""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq

from jobs.lake.lake import Lake
from jobs.lake.upkeep import optimize
from jobs.requests.typing import TypeRequest
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from rmq_formats.commitlog.layout import COMPRESSED, INNER_BATCH
from tests.support.commands import ROOT
from tests.support.lakes import ingest_store, rows_of
from tests.support.query_stores import Sent, stored, write_store
from tests.support.scenes import fences

CANARY = "canary"
(_, DELETION), (_, PURGE) = fences(ROOT / "docs" / "guides" / "delete-a-customer.md")


def find_canaries(lake: Path) -> Iterator[str]:
    """Yield the files that have the canary in their bytes, or in a value of their Parquet pages or statistics."""
    for path in sorted(lake.rglob("*")):
        if not path.is_file():
            continue
        if CANARY.encode() in path.read_bytes():
            yield f"{path.relative_to(lake)}: bytes"
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            rows = file.read().to_pylist()
            if CANARY in str([*map(inflate_body, rows)]) or CANARY in str(file.metadata.to_dict()):
                yield f"{path.relative_to(lake)}: values"


def inflate_body(row: dict[str, object]) -> dict[str, object]:
    """Return a row with its body decompressed, if it is compressed."""
    body = row.get("body")
    if isinstance(body, bytes):
        with suppress(zlib.error):
            return {**row, "body": zlib.decompress(body)}
    return row


def message_of_customer(number: int, body: bytes, flags: int = 0, topic: str = "Orders") -> Sent:
    text = f"{CANARY}-{number}"
    properties = (("customer", "4711"), ("note", text), *((("INNER_NUM", "2"),) if flags & INNER_BATCH else ()))
    return Sent(topic, (f"{text}-key",), f"{text}-id", f"{text}-tag", 0, body, properties, flags)


def type_orders(lake: Path) -> None:
    path = lake.parent / "types.toml"
    path.write_text('[topic."Orders"]\nformat = "json"\nschema = "id bigint, name string"\n')
    type_lake(TypeRequest(Lake(str(lake)), read_types(path)), SerialWorkers())


def test_no_byte_of_an_erased_customer_is_left_and_none_comes_back(tmp_path: Path) -> None:
    typed = b'{"id": 1, "name": "%s"}' % CANARY.encode()
    others = [Sent("Orders", (f"k{number}",), f"id{number}", body=b'{"id": 2, "name": "x"}') for number in range(20)]
    sent = [
        *others,
        message_of_customer(1, typed),
        message_of_customer(2, zlib.compress(typed * 9), COMPRESSED),
        message_of_customer(3, f"{CANARY} is no JSON".encode()),
        message_of_customer(4, typed, INNER_BATCH),
        message_of_customer(5, typed, topic="%RETRY%group"),
        *others,
    ]
    write_store(tmp_path / "store", stored(sent))
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", step_bytes=2000)
    type_orders(lake)
    optimize(str(lake), SerialWorkers())
    before = {place.partition("/")[0] for place in find_canaries(lake)}

    assert {"messages", "index_entries", "consume_queue", "dead_letters", "typed", "_manifests"} <= before

    for script in (DELETION, PURGE):
        exec(script.replace("/data/lake", str(lake)), {})  # noqa: S102 - our own document

    assert [] == list(find_canaries(lake))
    assert len(rows_of(lake)) == 2 * len(others)
    ingest_store(tmp_path / "store", lake)
    type_orders(lake)
    optimize(str(lake), SerialWorkers())

    assert [] == list(find_canaries(lake))
    assert len(rows_of(lake, "typed/Orders")) == 2 * len(others)
