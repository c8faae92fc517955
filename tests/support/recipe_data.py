"""A store and a lake that have an answer for every recipe of docs/tables.md."""

import zlib
from pathlib import Path

from rmq_formats.flags import COMPRESSED
from rmq_formats.trace import TRACE_TOPIC
from tests.support.query_lakes import write_copies, write_entries, write_messages, write_progress
from tests.support.query_stores import RELEASE, Sent, stored, write_store


def packed(body: bytes, number: int) -> bytes:
    return zlib.compress(body) if number % 2 else body


def make_recipe_data(root: Path) -> Path:
    late = Sent(
        topic="rmq_sys_wheel_timer",
        unique_key="late",
        properties=(("TIMER_OUT_MS", "1795271991000"), ("REAL_TOPIC", "Orders"), ("REAL_QID", "0")),
    )
    half = Sent(topic="RMQ_SYS_TRANS_HALF_TOPIC", keys=("h",))
    messages = [
        Sent(
            keys=(f"k{n}",),
            unique_key=f"id{n}",
            body=packed(f'{{"order": {n}, "customer": "c{n // 2}"}}'.encode(), n),
            properties=(("region", f"r{n % 2}"),),
            sys_flag=COMPRESSED * (n % 2),
        )
        for n in range(10)
    ]
    lines = "Pub\x011\x01R\x01P\x01Orders\x01id1\x01null\x01null\x01host\x014\x017\x010\x01true\x02"
    trace = Sent(TRACE_TOPIC, body=f"{lines}SubAfter\x01Q\x01id2\x013\x01true\x01null\x010\x012\x01G\x02".encode())
    records = stored([*messages, half, late, trace])
    # The queue misses one number in the middle.
    gap = [record._replace(queue_offset=record.queue_offset + (record.queue_offset > 5)) for record in records]
    write_store(root / "store", gap)
    write_messages(root / "lake", root / "store", RELEASE)
    write_copies(root / "lake")
    write_entries(root / "lake", gap, RELEASE)
    write_progress(root / "lake", gap[-1].end_offset, {("G", "Orders", 0): 2})
    return root
