"""The join of queues with a log: what is left between matched runs, what it is, and how much comes to the driver."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.products.queues.differences import DifferenceKind
from jobs.products.queues.join import compare_group
from jobs.products.queues.leftover_units import displaced_runs, lost_between, of_displaced
from jobs.products.queues.unit_files import group_of, has_units, read_units, write_units
from jobs.products.queues.unmatched import CollectedLog, gaps_between
from jobs.storage.scratch import Scratch
from jobs.store.queue_files import QueueFile, StoredQueue
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import UNIT

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)
NAMES = [QueueName(QueueKind.PLAIN, "T", number) for number in range(20)]
SIZE = 100  # bytes of a record
A_RANGE = 10  # units of each queue


@given(RUNS, st.integers(0, 40), st.integers(0, 80))
def test_gaps_are_the_places_that_no_run_covers(runs: list[tuple[int, int]], start: int, end: int) -> None:
    end = max([start, end, *(at + length for at, length in runs)])
    covered = {place for at, length in runs for place in range(at, at + length)}
    matched = np.array(sorted(runs), np.int64).reshape(-1, 2)
    gaps = list(gaps_between(start, end, matched))

    assert [place for gap in gaps for place in range(*gap)] == sorted(set(range(start, end)) - covered)
    assert all(before[1] < after[0] for before, after in pairwise(gaps))


def packed_units(range_number: int) -> PackedUnits:
    """Return the units of a range in which every queue has ten messages with tags."""
    units = np.zeros(len(NAMES) * A_RANGE, PACKED_UNIT)
    units["queue_offset"] = np.tile(np.arange(A_RANGE), len(NAMES)) + range_number * A_RANGE
    units["physical_offset"] = (np.arange(units.size) + range_number * units.size) * SIZE
    units["size"] = SIZE
    starts = np.arange(len(NAMES) + 1) * A_RANGE
    return PackedUnits(NAMES, starts, units, np.arange(units.size, dtype=np.int32) % 4 - 1, ["a", "b", "\x01"])


def test_units_and_tags_are_read_group_by_group_as_they_were_written(tmp_path: Path) -> None:
    packed, groups = packed_units(3), 4
    for scratch in (Scratch(str(tmp_path)), None):
        for with_tags in (True, False):
            file = write_units(scratch, "units", packed, [*packed.queues()], groups, with_tags=with_tags)
            parts = {part.name: part for group in range(groups) for part in read_units(scratch, file, group)}

            assert sorted(parts) == NAMES
            assert all(has_units([file], group_of(name, groups)) for name in NAMES)
            for name, place in packed.queues():
                part = parts[name]
                assert (part.units == packed.units[place]).all()
                if not with_tags or part.tag_numbers is None:
                    assert (with_tags, part.tag_numbers) == (False, None)
                    continue
                found = [part.tags[number] if number >= 0 else None for number in part.tag_numbers]
                wanted = packed.tag_numbers[place].tolist()
                assert found == [packed.tags[number] if number >= 0 else None for number in wanted]


def test_the_result_of_a_group_does_not_grow_with_the_number_of_ranges(tmp_path: Path) -> None:
    """It was a run of 24 bytes for each pair of a range and a queue: 48 GB for 40,000 ranges and 50,000 queues."""
    queues, scratch = [], Scratch(str(tmp_path))
    ranges = [packed_units(number) for number in range(50)]
    for name, place in ranges[0].queues():
        own = np.concatenate([packed.units[place] for packed in ranges])
        path = tmp_path / f"queue-{name.queue_id}"
        path.write_bytes(b"".join(UNIT.pack(int(unit["physical_offset"]), SIZE, 0) for unit in own))
        queues.append((StoredQueue(name, (QueueFile(str(path), 0, path.stat().st_size),)), 0, 0))
    files = [
        write_units(scratch, f"units-{number}", packed, [*packed.queues()], 1) for number, packed in enumerate(ranges)
    ]

    def result(count: int) -> bytes:
        end = count * ranges[0].units.size * SIZE
        compared, unsettled = compare_group((0, queues), log=CollectedLog(files[:count], scratch, 1, 0, end))
        assert compared.matched == compared.expected == count * ranges[0].units.size
        assert not compared.differences
        assert not unsettled
        return pickle.dumps(compared)

    assert len(result(50)) < len(result(5)) + 8 * len(queues)


GAPS = ((2_000, 3_000),)


@pytest.mark.parametrize(
    ("end", "start", "count", "lost", "found"),
    [
        (1_000, 4_000, 3, GAPS, 2_000),
        (2_100, 2_500, 3, GAPS, 2_100),  # as far as the records around leave room
        (1_000, 4_000, 100, GAPS, None),  # more than there is room for
        (1_000, 2_000, 1, GAPS, None),
        (3_000, 4_000, 1, GAPS, None),
        (4_000, 1_000, 1, GAPS, None),
        (1_000, 4_000, 8, ((1_500, 2_000), (3_000, 3_500)), 1_500),
        (1_000, 4_000, 1, (), None),
    ],
)
def test_blanks_stand_for_records_that_the_log_has_lost_between_those_around_them(
    end: int, start: int, count: int, lost: tuple[tuple[int, int], ...], found: int | None
) -> None:
    assert lost_between(end, start, count, lost) == found


def test_displaced_units_are_cut_into_runs_and_say_by_how_much_they_are_shifted() -> None:
    assert list(displaced_runs([(7, 1), (3, 4), (4, 3)])) == [[(3, 4), (4, 3)], [(7, 1)]]
    assert list(displaced_runs([])) == []
    shifted, restarted = of_displaced(NAMES[0], [(3, 2), (4, 0)])
    assert (shifted.kind, shifted.shift) == (DifferenceKind.MISPLACED, 1)
    assert restarted.kind is DifferenceKind.RESTARTED
