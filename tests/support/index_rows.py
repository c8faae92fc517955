"""The entries of a broker's index files, and those of a lake."""

import struct
from pathlib import Path
from typing import Any

from tests.support.lakes import table_of

SLOTS, ENTRIES = 100, 20  # of every golden store
ENTRY = struct.Struct(">iqii")  # on purpose not the declared layout


def real_entries(store: Path) -> list[tuple[int, int, int, int, int, int]]:
    found = []
    for ordinal, path in enumerate(sorted((store / "index").iterdir())):
        content = path.read_bytes()
        (count,) = struct.unpack_from(">i", content, 36)
        found += [
            (ordinal, number, *ENTRY.unpack_from(content, 40 + 4 * SLOTS + 20 * number)) for number in range(1, count)
        ]
    return found


def lake_entries(lake: Path) -> list[tuple[int, int, int, int, int, int]]:
    columns = ["index_file", "entry", "key_hash", "physical_offset", "time_diff_s", "prev_entry"]
    table = table_of(lake / "index_entries", columns)
    return sorted(tuple(row[column] for column in columns) for row in table.to_pylist())


def newest_headers(lake: Path) -> list[dict[str, Any]]:
    rows = table_of(lake / "index_files").to_pylist()
    newest = {row["index_file"]: row for row in sorted(rows, key=lambda row: row["run"])}
    return [newest[ordinal] for ordinal in sorted(newest)]
