"""A store and a lake that have an answer for every recipe of docs/recipes.md."""

import zlib
from pathlib import Path

from rmq_formats.flags import COMPRESSED
from tests.support.query_lakes import write_entries, write_messages, write_progress
from tests.support.query_stores import RELEASE, Sent, stored, write_store


def packed(body: bytes, number: int) -> bytes:
    """Return a body as its client stores it: every other one compressed."""
    return zlib.compress(body) if number % 2 else body


def make_recipe_data(root: Path) -> Path:
    """Write both into *root*, and return it."""
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
    records = stored([*messages, half, late])
    # The queue misses one number in the middle.
    gap = [record._replace(queue_offset=record.queue_offset + (record.queue_offset > 5)) for record in records]
    write_store(root / "store", gap)
    write_messages(root / "lake", root / "store", RELEASE)
    write_entries(root / "lake", gap, RELEASE)
    write_progress(root / "lake", gap[-1].end_offset, {("G", "Orders", 0): 2})
    return root
