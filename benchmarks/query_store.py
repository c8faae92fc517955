"""
Look one key up in a store whose index holds 20 million entries (420 MB): cold and warm, whole commands.

    python -m benchmarks.query_store [--folder DIR]

The index is that of a broker's default geometry; its entries point at real records, a million of them. "Cold" drops the
index and the log from the page cache first, so that each hop of the chain is a read from the disk.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.lakes import kept
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, drop_from_cache
from rmq_formats.arrays import dtype_of
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import Host, encode_record, new_record
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, ENTRY, HEADER, Geometry
from rmq_formats.store import name_of_offset

_RUNS = 5
_BORN = 1_763_600_000_000
_ENTRY = dtype_of(ENTRY)


def make_store(root: Path, records: int, geometry: Geometry) -> Path:
    """Write a log of so many records and one full index file."""

    def make(store: Path) -> None:
        for name in ("commitlog", "index"):
            (store / name).mkdir(parents=True)
        offsets = _write_log(store / "commitlog", records)
        _write_index(store / "index" / "20251120010000000", offsets, geometry)

    return kept(root / "store", make)


def _write_log(folder: Path, records: int) -> NDArray[np.int64]:
    host = Host(bytes([10, 0, 0, 1]), 10911)
    offsets = np.empty(records, np.int64)
    at = 0
    with (folder / name_of_offset(0)).open("wb") as file:
        for number in range(records):
            record = new_record(
                topic=b"Orders",
                magic_code=MAGIC_V1,
                body=b"{}",
                properties=f"KEYS\x01k{number:09d}\x02".encode(),
                queue_offset=number,
                physical_offset=at,
                born_timestamp=_BORN,
                born_host=host,
                store_timestamp=_BORN + number,
                store_host=host,
            )
            file.write(encode_record(record))
            offsets[number] = at
            at += record.total_size
        file.truncate(1 << 30)
    return offsets


def _write_index(path: Path, offsets: NDArray[np.int64], geometry: Geometry) -> None:
    """Write one full file: an entry for every message, and as many of others as the file takes."""
    records, full = offsets.size, geometry.capacity
    wanted = records // 3
    random = np.random.default_rng(4711)
    hashes = random.integers(0, 1 << 31, full + 1, dtype=np.int64)
    places = random.integers(0, records, full + 1)
    places.sort()
    chosen = np.searchsorted(places, wanted)
    places[chosen] = wanted
    hashes[chosen] = index_key_hash(f"Orders#k{wanted:09d}")
    slots = hashes % geometry.hash_slots
    order = 1 + np.argsort(slots[1:], kind="stable")
    previous = np.zeros(full + 1, np.int64)
    same = slots[order[1:]] == slots[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    newest = np.zeros(geometry.hash_slots, ">i4")
    newest[slots[order]] = order
    entries = np.zeros(full + 1, _ENTRY)
    entries["key_hash"][1:] = hashes[1:]
    entries["physical_offset"][1:] = offsets[places[1:]]
    entries["time_diff_s"][1:] = places[1:] // 1000
    entries["prev_entry"][1:] = previous[1:]
    header = HEADER.pack(_BORN, _BORN + records, 0, int(offsets[-1]), int((newest > 0).sum()), full + 1)
    path.write_bytes(header + newest.tobytes() + entries.tobytes())


def measure(store: Path, wanted: int, *, cold: bool) -> dict[str, float]:
    """
    Return the median seconds of whole commands, of what they take once the interpreter runs, and of a second answer.

    The second answer in one process shows what is left when every module has been loaded.
    """
    arguments = [
        "query",
        "by-key",
        "-t",
        "Orders",
        "-k",
        f"k{wanted:09d}",
        "--store",
        str(store),
        "--release",
        "4.9.8",
    ]
    program = (
        "import sys, time\n"
        "began = time.perf_counter()\n"
        "from jobs.command import cli\n"
        "code = cli.main(sys.argv[1:])\n"
        "answered = time.perf_counter()\n"
        "cli.main(sys.argv[1:])\n"
        "print(answered - began, time.perf_counter() - answered, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    walls, commands, answers = [], [], []
    for _ in range(_RUNS):
        if cold:
            drop_from_cache(store)
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        walls.append(time.perf_counter() - began)
        commands.append(float(done.stderr.split()[-2]))
        answers.append(float(done.stderr.split()[-1]))
        if done.stdout.count("\n") != 2 * len(("header", "message")):
            raise SystemExit(f"wrong answer: {done.stdout}")
    return {
        "wall_s": round(median(walls), 4),
        "after_start_s": round(median(commands), 4),
        "second_answer_s": round(median(answers), 4),
    }


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, folder=FOLDER, records=1_000_000, entries=DEFAULT_GEOMETRY.capacity)
    geometry = DEFAULT_GEOMETRY
    if given.entries < geometry.capacity:
        geometry = Geometry(given.entries // 4, given.entries + 1)
    store = make_store(given.folder, given.records, geometry)
    wanted = given.records // 3
    figures = {
        "entries": geometry.capacity,
        "index_bytes": geometry.file_size,
        "warm": measure(store, wanted, cold=False),
        "cold": measure(store, wanted, cold=True),
    }
    answer(figures)


if __name__ == "__main__":
    main()
