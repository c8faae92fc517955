"""The index in the lake: the broker's own files, run after run, whatever the runs."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.products.index.key_row import KeyCollector, Stretch
from jobs.products.index.product import EntryRows, begin, entries_in, file_rows, plan, state_of, write
from jobs.products.index.settings import Wanted
from jobs.storage import AnyStorage
from jobs.store.chain import run_range
from jobs.store.ranges import Range, plan_ranges
from jobs.store.store import list_store
from rmq_formats.commitlog.record import decode_record
from rmq_formats.indexfile.columns import SCHEMA
from rmq_formats.indexfile.keys import typed_index_keys
from rmq_formats.indexfile.layout import Geometry, decode_entry, decode_header
from rmq_formats.release import Release, Rules, release_at, rules_of
from tests.golden import GOLDEN, SCENARIO, release_of

StoreOf = Callable[[str], Path]
TINY = Geometry(100, 20)


class FakeFile:
    """A Parquet file of the lake."""

    def __init__(self, path: Path) -> None:
        """Open it."""
        self.path = path
        self._writer = pq.ParquetWriter(path, SCHEMA)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._writer.write_batch(batch)

    def close(self) -> Path:
        """Finish."""
        self._writer.close()
        return self.path


class FakeLake:
    """Tables as files and rows, without Delta."""

    def __init__(self, folder: Path) -> None:
        """Begin empty."""
        self.folder = folder
        self.entries: dict[int, list[str]] = {}
        self.files: list[dict[str, Any]] = []
        self.state: dict[str, Any] | None = None
        self.runs = 0
        folder.mkdir()

    @contextmanager
    def open_file(self, part: str) -> Iterator[FakeFile]:
        """Give a file of this run."""
        yield FakeFile(self.folder / f"{self.runs}-{part}.parquet")

    def run(self, root: Path, ranges: Sequence[Range], rules: Rules, to_offset: int) -> list[EntryRows]:
        """Bring what the ranges hold."""
        self.runs += 1
        commitlog = [str(path) for path in sorted(root.glob("commitlog-*"))]
        store = list_store(str(root), commitlog=commitlog)
        begun = begin(store, Wanted(100, 20), rules, self.state, ranges[0].start_offset)

        def count(_range: Range, pieces: Any) -> Stretch:  # noqa: ANN401
            collector: KeyCollector = begun.collector()
            for item in pieces:
                collector.add(item)
            return collector.stretch("")

        counted = [(range_, run_range(range_, count).payload) for range_ in ranges]
        works = plan(begun, store, counted, lambda ordinal: self.entries.get(ordinal, []))
        written = [write(work, open_file=self.open_file, storage=AnyStorage()) for work in works]
        for rows in written:
            self.entries.setdefault(rows.ordinal, []).extend(str(path) for path in rows.actions)
        self.files += file_rows(begun, written, self.runs)
        self.state = json.loads(json.dumps(state_of(begun, written, to_offset)))
        return written

    def rows(self) -> list[dict[str, Any]]:
        """Return every entry in order."""
        tables = [pq.read_table(path) for paths in self.entries.values() for path in paths]
        rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
        return sorted(rows, key=lambda row: (row["index_file"], row["entry"]))

    def newest(self) -> list[dict[str, Any]]:
        """Return the newest row of every index file."""
        newest = {row["index_file"]: row for row in self.files}
        return [newest[ordinal] for ordinal in sorted(newest)]


def rules_for(name: str) -> Rules:
    """Return the rules of a golden store."""
    if name == "up470-471":
        return rules_of((0, Release.of("4.7.0")), (11232, Release.of("4.7.1")))
    if name == "up533-540":
        return rules_of((0, Release.of("5.3.3")), (11232, Release.of("5.4.0")))
    return rules_of((0, Release.of(release_of(name))))


def ranges_of(store: Path) -> list[Range]:
    """Return a range for each segment."""
    commitlog = [str(path) for path in sorted(store.glob("commitlog-*"))]
    return plan_ranges(list_store(str(store), commitlog=commitlog), range_size=1 << 40)


def real_entries(store: Path) -> list[tuple[int, int, int, int, int, int]]:
    """Return (file, number, hash, offset, seconds, previous) of the broker's own entries."""
    found = []
    for ordinal, path in enumerate(sorted((store / "index").iterdir())):
        data = path.read_bytes()
        found += [
            (ordinal, number, *decode_entry(data, TINY.entry_position(number)))
            for number in range(1, decode_header(data).index_count)
        ]
    return found


def lake_entries(lake: FakeLake) -> list[tuple[int, int, int, int, int, int]]:
    """Return the same of the lake."""
    names = ("index_file", "entry", "key_hash", "physical_offset", "time_diff_s", "prev_entry")
    return [tuple(row[name] for name in names) for row in lake.rows()]


def without_index(store: Path, folder: Path) -> Path:
    """Copy a store without its index files."""
    copy = folder / "bare"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("index"))
    return copy


DISTURBED = {"crash-after", "crash-later", "expired", "expired-logonly", "live"}
UNDISTURBED = [name for name in GOLDEN if SCENARIO[name] not in DISTURBED and name != "b533-crash-before"]


@pytest.mark.parametrize("name", UNDISTURBED)
@pytest.mark.parametrize("whole", [True, False])
def test_entries_and_files_are_the_brokers_own_in_one_run_or_one_a_segment(
    golden: StoreOf, tmp_path: Path, name: str, *, whole: bool
) -> None:
    """Without the broker's files to lean on; complete files have their very bytes."""
    store = without_index(golden(name), tmp_path)
    lake = FakeLake(tmp_path / "lake")
    ranges = ranges_of(store)
    runs = [ranges] if whole else [[range_] for range_ in ranges]
    for some in runs:
        lake.run(store, some, rules_for(name), some[-1].end_offset)
    real = [path.read_bytes() for path in sorted((golden(name) / "index").iterdir())]

    assert lake_entries(lake) == real_entries(golden(name))
    complete = {row["index_file"]: row["sha256"] for row in lake.newest() if row["is_complete"]}
    assert complete == {
        number: hashlib.sha256(data).hexdigest()
        for number, data in enumerate(real)
        if decode_header(data).index_count == TINY.index_num
    }
    headers = [
        tuple(row[name] for name in ("hash_slot_count", "index_count", "end_timestamp")) for row in lake.newest()
    ]
    expected = [decode_header(data) for data in real if decode_header(data).index_count > 1]
    assert headers == [(header.hash_slot_count, header.index_count, header.end_timestamp) for header in expected]


def test_every_entry_names_its_key(golden: StoreOf, tmp_path: Path) -> None:
    """Topic, key and kind as the record has them; duplicates stay."""
    store = golden("b551-base")
    lake = FakeLake(tmp_path / "lake")
    ranges = ranges_of(store)
    lake.run(store, ranges, rules_for("b551-base"), ranges[-1].end_offset)
    log = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
    expected = []
    for offset in dict.fromkeys(row["physical_offset"] for row in lake.rows()):
        record = decode_record(log, offset)
        keys = typed_index_keys(record, release_at(rules_for("b551-base"), offset))
        expected += [(offset, key.topic, key.key, key.kind.value, record.store_timestamp) for key in keys]

    names = ("physical_offset", "topic", "key", "kind", "store_timestamp")
    assert [tuple(row[name] for name in names) for row in lake.rows()] == expected
    assert {row["kind"] for row in lake.rows()} == {"unique", "key", "tag"}


def test_complete_files_never_change_and_open_ones_get_newer_rows(golden: StoreOf, tmp_path: Path) -> None:
    """Entries are written once."""
    store = golden("b533-base")
    lake = FakeLake(tmp_path / "lake")
    written: dict[tuple[int, int], Any] = {}
    for range_ in ranges_of(store):
        lake.run(store, [range_], rules_for("b533-base"), range_.end_offset)
        for row in lake.rows():
            assert written.setdefault((row["index_file"], row["entry"]), row) == row
    complete = [row["index_file"] for row in lake.files if row["is_complete"]]

    assert len(complete) == len(set(complete))
    assert len(lake.files) > len(lake.newest())


def test_a_run_without_new_keys_changes_nothing(golden: StoreOf, tmp_path: Path) -> None:
    """The state says where keys are new from."""
    store = golden("b533-base")
    lake = FakeLake(tmp_path / "lake")
    ranges = ranges_of(store)
    lake.run(store, ranges, rules_for("b533-base"), ranges[-1].end_offset)
    before = (lake.state, lake.rows(), list(lake.files))

    assert lake.run(store, ranges[-1:], rules_for("b533-base"), ranges[-1].end_offset) == []
    assert (lake.state, lake.rows(), lake.files) == before


@pytest.mark.parametrize(
    "name", [name for name in GOLDEN if SCENARIO[name] in {"crash-after", "crash-later", "expired"}]
)
def test_the_first_run_takes_its_boundaries_from_the_brokers_own_files(
    golden: StoreOf, tmp_path: Path, name: str
) -> None:
    """A restart, or messages that are gone: entries are those of the files that are there."""
    store = golden(name)
    lake = FakeLake(tmp_path / "lake")
    ranges = ranges_of(store)
    lake.run(store, ranges, rules_for(name), ranges[-1].end_offset)

    assert lake_entries(lake) == real_entries(store)
    assert [row["name"] for row in lake.newest()] == sorted(path.name for path in (store / "index").iterdir())
    history = [row for row in lake.rows() if row["topic"] is None]
    assert bool(history) == (SCENARIO[name] == "expired")


def test_index_files_older_than_the_log_come_into_the_lake_as_they_are(golden: StoreOf, tmp_path: Path) -> None:
    """From 5.1.1 on they may outlive their messages: their entries have no keys, and their own bytes."""
    store = tmp_path / "store"
    shutil.copytree(golden("b533-base"), store)
    for segment in sorted((store / "commitlog").iterdir())[:2]:
        segment.unlink()
    lake = FakeLake(tmp_path / "lake")
    ranges = ranges_of(store)
    lake.run(store, ranges, rules_for("b533-base"), ranges[-1].end_offset)
    real = [path.read_bytes() for path in sorted((store / "index").iterdir())]

    assert lake_entries(lake) == real_entries(store)
    assert lake.rows()[0]["topic"] is None
    assert lake.rows()[-1]["topic"] is not None
    assert [row["sha256"] for row in lake.newest()[:-1]] == [hashlib.sha256(data).hexdigest() for data in real[:-1]]


def test_the_moved_start_of_the_log_moves_no_boundary(golden: StoreOf, tmp_path: Path) -> None:
    """Segments expire between runs; the open file goes on as if nothing had happened."""
    store = without_index(golden("b533-base"), tmp_path)
    lake = FakeLake(tmp_path / "lake")
    for range_ in ranges_of(store):
        lake.run(store, [range_], rules_for("b533-base"), range_.end_offset)
        Path(range_.location).unlink()
        if not any((store / "commitlog").iterdir()):
            break

    assert lake_entries(lake) == real_entries(golden("b533-base"))


def test_an_entry_that_is_not_in_the_lake_is_missed(golden: StoreOf, tmp_path: Path) -> None:
    """The slots of the open file are made of its entries."""
    store = without_index(golden("b533-base"), tmp_path)
    lake = FakeLake(tmp_path / "lake")
    first, second, *_ = ranges_of(store)
    lake.run(store, [first], rules_for("b533-base"), first.end_offset)
    lake.entries.clear()

    with pytest.raises(OSError, match="entry 1 of index file"):
        lake.run(store, [second], rules_for("b533-base"), second.end_offset)


def test_entries_of_another_store_in_the_same_file_are_left_alone(tmp_path: Path) -> None:
    """A lake may be compacted across stores."""
    rows = [
        {"store_id": store, "index_file": number, "entry": 1, "key_hash": key, "physical_offset": 0, "time_diff_s": 0,
         "prev_entry": 0}
        for store, number, key in (("a", 0, 1), ("b", 0, 2), ("a", 1, 3))
    ]  # fmt: skip
    path = tmp_path / "compacted.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    found = [entries_in([str(path)], 0, 1, {}, store).view(">i4")[0] for store in ("a", "b")]

    assert found == [1, 2]
