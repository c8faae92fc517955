"""How far tasks are while they work."""

from pathlib import Path

from jobs.store.range_reader import RangeReader
from jobs.store.ranges import plan_ranges
from jobs.store.store import list_store
from jobs.store.tally import Tally
from tests.support.broker import Broker, some_records


def test_bytes_and_records_count_while_a_range_is_read_and_not_when_it_has_ended(broker: Broker) -> None:
    placed = broker.append(some_records(300))
    ranges = plan_ranges(list_store(str(broker.root)))
    seen: list[tuple[int, int]] = []
    with Tally.of(len(ranges)) as tally:
        for number, range_ in enumerate(ranges):
            reader = RangeReader(range_)
            seen.extend(tally.sums() for _ in tally.noted(number, range_, reader.pieces()))
        size, records = tally.sums()

    assert seen == sorted(seen)
    assert len(set(seen)) > len(ranges)
    assert (size, records) == (sum(one.end - one.start for one in ranges), len(placed))


def test_a_task_that_does_not_see_the_counters_works_all_the_same(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(10))
    (range_,) = plan_ranges(list_store(str(broker.root)))
    tally = Tally(str(tmp_path / "none"))

    reader = RangeReader(range_)
    assert list(tally.noted(0, range_, reader.pieces()))
    assert reader.seen.records == 10
    assert tally.sums() == (0, 0)
