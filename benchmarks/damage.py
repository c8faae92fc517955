"""
What damage costs, and what it takes: one byte flipped in each of 1 % of a large store's records.

    python -m benchmarks.damage [--mib N] [--record-size BYTES] [--runs N] [--folder DIR]

The clean store and the damaged one are ingested in turn, messages alone and with queues and index. Then every row is
held against the clean lake's: an untouched record must be there once, as it was. Hits are counted by the field that was
hit and by what became of the record: in `quarantine`, contradicted by its ConsumeQueue unit, or a row that nothing in
the format contradicts.
"""

import argparse
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from benchmarks.lakes import bring
from benchmarks.measuring import answer, asked, in_turns
from benchmarks.stores import FOLDER, Recipe, make_store, offsets_of
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.layout import PROPERTIES_LENGTH, RECORD, TOPIC_LENGTH
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.consumequeue.build import UNITS
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.consumequeue.unit import QueueKind
from rmq_formats.hashing import java_hash
from rmq_formats.store import name_of_offset
from tests.support.lakes import dataset_of, table_of

_SHARE = 0.01
_QUEUE_FILE = 300_000 * UNIT.size
_CHOICES: dict[str, frozenset[str]] = {
    "messages": frozenset(),
    "all tables": frozenset({"messages", "consume_queue", "index"}),
}


class Hits(NamedTuple):
    """Which byte of which record is flipped."""

    offsets: NDArray[np.int64]  # of the records, ascending
    positions: NDArray[np.int64]  # of the bytes in them


def add_queues(recipe: Recipe, store: Path) -> None:
    """Write the units of every record, as a broker that was closed in order."""
    offsets = offsets_of(recipe)
    numbers = np.arange(offsets.size)
    of_topic = numbers // recipe.topics
    for topic in range(recipe.topics):
        for queue in range(recipe.queues):
            chosen = (numbers % recipe.topics == topic) & (of_topic % recipe.queues == queue)
            units = np.zeros(int(chosen.sum()), UNITS[QueueKind.PLAIN])
            units["physical_offset"], units["size"] = offsets[chosen], recipe.record_size
            units["tags_code"] = java_hash("TagA")
            folder = store / "consumequeue" / f"Bench{topic:03d}" / str(queue)
            folder.mkdir(parents=True, exist_ok=True)
            data = units.tobytes()
            for start in range(0, len(data), _QUEUE_FILE):
                with (folder / name_of_offset(start)).open("wb") as file:
                    file.write(data[start : start + _QUEUE_FILE])
                    file.truncate(_QUEUE_FILE)


def damage(recipe: Recipe, clean: Path, damaged: Path) -> Hits:
    """Copy the store and flip a byte in one of a hundred records."""
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(clean, damaged, copy_function=_copy_written)
    random = np.random.default_rng(recipe.seed)
    offsets = offsets_of(recipe)
    hit = np.sort(random.choice(offsets, int(offsets.size * _SHARE), replace=False))
    positions = random.integers(0, recipe.record_size, hit.size)
    masks = random.integers(1, 256, hit.size)
    segments = {int(path.name): os.open(path, os.O_RDWR) for path in (damaged / "commitlog").iterdir()}
    for offset, position, mask in zip(hit.tolist(), positions.tolist(), masks.tolist(), strict=True):
        base = offset - offset % recipe.segment_size
        at = offset - base + position
        (byte,) = os.pread(segments[base], 1, at)
        os.pwrite(segments[base], bytes([byte ^ mask]), at)
    for descriptor in segments.values():
        os.close(descriptor)
    return Hits(hit, positions)


def _copy_written(source: str, target: str) -> None:
    """Copy what a file holds, and leave the rest a hole as in the original, which costs nothing to read."""
    with Path(source).open("rb") as reading, Path(target).open("wb") as writing:
        size, at = os.fstat(reading.fileno()).st_size, 0
        while at < size:
            try:
                start = os.lseek(reading.fileno(), at, os.SEEK_DATA)
            except OSError:  # a hole to the end
                break
            at = os.lseek(reading.fileno(), start, os.SEEK_HOLE)
            while start < at:
                start += os.copy_file_range(reading.fileno(), writing.fileno(), at - start, start, start)
        writing.truncate(size)


def compare(clean: Path, damaged: Path, hits: Hits) -> tuple[int, int, NDArray[np.int64]]:
    """Return how many untouched records are missing, how many differ, and the offsets of hit records that are rows."""
    missing = differ = 0
    hit_rows: list[NDArray[np.int64]] = []
    for wanted, found in zip(_by_segment(clean), _by_segment(damaged), strict=True):
        wanted_at, found_at = (table["physical_offset"].to_numpy() for table in (wanted, found))
        untouched = ~np.isin(wanted_at, hits.offsets)
        is_hit = np.isin(found_at, hits.offsets)
        hit_rows.append(found_at[is_hit])
        left, right = wanted.filter(pa.array(untouched)), found.filter(pa.array(~is_hit))
        if not np.array_equal(left["physical_offset"].to_numpy(), right["physical_offset"].to_numpy()):
            missing += int((~np.isin(wanted_at[untouched], found_at)).sum())
            right = right.filter(pa.array(np.isin(right["physical_offset"].to_numpy(), wanted_at)))
            left = left.filter(pa.array(np.isin(left["physical_offset"].to_numpy(), right["physical_offset"])))
        differ += sum(not left[name].equals(right[name]) for name in left.column_names)
    return missing, differ, np.concatenate(hit_rows)


def _by_segment(lake: Path) -> list[pa.Table]:
    """Return the rows of each segment, in the order of the log, with what tells one record from another."""
    rows = dataset_of(lake / "messages")
    columns = [name for name in rows.schema.names if name not in {"store_id", "body", "properties", "keys"}]
    segments = sorted(set(rows.to_table(columns=["segment"])["segment"].unique().to_pylist()))
    return [
        rows.to_table(columns=columns, filter=ds.field("segment") == segment).sort_by("physical_offset")
        for segment in segments
    ]


def fates(damaged: Path, hits: Hits, hit_rows: NDArray[np.int64], record: MessageRecord) -> dict[str, dict[str, int]]:
    """Count the hits by field and by what became of the record."""
    quarantine = table_of(damaged / "quarantine")
    starts = quarantine["physical_offset"].to_numpy()
    order = np.argsort(starts)
    ends = (starts + quarantine["length"].to_numpy())[order]
    at = np.searchsorted(starts[order], hits.offsets, side="right") - 1
    quarantined = (at >= 0) & (hits.offsets < ends[np.maximum(at, 0)])
    units = table_of(damaged / "consume_queue", ["physical_offset", "status"])
    odd = units.filter(pc.not_equal(units["status"], "matched"))["physical_offset"].to_numpy()
    contradicted = np.isin(hits.offsets, odd)
    is_row = np.isin(hits.offsets, hit_rows)
    counts: dict[str, Counter[str]] = {}
    for position, in_quarantine, by_unit, row in zip(
        hits.positions.tolist(), quarantined.tolist(), contradicted.tolist(), is_row.tolist(), strict=True
    ):
        fate = "quarantine" if in_quarantine else "contradicted by its unit" if by_unit else "a row"
        fate = fate if in_quarantine or row else "lost"
        counts.setdefault(_field_at(position, record), Counter())[fate] += 1
    return {name: dict(counts[name]) for name in sorted(counts)}


def _field_at(position: int, record: MessageRecord) -> str:
    """Return the field of a record that holds the byte at *position*."""
    fixed = RECORD[0]
    if position < fixed.size:
        names = [field.name for field in fixed.fields]
        return max((name for name in names if fixed.offset(name) <= position), key=fixed.offset)
    end = fixed.size
    for name, size in (
        ("body", len(record.body)),
        ("topic_length", TOPIC_LENGTH[record.magic_code].size),
        ("topic", len(record.topic_raw)),
        ("properties_length", PROPERTIES_LENGTH.size),
    ):
        end += size
        if position < end:
            return name
    return "properties"


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=4096, record_size=1024, runs=5, folder=FOLDER)
    recipe = Recipe(given.mib << 20, given.record_size)
    clean = make_store(recipe, given.folder)
    add_queues(recipe, clean)
    damaged, lakes = given.folder / "damaged", given.folder / "damage-lakes"
    hits = damage(recipe, clean, damaged)
    stores = {"clean": clean, "damaged": damaged}
    peers = {
        (choice, name): partial(bring, store, lakes / name, OneByOne(), tables)
        for choice, tables in _CHOICES.items()
        for name, store in stores.items()
    }
    costs = in_turns(peers, given.runs)
    missing, differ, hit_rows = compare(lakes / "clean", lakes / "damaged", hits)
    with min((clean / "commitlog").iterdir()).open("rb") as file:
        record = decode_record(file.read(given.record_size), 0, 0)
    fields = fates(lakes / "damaged", hits, hit_rows, record)
    checked = {
        "untouched_missing": missing,
        "untouched_columns_that_differ": differ,
        "records": offsets_of(recipe).size,
        "hits": hits.offsets.size,
        "lost": sum(counts.get("lost", 0) for counts in fields.values()),
        "fate_of_hits_by_field": fields,
    }
    answer(_result(given, costs, checked))
    shutil.rmtree(damaged)
    shutil.rmtree(lakes)


def _result(
    given: argparse.Namespace, costs: dict[tuple[str, str], dict[str, float]], checked: dict[str, Any]
) -> dict[str, Any]:
    middle = {choice: {name: costs[choice, name] for name in ("clean", "damaged")} for choice in _CHOICES}
    return {
        "record_size": given.record_size,
        "mib": given.mib,
        "runs": given.runs,
        **checked,
        "median": middle,
        "damaged_over_clean": {
            choice: {key: round(pair["damaged"][key] / pair["clean"][key], 3) for key in ("cpu_s", "wall_s")}
            for choice, pair in middle.items()
        },
    }


if __name__ == "__main__":
    main()
