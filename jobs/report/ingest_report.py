"""The report of one run of `ingest`: the messages read, their distribution, and the duration of each step."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import exp, factorial
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.console.amounts import round_up_duration
from jobs.console.process import tool_command
from jobs.console.result import Severity
from jobs.ingest import Summary
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import Limits, read_rows_where, read_rows_within
from jobs.lake.tables import INDEX_ENTRIES, INDEX_FILES, MESSAGES, QUARANTINE, Table
from jobs.report import Bars, Facts, Grid, Part, Remedy, Report, Timeline, Value

_SLOTS = 60  # slots of a timeline
_SHOWN = 7  # topics and producers by name; the rest is summed up
_CHAINS = 9  # lengths of chains by number; longer ones are summed up
_SIZES = (256, 1024, 4096, 16384, 65536, 1 << 20)
_SIZE_NAMES = (*(f"up to {size:,} bytes" for size in _SIZES), f"over {_SIZES[-1]:,} bytes")
_HEX = 64
_OTHERS = "others"


def build_ingest_report(summary: Summary, lake: Lake, seconds: float, options: Sequence[str] = ()) -> Report:
    """Return the report of a finished run, which took *seconds*; its commands repeat *options*, the log's place."""
    parts: list[Part] = []
    if summary.run is not None and summary.store_id is not None:
        parts += [*_messages(summary, lake), *_index(summary, lake)]
    parts.append(_facts(summary))
    if summary.versions:
        parts.append(Grid("Tables written", ("table", "Delta version"), list(summary.versions.items())))
    parts.append(Bars("Time by step", "seconds", summary.seconds))
    return Report.from_result(
        "ingest", summary.store, summary.result(seconds), parts, list(_remedies(summary, lake, options))
    )


def _facts(summary: Summary) -> Facts:
    values: dict[str, Value] = {
        "store": summary.store,
        "lake": summary.lake,
        "broker": summary.broker,
        "store id": summary.store_id,
        "run": summary.run,
        "offsets": f"{summary.from_offset:,} to {summary.to_offset:,}",
        "bytes of the log": summary.bytes,
        "messages": summary.messages,
        "index entries": summary.index_entries,
        "damaged places": summary.quarantined,
        "bytes not dispatched yet": summary.behind,
    }
    values |= {f"segments {end}": count for end, count in summary.segment_ends.items()}
    values |= {f"units {name}": count for name, count in summary.units.items()}
    return Facts("This run", values)


def _remedies(summary: Summary, lake: Lake, options: Sequence[str]) -> Iterator[Remedy]:
    store = " ".join(map(quote, (summary.store, *options)))
    verify = (f"{tool_command()} verify {store}",)
    if summary.quarantined:
        yield Remedy(
            "Part of the log is damaged. Its bytes are in the table quarantine; all other records were read. "
            "Recover the damaged messages from a replica or a backup. To list the damaged ranges:",
            (f"{tool_command()} inspect {store} --deep",),
            _damage(summary, lake),
        )
    if summary.unreadable:
        yield Remedy(
            "Files of the store are damaged or cannot be read. To compare the store with its log:",
            verify,
            Grid("Unreadable files", ("damage",), [(text,) for text in summary.unreadable]),
        )
    if summary.gaps:
        rows = [(Severity.GAP.value, gap["from"], gap["to"], gap["why"]) for gap in summary.gaps]
        yield Remedy(
            "These offsets are missing in the lake. If a replica or a backup has the files, copy them into the store, "
            "with the broker stopped, and ingest the store into a new lake. If retention deleted them before they were "
            "read, run ingest more often.",
            (),
            Grid("Gaps", ("severity", "from", "to", "why"), rows),
        )
    if summary.superseded:
        row = (summary.superseded["from_offset"], summary.superseded["to_offset"], summary.superseded["why"])
        yield Remedy(
            "The log was rewritten from this offset on; the rows of the old log were replaced. Versions of the tables "
            "before this run still have them:",
            (),
            Grid("Rewritten log", ("from", "to", "why"), [row]),
        )
    if summary.notes:
        yield Remedy(
            "Check whether the following is intended:",
            (),
            Grid("Notes", ("note",), [(note,) for note in summary.notes]),
        )
    if summary.units.get("differences"):
        yield Remedy(
            f"Queue units that do not match their messages: {summary.units['differences']:,} (column status of "
            "consume_queue). Only `verify` shows why:",
            verify,
        )
    elif summary.severity is Severity.NOT_VERIFIED and summary.run is not None:
        yield Remedy("No action is needed. To compare queues and index files with the log:", verify)


def _damage(summary: Summary, lake: Lake) -> Grid:
    snapshot = open_table(lake, QUARANTINE.name)
    of_runs = (pc.field("store_id") == summary.store_id) & (pc.field("run") > (summary.run or 0) - summary.steps)
    found = read_rows_where(lake, snapshot, None, of_runs).to_pylist() if snapshot is not None else []
    damage = Severity.DAMAGE.value
    rows = [
        (damage, row["physical_offset"], row["length"], row["reason"], (row["sample"] or b"")[:_HEX].hex(" "))
        for row in found
    ]
    columns = ("severity", "offset", "bytes", "reason", f"first {_HEX} bytes")
    return Grid("Damage in quarantine", columns, sorted(rows))


def _read(
    summary: Summary, lake: Lake, table: Table, columns: Sequence[str], limits: Limits
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the store; files that a run has merged also have rows of earlier runs, which *limits* exclude."""
    snapshot = open_table(lake, table.name)
    if snapshot is not None:
        rows = read_rows_within(lake, table, snapshot, summary.store_id or "", limits, columns)
        yield from (batch for batch in rows if batch.num_rows)


def _messages(summary: Summary, lake: Lake) -> Iterator[Part]:
    def rows(*columns: str) -> Iterator[pa.RecordBatch]:
        return _read(summary, lake, MESSAGES, columns, {"physical_offset": _offsets(summary)})

    producers, keys, sizes = Counter[str](), Counter[str](), Counter[str]()
    limits = [pc.min_max(batch["store_timestamp"]).as_py() for batch in rows("store_timestamp")]
    first, last = min((one["min"] for one in limits), default=0), max((one["max"] for one in limits), default=0)
    step = round_up_duration((last - first + 1) / (_SLOTS - 1))
    start = first // step * step
    times: dict[str, Counter[int]] = {}
    for batch in rows("topic", "born_host", "keys", "total_size", "store_timestamp"):
        for host, count in _counted(batch["born_host"]).items():
            producers[host.rpartition(":")[0]] += count
        counts = pc.fill_null(pc.list_value_length(batch["keys"]), 0)
        keys.update({f"{number} keys": n for number, n in _counted(counts).items()})
        classes = np.bincount(np.searchsorted(_SIZES, batch["total_size"].to_numpy()), minlength=len(_SIZE_NAMES))
        sizes.update(dict(zip(_SIZE_NAMES, map(int, classes), strict=True)))
        # As floats, because a damaged record may have any 64-bit time.
        slots = np.clip((batch["store_timestamp"].to_numpy().astype(float) - start) // step, 0, _SLOTS - 1).astype(int)
        by_slot = pa.table({"topic": batch["topic"], "slot": slots}).group_by(["topic", "slot"])
        for row in by_slot.aggregate([([], "count_all")]).to_pylist():
            times.setdefault(row["topic"], Counter())[row["slot"]] += row["count_all"]
    topics = Counter({topic: counts.total() for topic, counts in times.items()})
    if not topics:
        return
    yield _timeline(times, topics, start, step)
    yield Bars("Messages by topic", "messages", _largest(topics))
    yield Bars("Records by size", "records", {name: sizes[name] for name in _SIZE_NAMES if sizes[name]})
    yield Bars("Keys per message", "messages", dict(sorted(keys.items())))
    yield Bars("Producers", "messages", _largest(producers))


def _offsets(summary: Summary) -> tuple[int, int]:
    return summary.from_offset, summary.to_offset - 1


def _index(summary: Summary, lake: Lake) -> Iterator[Part]:
    limits = {"end_physical_offset": _offsets(summary)}
    found = [row for batch in _read(summary, lake, INDEX_FILES, _HEADER, limits) for row in batch.to_pylist()]
    newest = {row["index_file"]: row for row in sorted(found, key=lambda row: row["run"])}
    rows = [newest[number] for number in sorted(newest)]
    if not rows:
        return
    cells = [
        (
            row["index_file"],
            row["name"] or "",
            row["index_count"] - 1,
            f"{(row['index_count'] - 1) / (row['index_num'] - 1):.0%}",
            f"{row['hash_slot_count'] / row['hash_slots']:.1%}",
            (row["sha256"] or "")[:16],
        )
        for row in rows
    ]
    yield Grid("Index files of this run", ("file", "name", "entries", "full", "slots in use", "SHA-256"), cells)
    yield from _chains(summary, lake, max(rows, key=lambda row: (row["is_complete"], row["index_file"])))


def _chains(summary: Summary, lake: Lake, header: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the chain lengths of one index file, next to those that a uniform hash would give."""
    slots = np.zeros(header["hash_slots"], np.int32)
    for batch in _read(summary, lake, INDEX_ENTRIES, ("slot",), {"index_file": (header["index_file"],) * 2}):
        slots += np.bincount(batch["slot"].to_numpy(), minlength=slots.size).astype(np.int32)
    lengths = np.bincount(np.minimum(slots, _CHAINS))
    mean = float(slots.mean())
    # With an even hash the number of entries in a slot is Poisson-distributed.
    ideal = [slots.size * exp(-mean) * mean**length / factorial(length) for length in range(_CHAINS)]
    ideal.append(max(slots.size - sum(ideal), 0.0))
    names = [f"{length} entries" for length in range(_CHAINS)] + [f"{_CHAINS} or more"]
    yield Bars(
        f"Chains of index file {header['index_file']}",
        "slots",
        {name: int(count) for name, count in zip(names, lengths, strict=False)},
        {name: round(count, 1) for name, count, _ in zip(names, ideal, lengths, strict=False)},
        note="The dashed mark shows the number that a uniform hash would give.",
    )


_HEADER = (
    "index_file",
    "name",
    "index_count",
    "index_num",
    "hash_slot_count",
    "hash_slots",
    "sha256",
    "is_complete",
    "run",
)


def _counted(column: pa.Array) -> dict[str, int]:
    return {str(item["values"]): item["counts"] for item in pc.value_counts(column).to_pylist()}


def _timeline(times: Mapping[str, Counter[int]], topics: Counter[str], start: int, step: int) -> Timeline:
    shown = [topic for topic, _ in topics.most_common(_SHOWN)]
    count = max(slot for of in times.values() for slot in of) + 1
    series = {topic: [times[topic][slot] for slot in range(count)] for topic in shown}
    rest = [sum(of[slot] for topic, of in times.items() if topic not in series) for slot in range(count)]
    if any(rest):
        series[_OTHERS] = rest
    return Timeline("Messages over store time", "messages", start, step, series)


def _largest(counts: Counter[str]) -> dict[str, float]:
    shown: dict[str, float] = dict(counts.most_common(_SHOWN))
    rest = counts.total() - sum(shown.values())
    return {**shown, _OTHERS: rest} if rest else shown
