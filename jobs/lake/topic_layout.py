"""
A layout of `messages` by topic, for readers of the bodies of one topic.

A file is divided into parts of the log. In each part, rows are sorted by topic, and in the order of the log within a
topic. A large topic has separate row groups, whose limits let readers skip those of other topics. A part is as large as
a row group of a merged file without this layout, so that readers of a time or an offset range read about as much.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.table_file import ROW_GROUP_BYTES

TOPIC_PREFIX = "by-topic-"  # name prefix of files with this layout
_PART_BYTES = 64 << 20
_LEAST_GROUP_BYTES = 1 << 20  # of a topic with a separate row group


def divide_by_topic(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of messages as row groups."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        held.append(batch)
        size += batch.nbytes
        if size >= _PART_BYTES:
            yield from _divide_part(pa.concat_batches(held))
            held, size = [], 0
    if held:
        yield from _divide_part(pa.concat_batches(held))


def _divide_part(part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    topics = pc.dictionary_encode(part.column("topic"), null_encoding="encode")
    codes, names = topics.indices.to_numpy(), topics.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(names))
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    sizes = (counts * (part.nbytes / part.num_rows)).tolist()
    # The largest group is the first one: it determines the size of the bloom filters of all groups.
    by_size = sorted(range(len(names)), key=lambda code: -sizes[code])
    large = [code for code in by_size if sizes[code] >= _LEAST_GROUP_BYTES]
    small = sorted(by_size[len(large) :], key=lambda code: names[code] or "")
    groups = [[code] for code in large] + [[]]
    for code in small:
        groups[-1].append(code)
        if sum(sizes[one] for one in groups[-1]) >= ROW_GROUP_BYTES:
            groups.append([])
    for group in groups:
        if group:
            yield part.take(pa.array(np.concatenate([rows[code] for code in group])))
