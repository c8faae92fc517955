"""
Copies of a store that were taken while its broker wrote: the log, the queues and the index each end at another byte.

A copy of a mapped file has the bytes that the broker had written when they were read: of a record or of a unit, only
the first ones; of an entry of an index file, perhaps not yet its slot or the header.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.dispatch import UnitRules, expected_units
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.indexfile.layout import ENTRY, HEADER
from rmq_formats.release import Rules, release_at
from rmq_formats.store import Checkpoint, encode_checkpoint, file_name_of_offset
from tests.rmq_formats.reference import ConsumeQueue, IndexFile, IndexWriter
from tests.support.legal_stores import GEOMETRY, QUEUE_FILE_SIZE, LegalStore, draw_store

# A unit ends in its tags code; with the first bytes of it, a unit looks complete, and a broker takes it as it is.
_TAGS_CODE_AT = UNIT.size - 8
_MAGIC = struct.pack(">i", MAGIC_V1)
_ENTRIES_AT = HEADER.size + 4 * GEOMETRY.hash_slots


class LiveCopy(NamedTuple):
    """A copy, and what a command must find in it."""

    store: LegalStore  # with the records that the copied log has completely
    log_end: int  # bytes of the log from here on had not been written yet
    dispatched_end: int  # the end of the newest record of which the copied queues or index files have a part


def draw_live_copy(seed: int) -> LiveCopy:
    """Return a copy of the store of a seed, or of a later one in which nothing has expired."""
    drawn = (draw_store(seed + 1000 * number, end="killed") for number in count())
    legal = next(one for one in drawn if not one.has_expired)
    random, records, rules = Random(f"copy {seed}"), legal.records, legal.rules
    log_end = random.randrange(records[0].end_offset, records[-1].end_offset + 1)
    cut = next((record for record in records if record.physical_offset < log_end < record.end_offset), None)
    if cut is not None and _MAGIC in cut.body:  # looks like a damaged record before a whole one
        log_end = cut.physical_offset
    queued, indexed = random.randrange(len(records) + 1), random.randrange(len(records) + 1)
    if random.random() < 0.5:  # the directories are copied in this order
        complete = sum(record.end_offset <= log_end for record in records)
        queued = random.randrange(complete, len(records) + 1)
        indexed = random.randrange(queued, len(records) + 1)
    files = {path: data for path, data in legal.files.items() if not path.startswith(("consumequeue/", "index/"))}
    files = _cut_log(files, log_end)
    files |= _take_part_of_unit(random, *(_build_queues(records[:end], rules) for end in (queued, queued + 1)))
    files |= _take_part_of_entry(random, *(_build_index(records[:end], rules) for end in (indexed, indexed + 1)))
    times = [file.header.end_timestamp for file in _write_index(records[:indexed], rules) if file.is_full]
    checkpoint = Checkpoint(records[0].store_timestamp, records[0].store_timestamp, times[-1] if times else 0)
    files["checkpoint"] = encode_checkpoint(checkpoint).ljust(len(files["checkpoint"]), b"\0")
    newest = records[: max(queued, indexed) + 1][-1]
    complete_records = [record for record in records if record.end_offset <= log_end]
    return LiveCopy(legal._replace(records=complete_records, files=files), log_end, newest.end_offset)


def _cut_log(files: Mapping[str, bytes], log_end: int) -> dict[str, bytes]:
    """Return the files without what the log has from an offset on: a segment is created before its first record."""
    kept = {}
    for path, data in files.items():
        written = log_end - int(path.removeprefix("commitlog/")) if path.startswith("commitlog/") else len(data)
        if written >= 0:
            kept[path] = data[:written].ljust(len(data), b"\0")
    return kept


def _build_queues(records: Sequence[MessageRecord], rules: Rules) -> dict[str, bytes]:
    queues: dict[str, ConsumeQueue] = {}
    for record in records:
        for unit in expected_units(record, UnitRules(rules)):
            queue = queues.setdefault(unit.queue.path, ConsumeQueue(QUEUE_FILE_SIZE))
            queue.append(unit, release_at(rules, record.physical_offset))
    return {
        f"{path}/{file_name_of_offset(offset)}": data
        for path, queue in queues.items()
        for offset, data in queue.files()
    }


def _write_index(records: Sequence[MessageRecord], rules: Rules) -> list[IndexFile]:
    writer = IndexWriter(GEOMETRY, rules)
    writer.dispatch_all(records)
    return writer.files


def _build_index(records: Sequence[MessageRecord], rules: Rules) -> dict[str, bytes]:
    empty_count = rules[-1][1].empty_index_count
    files = enumerate(_write_index(records, rules))
    return {f"index/2025112001{number:07d}": file.encode(empty_count) for number, file in files}


def _take_part_of_unit(random: Random, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the queues, with the first bytes of the next unit of one of them."""
    files = dict(before)
    for path in sorted(after):
        old = before.get(path, bytes(len(after[path])))
        if old != after[path]:
            at = _first_difference(old, after[path]) // UNIT.size * UNIT.size
            written = random.randrange(_TAGS_CODE_AT)
            files[path] = old[:at] + after[path][at : at + written] + old[at + written :]
            break
    return files


def _take_part_of_entry(random: Random, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the index files, with the first bytes of the next entry, perhaps its slot, and no newer header."""
    files = dict(before)
    for path in sorted(after):
        old = before.get(path, bytes(len(after[path])))
        if old != after[path]:
            entries = old[_ENTRIES_AT:]
            at = _first_difference(entries, after[path][_ENTRIES_AT:]) // ENTRY.size * ENTRY.size + _ENTRIES_AT
            written = random.randrange(ENTRY.size + 1)
            slots = old[HEADER.size : _ENTRIES_AT]
            if written == ENTRY.size and random.random() < 0.5:
                slots = after[path][HEADER.size : _ENTRIES_AT]
            files[path] = old[: HEADER.size] + slots + old[_ENTRIES_AT:at] + after[path][at : at + written]
            files[path] += old[at + written :]
            break
    return files


def _first_difference(one: bytes, other: bytes) -> int:
    return next((number for number, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), 0)
