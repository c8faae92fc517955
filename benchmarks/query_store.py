"""
Look one key up in a store whose index holds 20 million entries (420 MB): cold and warm, whole commands.

    python -m benchmarks.query_store [FOLDER]

The index is that of a broker's default geometry; its entries point at real records, a million of them. "Cold" drops the
index and the log from the page cache first, so that each hop of the chain is a read from the disk.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import provenance
from benchmarks.stores import FOLDER, drop_from_cache
from rmq_formats.arrays import dtype_of
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import Host, encode_record, new_record
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, ENTRY, HEADER
from rmq_formats.store import name_of_offset

_RECORDS = 1_000_000
_ENTRIES = DEFAULT_GEOMETRY.capacity
_RUNS = 5
_BORN = 1_763_600_000_000
_WANTED = _RECORDS // 3
_ENTRY = dtype_of(ENTRY)


def make_store(root: Path) -> Path:
    """Write a log of a million records and one full index file."""
    store = root / "store"
    if store.exists():
        return store
    unfinished = root / "unfinished-store"
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in ("commitlog", "index"):
        (unfinished / name).mkdir(parents=True)
    _write_index(unfinished / "index" / "20251120010000000", _write_log(unfinished / "commitlog"))
    return unfinished.rename(store)


def _write_log(folder: Path) -> NDArray[np.int64]:
    host = Host(bytes([10, 0, 0, 1]), 10911)
    offsets = np.empty(_RECORDS, np.int64)
    at = 0
    with (folder / name_of_offset(0)).open("wb") as file:
        for number in range(_RECORDS):
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


def _write_index(path: Path, offsets: NDArray[np.int64]) -> None:
    """Write one full file: an entry for every message, and as many of others as the file takes."""
    random = np.random.default_rng(4711)
    hashes = random.integers(0, 1 << 31, _ENTRIES + 1, dtype=np.int64)
    places = random.integers(0, _RECORDS, _ENTRIES + 1)
    places.sort()
    chosen = np.searchsorted(places, _WANTED)
    places[chosen] = _WANTED
    hashes[chosen] = index_key_hash(f"Orders#k{_WANTED:09d}")
    slots = hashes % DEFAULT_GEOMETRY.hash_slots
    order = 1 + np.argsort(slots[1:], kind="stable")
    previous = np.zeros(_ENTRIES + 1, np.int64)
    same = slots[order[1:]] == slots[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    newest = np.zeros(DEFAULT_GEOMETRY.hash_slots, ">i4")
    newest[slots[order]] = order
    entries = np.zeros(_ENTRIES + 1, _ENTRY)
    entries["key_hash"][1:] = hashes[1:]
    entries["physical_offset"][1:] = offsets[places[1:]]
    entries["time_diff_s"][1:] = places[1:] // 1000
    entries["prev_entry"][1:] = previous[1:]
    header = HEADER.pack(_BORN, _BORN + _RECORDS, 0, int(offsets[-1]), int((newest > 0).sum()), _ENTRIES + 1)
    path.write_bytes(header + newest.tobytes() + entries.tobytes())


def measure(store: Path, *, cold: bool) -> dict[str, float]:
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
        f"k{_WANTED:09d}",
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
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    store = make_store(folder)
    figures = {
        **provenance(),
        "entries": _ENTRIES,
        "index_bytes": DEFAULT_GEOMETRY.file_size,
        "warm": measure(store, cold=False),
        "cold": measure(store, cold=True),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
