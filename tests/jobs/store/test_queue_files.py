"""The reader of queue files: the end of a queue, and the number of reads that find it."""

import os
from collections.abc import Container
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.storage.local import LocalReader
from jobs.store import queue_ends
from jobs.store.queue_files import StoredQueue, find_first_unwritten_unit, list_queues
from jobs.store.store import Store, list_store
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.release import NEWEST
from rmq_formats.store import file_name_of_offset

T1 = QueueName(QueueKind.PLAIN, "T1", 0)


def queue_of(store: Store) -> StoredQueue:
    return next(queue for queue in list_queues(store) if queue.name == T1)


def queue_with_holes(directory: Path, holes: Container[int], first: int = 0) -> StoredQueue:
    """Write a queue of 64 units from *first* on, each of 100 bytes of the log, with holes in place of some units."""
    path = directory / T1.path / file_name_of_offset(first * UNIT.size)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(bytes(UNIT.size) if at in holes else UNIT.pack(at * 100, 100, -1) for at in range(64)))
    (directory / "commitlog").mkdir()
    return queue_of(list_store(str(directory)))


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=40))
def test_the_first_unit_without_offset_or_size_ends_the_written_part(units: list[tuple[int, int]]) -> None:
    data = b"".join(UNIT.pack(offset, size, -1) for offset, size in units)
    written = [offset >= 0 and size > 0 for offset, size in units]

    assert find_first_unwritten_unit(QueueKind.PLAIN, data) == ([*written, False]).index(False)


def test_a_sparse_queue_file_of_a_terabyte_is_not_read(newer_store: Path) -> None:
    os.truncate(newer_store / T1.path / file_name_of_offset(400), 10**12)
    store = list_store(str(newer_store))

    with patch.object(LocalReader, "read", autospec=True, side_effect=LocalReader.read) as read:
        with StoreReader(store) as reader:
            offsets = StoreSource(reader, NEWEST).queue_offsets(T1.topic, 0)
        end = queue_of(store).find_written_end()

    assert offsets is not None
    assert 26 == offsets.maximum == end
    assert sum(length for _, _, length in (call.args for call in read.call_args_list)) < 20_000


def test_a_unit_of_a_deleted_file_is_none(newer_store: Path) -> None:
    store = list_store(str(newer_store))
    (newer_store / T1.path / file_name_of_offset(0)).unlink()

    assert queue_of(store).read_unit(3) is None
    assert queue_of(store).read_unit(12) is not None


@pytest.mark.parametrize("written", [0, 1, 25, 26, 27, 60])
def test_the_short_search_for_the_end_agrees_with_the_full_search(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watermarks in and after the queue, which are correct, or of a truncated or recreated queue."""
    queue = queue_with_holes(tmp_path, [written], 40)  # units after the hole belong to a former queue
    asked = [(queue, known, offset) for known in (None, *range(38, 106)) for offset in (0, 1, 2500, 6400)]

    near = [queue_ends.probe_queue_end(*arguments) for arguments in asked]
    monkeypatch.setattr(queue_ends, "_end_near", lambda *_: None)

    assert [queue_ends.probe_queue_end(*arguments) for arguments in asked] == near


def test_a_queue_with_a_new_unit_is_read_once(newer_store: Path) -> None:
    store = list_store(str(newer_store))
    queue = queue_of(store)
    end = queue.find_written_end()

    with patch.object(StoredQueue, "read", autospec=True, side_effect=StoredQueue.read) as read:
        seen = queue_ends.probe_queue_end(queue, end - 1, store.end_offset)

    assert (end - 1, end) == seen[:2]
    assert 1 == read.call_count


@pytest.mark.parametrize("written", [1, 7, 24, 26, 63])
def test_the_end_of_a_queue_with_few_units_is_found_in_one_read(written: int, tmp_path: Path) -> None:
    queue = queue_with_holes(tmp_path, range(written, 64))
    os.truncate(queue.files[0].location, 6_000_000)
    queue = queue_of(list_store(str(tmp_path)))

    with patch.object(StoredQueue, "read", autospec=True, side_effect=StoredQueue.read) as read:
        end = queue.find_written_end()

    assert (written, 1) == (end, read.call_count)


@pytest.mark.parametrize("size", [10, 19, 20, 39, 59, 60, 1279])
def test_a_unit_of_which_a_part_was_cut_off_is_no_unit(size: int, tmp_path: Path) -> None:
    queue = queue_with_holes(tmp_path, [])
    os.truncate(queue.files[0].location, size)

    assert size // UNIT.size == queue_of(list_store(str(tmp_path))).find_written_end()


@pytest.mark.parametrize("hole", [range(1, 2), range(7, 12), range(24, 31), range(25, 30), range(3, 20)])
@pytest.mark.parametrize("units_after", [0, 1000])
def test_lost_units_at_the_beginning_of_a_file_do_not_end_the_queue(
    hole: range, units_after: int, tmp_path: Path
) -> None:
    """A killed store's units after the hole would count as units that its broker had not dispatched yet."""
    queue = queue_with_holes(tmp_path, hole)
    with Path(queue.files[0].location).open("ab") as file:
        file.writelines(UNIT.pack(at * 100, 100, -1) for at in range(64, 64 + units_after))
    queue = queue_of(list_store(str(tmp_path)))

    assert 64 + units_after == queue.find_written_end()


@pytest.mark.parametrize("hole", [range(3), range(10, 40), range(30, 50), range(31, 32), range(60, 64), range(64)])
@pytest.mark.parametrize("first", [0, 17, 31, 33, 64])
def test_the_first_unit_of_a_part_of_the_log_is_found_over_a_hole(hole: range, first: int, tmp_path: Path) -> None:
    found = queue_with_holes(tmp_path, hole).first_unit_pointing_from(first * 100, 64)
    written = [at for at in range(64) if at not in hole]

    assert [at for at in written if at >= found] == [at for at in written if at >= first]


def test_a_run_after_a_cut_takes_new_units_before_a_hole(tmp_path: Path) -> None:
    """The zeros of a lost page point to offset 0, which is before all new messages."""
    assert queue_ends.probe_queue_end(queue_with_holes(tmp_path, range(11, 20)), 63, 1000)[0] == 10
