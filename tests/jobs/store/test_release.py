"""Detected facts that no file states: the release, and the length of the timer's slots."""

from pathlib import Path

import pytest

from jobs.query.store_reader import StoreReader
from jobs.store.release import QUICK, THOROUGH, Effort, eras_of
from jobs.store.store import list_store
from jobs.store.waiting import timer_state
from rmq_formats.indexfile.layout import Geometry, IndexEntry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.release import Release
from rmq_formats.timer_files import PROGRESS, SLOT, UNIT, Slot, TimerUnit
from tests.golden import GOLDEN, StoreOf, release_of
from tests.support.commands import copy_of, overwrite
from tests.support.query_stores import Sent, stored, write_store
from tests.support.stores import log_folders


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name[0] == "b"])
@pytest.mark.parametrize("effort", [QUICK, THOROUGH], ids=["quick", "thorough"])
def test_a_few_looks_never_rule_out_the_release_that_wrote_a_store(name: str, effort: Effort, golden: StoreOf) -> None:
    root = golden(name)
    store = list_store(str(root), commitlog=log_folders(root))

    (era,) = eras_of(store, effort)

    assert Release.of(release_of(name)) in era.candidates


def test_records_after_damage_at_the_beginning_of_a_segment_still_tell(golden: StoreOf, tmp_path: Path) -> None:
    root = copy_of(golden("b551-base"), tmp_path)
    before = eras_of(list_store(str(root)))
    for path in (root / "commitlog").iterdir():
        overwrite(path, 0, b"\1" * 100)

    after = eras_of(list_store(str(root)))

    assert [era.candidates for era in before] == [era.candidates for era in after]


def test_a_tag_of_many_messages_is_looked_up_without_its_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of a million entries, followed one by one, held up every query for half a minute."""
    messages = [Sent(tags="TagA", unique_key=f"{number:032X}") for number in range(2000)]
    geometry = Geometry(50, 10_000)
    write_store(tmp_path / "store", stored(messages), geometry=geometry)
    read: list[int] = []
    entry = IndexReader.entry

    def counted(reader: IndexReader, number: int) -> IndexEntry:
        read.append(number)
        return entry(reader, number)

    monkeypatch.setattr(IndexReader, "entry", counted)

    with StoreReader(list_store(str(tmp_path / "store")), geometry) as reader:
        (era,) = eras_of(reader.store, QUICK, reader.index_readers())

    assert "an index entry for a message's tags" in {mark.reason for mark in era.marks}
    assert len(read) < 500


def test_slots_of_half_a_second_are_known_by_their_units(tmp_path: Path) -> None:
    """No file says timerPrecisionMs; with the default, what was delivered would wait."""
    due = 1_795_272_035_500
    slot, unit = Slot(due // 500, 0, 0, 1), TimerUnit(UNIT.size, -1, 1, due - 4000, 4000, 0, 100, 7)
    wheel = bytearray(64 * SLOT.size)
    place = slot.time % 64 * SLOT.size
    wheel[place : place + SLOT.size] = SLOT.pack(*slot)
    for folder in ("timerlog", "config", "commitlog"):
        (tmp_path / folder).mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(64))
    (tmp_path / "timerwheel").write_bytes(wheel)
    (tmp_path / "timerlog" / f"{0:020d}").write_bytes(UNIT.pack(*unit) + bytes(100))
    waiting = []
    for read_until in (due, due + 500):
        (tmp_path / "config/timercheck").write_bytes(PROGRESS.pack(read_until, 0, 0, 0, 0, 0, 0))
        state = timer_state(list_store(str(tmp_path)))
        assert state is not None
        waiting.append((state.precision_ms, state.waiting))

    assert waiting == [(500, 1), (500, 0)]
