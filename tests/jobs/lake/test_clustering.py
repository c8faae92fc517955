"""Rows gathered by their hash: the same rows, in files of which a hash is in few."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.lake import compaction
from jobs.lake.compaction import CROWDED, Group, cluster, merge_group
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import files
from jobs.lake.table_file import Action
from jobs.lake.tables import INDEX_ENTRIES

_LARGEST = (1 << 31) - 1
_SEEDS = (1, 2, 3, 4)


def _merge(groups: Sequence[Group]) -> list[Action | None]:
    return [merge_group(group) for group in groups]


def _add_file(table: Path, random: Random, store: str, run: int) -> None:
    """Add a file as a run does, of hashes that are spread, or in one place, or all the same."""
    width = random.choice([_LARGEST, 1000, 1])
    low = random.randrange(_LARGEST - width + 1)
    count = random.randrange(1, 400)
    columns: dict[str, object] = {}
    for field in INDEX_ENTRIES.plain_schema:
        value = store if pa.types.is_string(field.type) else run
        columns[field.name] = [value if not pa.types.is_timestamp(field.type) else 0] * count
    columns["key_hash"] = sorted(low + random.randrange(width) for _ in range(count))
    columns["entry"] = list(range(count))
    write_deltalake(table, pa.table(columns, schema=INDEX_ENTRIES.plain_schema), mode="append")


def _rows(table: Path) -> Counter[tuple[object, ...]]:
    found = DeltaTable(table).to_pyarrow_table().select(["store_id", "slot", "key_hash", "entry"])
    return Counter(zip(*(found.column(name).to_pylist() for name in found.column_names), strict=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", _SEEDS)
def test_the_same_rows_are_in_files_of_which_a_hash_is_in_few(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lake, table = Lake(str(tmp_path)), tmp_path / INDEX_ENTRIES.name
    for run in range(60):
        _add_file(table, random, random.choice(["a", "b"]), run)
        if run in {20, 40}:
            with patch.object(compaction, "_MOST_ROWS", 500):
                cluster(lake, INDEX_ENTRIES, _merge)
    before = _rows(table)
    with patch.object(compaction, "_MOST_ROWS", 500):
        cluster(lake, INDEX_ENTRIES, _merge)
        there = files(lake, DeltaTable(table), INDEX_ENTRIES)
        assert cluster(lake, INDEX_ENTRIES, _merge).merged == 0

    assert _rows(table) == before
    for store, first in product(("a", "b"), there):  # most files overlap where one of them begins
        key_hash = first.low("key_hash", 0)
        opened = [file for file in there if file.may_have("store_id", store) and file.may_have("key_hash", key_hash)]
        assert len(opened) < CROWDED * 5  # steps that 30 files a store go down


def test_a_round_that_fails_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    lake, table = Lake(str(tmp_path)), tmp_path / INDEX_ENTRIES.name
    for run in range(CROWDED):
        _add_file(table, Random(run), "a", run)
    before, version = _rows(table), DeltaTable(table).version()

    with pytest.raises(OSError, match="the disk is gone"):
        cluster(lake, INDEX_ENTRIES, _gone)

    assert (_rows(table), DeltaTable(table).version()) == (before, version)


def _gone(groups: Sequence[Group]) -> list[Action | None]:
    raise OSError(f"the disk is gone before {len(groups)} files")
