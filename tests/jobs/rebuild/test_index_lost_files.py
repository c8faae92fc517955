"""Lost index files are rebuilt byte for byte."""

import random
from collections.abc import Iterator
from datetime import UTC
from itertools import combinations
from pathlib import Path

import pytest

from jobs.products.index.file_builder import RealFile, ToBuild, make
from jobs.products.index.key_row import KeyPlace, KeyRow, collect_keys
from jobs.products.index.placement import HISTORY, RESTART, Anchor, Kind, Planned, RowShape, plan_files
from jobs.products.index.settings import Settings
from jobs.products.index.survivors import Placing, asked_offsets, real_files
from jobs.rebuild.index import lost_files
from jobs.storage.scratch import scratch_beside
from jobs.store.chain import ListedLog
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.release import Known, Writers, given_rules
from jobs.store.store import Store, list_store
from jobs.store.workers import OneByOne
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release
from tests.golden import UNDISTURBED, StoreOf, release_of
from tests.rmq_formats.builders import into
from tests.support.stores import log_folders

TINY = Geometry(100, 20)
RULES = {"up470-471": "4.7.0,4.7.1@11232", "up533-540": "5.3.3,5.4.0@11232"}
LARGE = 8  # index files, from which on subsets say something
FEW = 10  # from which on not every subset is tried
RANDOM = 24


def a_log(keys: int, *, without_keys: bool = False, is_whole: bool = True) -> RowShape:
    return RowShape(keys, without_keys, is_whole)


def settings_of(name: str) -> Settings:
    rules = RULES.get(name, release_of(name))
    return Settings(
        Known(TINY, "given", ""),
        Known(Writers(given_rules(rules), rules), "given", ""),
        Known(UTC, "given", ""),
        Release.of(release_of(name)).empty_index_count,
    )


class Opened:
    """A golden store with its row of keys."""

    def __init__(self, root: Path, name: str, scratch_at: Path) -> None:
        self.store: Store = list_store(str(root), commitlog=log_folders(root))
        self.settings = settings_of(name)
        self.files: list[RealFile] = real_files(self.store)
        self.bytes = {file.name: Path(file.location).read_bytes() for file in self.files}
        self._context = scratch_beside(str(scratch_at), {})
        ranges = plan_ranges(self.store, range_size=WHOLE_SEGMENTS)
        rules = self.settings.rules.value.rules
        scratch = self._context.__enter__()
        self.row: KeyRow = collect_keys(
            OneByOne(), ListedLog(self.store, ranges), rules, scratch, asked_offsets(self.files)
        )

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def regenerate(self, lost: set[str]) -> list[ToBuild]:
        files = [file for file in self.files if file.name not in lost]
        kept = Placing(self.row, TINY, self.store).place_all(files)
        return lost_files(self.store, self.settings, self.row, kept)


def built(build: ToBuild) -> bytes:
    data = bytearray(TINY.file_size)

    make(build.recipe, into(data))
    return bytes(data)


def subsets(names: list[str], seed: str, *, every: bool) -> Iterator[set[str]]:
    if every and len(names) <= FEW:
        for size in range(1, len(names) + 1):
            yield from map(set, combinations(names, size))
        return
    chance = random.Random(seed)
    for _ in range(RANDOM * (10 if every else 1)):
        yield set(chance.sample(names, chance.randint(1, len(names))))


def losses_come_back(store: Path, name: str, folder: Path, *, every: bool) -> None:
    opened = Opened(store, name, folder)
    names = [file.name for file in opened.files]
    for lost in subsets(names, name, every=every):
        builds = opened.regenerate(lost)
        order = sorted(
            [(build.name, built(build)) for build in builds] + [(n, opened.bytes[n]) for n in names if n not in lost]
        )

        assert [data for _, data in order] == [opened.bytes[name] for name in names], sorted(lost)
        assert all(not build.doubt for build in builds) or opened.row.start_offset
    opened.close()


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", UNDISTURBED)
def test_lost_files_of_an_undisturbed_store_come_back_byte_for_byte(golden: StoreOf, name: str, tmp_path: Path) -> None:
    losses_come_back(golden(name), name, tmp_path, every=False)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", UNDISTURBED)
def test_every_subset_of_lost_files_comes_back(golden: StoreOf, name: str, tmp_path: Path) -> None:
    store = golden(name)
    if len(list((store / "index").iterdir())) < LARGE:
        pytest.skip("too few index files to be worth it")
    losses_come_back(store, name, tmp_path, every=True)


def test_a_message_without_keys_opens_a_file_behind_a_full_one() -> None:
    assert plan_files(a_log(0), 5) == []
    assert plan_files(a_log(0, without_keys=True), 5) == [Planned(0, 0, Kind.OPEN)]
    assert plan_files(a_log(10), 5) == [Planned(0, 5, Kind.FULL), Planned(5, 10, Kind.FULL)]
    assert plan_files(a_log(10, without_keys=True), 5)[2:] == [Planned(10, 10, Kind.OPEN)]
    assert plan_files(a_log(7, without_keys=True), 5) == [Planned(0, 5, Kind.FULL), Planned(5, 7, Kind.OPEN)]


def test_a_gap_that_no_uninterrupted_broker_left_gets_a_supplement() -> None:
    """Between two survivors stand keys for one and a half files: half a file is added and said to be one."""
    survivors = [Anchor(0, 10, is_full=True), Anchor(25, 30, is_full=False)]

    assert plan_files(a_log(30), 10, survivors) == [
        Planned(10, 20, Kind.FULL, 0),
        Planned(20, 25, Kind.SUPPLEMENT, 0, RESTART),
    ]


def test_a_lost_file_before_a_restart_holds_the_first_keys_of_the_message_that_was_indexed_again() -> None:
    """The survivor after it begins with the whole message, so the lost file is full with a part of it."""
    survivors = [Anchor(0, 10, is_full=True), Anchor(18, 28, is_full=True, begins=KeyPlace(18, 3))]

    assert plan_files(a_log(28), 10, survivors) == [Planned(10, 20, Kind.FULL, 0, RESTART)]


def test_before_the_first_survivor_of_an_expired_log_files_are_counted_backwards() -> None:
    """What is left at the log's beginning is the end of a file whose beginning is deleted."""
    planned = plan_files(a_log(40, is_whole=False), 10, [Anchor(23, 33, is_full=True)])

    assert planned == [
        Planned(0, 3, Kind.SUPPLEMENT, -1, HISTORY),
        Planned(3, 13, Kind.FULL),
        Planned(13, 23, Kind.FULL),
        Planned(33, 40, Kind.OPEN, 0),
    ]


def test_nothing_is_missing_behind_an_open_file() -> None:
    assert (
        plan_files(a_log(17, without_keys=True), 10, [Anchor(0, 10, is_full=True), Anchor(10, 17, is_full=False)]) == []
    )
