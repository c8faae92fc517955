"""The compiled queue builder equals the scalar modules, for any records and any division."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from threading import local
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue import collect
from rmq_formats.consumequeue.build import QueueBuilder, append_ext_units
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits, StoreTimes, UnitCollector, find_store_times
from rmq_formats.consumequeue.dispatch import ExpectedUnit, QueueKind, QueueName, UnitRules, expected_units
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE, UNIT
from rmq_formats.properties import parse_properties
from rmq_formats.release import Release
from tests.rmq_formats.builders import make_record, place_records
from tests.rmq_formats.reference import BatchConsumeQueue, ConsumeQueue, ConsumeQueueExt, group_of, pack_units
from tests.rmq_formats.strategies import I32, I64, records

RELEASES = [Release.from_version(version) for version in ("4.0.0", "4.4.0", "4.9.0", "4.9.3", "5.0.0", "5.3.3")]
_, *_NUMBERS, _ = ExpectedUnit._fields


def unpack(packed: PackedUnits) -> dict[QueueName, list[ExpectedUnit]]:
    return {
        name: [
            ExpectedUnit._make([name, *(int(unit[field]) for field in _NUMBERS), bool(unit["is_multi_dispatched"])])
            for unit in packed.units[place]
        ]
        for name, place in packed.queues()
        if place.stop > place.start
    }


def units_by_queue(log: Sequence[MessageRecord], rules: UnitRules) -> dict[QueueName, list[ExpectedUnit]]:
    queues: dict[QueueName, list[ExpectedUnit]] = {}
    for record in log:
        for unit in expected_units(record, rules):
            queues.setdefault(unit.queue, []).append(unit)
    return queues


TOPICS = st.sampled_from(("T", "U", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "B", "Tü", "rmq_sys_x"))
VALUES = st.sampled_from(
    ("", "TagA", "TagB", "ü", "\ud800", "-1", "+3", "99", "2147483648", "3", "a,b", "1,2", "%LMQ%x,b", "x")
)
NAMES = st.sampled_from(
    ("TAGS", "DELAY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_BASE", "INNER_NUM", "KEYS")
)
TEXTS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda items: "".join(f"{name}\x01{value}\x02" for name, value in items).encode("utf-8", "surrogatepass")
)
LISTS = st.lists(
    st.sampled_from(("a", "b", "%LMQ%x", "%LMQ%y", "B", "", " ", "a/b", "Tü")), min_size=1, max_size=4
).map(",".join)
NUMBERS = st.lists(st.sampled_from(("0", "7", "12345678901234567890", "-1", "x", "")), min_size=1, max_size=4).map(
    ",".join
)
DISPATCHED = st.builds(
    lambda names, offsets: {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets, "TAGS": "t"},
    LISTS,
    NUMBERS | LISTS.map(lambda names: ",".join("5" for _ in names.split(","))),
)
LIKELY = st.builds(
    make_record,
    topic=TOPICS,
    properties=TEXTS,
    queue_id=st.integers(0, 2),
    queue_offset=st.integers(0, 5) | I64,
    sys_flag=st.sampled_from((0, 0, 0, 4, 8, 12, 0x80, 0x30)),
    store_timestamp=st.integers(0, 1 << 60),
)
DISPATCHED_RECORDS = st.builds(make_record, topic=TOPICS, properties=DISPATCHED, queue_id=st.integers(0, 1))
LOGS = st.one_of([st.lists(one, min_size=1, max_size=12) for one in (LIKELY | records(), DISPATCHED_RECORDS)]).map(
    lambda log: place_records([*log, *log], 1000)
)
RULES = st.builds(
    lambda old, new, since, delays, **switches: UnitRules(
        ((0, old), (since, new)), delays, frozenset({"B"}), **switches
    ),
    st.sampled_from(RELEASES),
    st.sampled_from(RELEASES),
    st.integers(1, 4000),
    st.sampled_from(("1s 5s 10s", "2h")),
    multi_dispatch=st.sampled_from((True, True, False)),
    lmq=st.booleans(),
    in_rocksdb=st.booleans(),
)
DELAYS = ("+", "-", "+3", "-3", "3x", "2147483647", "2147483648", "-2147483648", "-2147483649", "٣")
DELAYED = [make_record(topic="SCHEDULE_TOPIC_XXXX", properties={"DELAY": delay, "TAGS": "TagA"}) for delay in DELAYS]


@given(
    log=LOGS,
    rules=RULES,
    cuts=st.lists(st.integers(0, 24), max_size=3),
    bounds=st.just((0, 24)) | st.tuples(st.integers(0, 24), st.integers(0, 24)),
    with_tags=st.booleans(),
    is_new_thread=st.booleans(),
)
@example(
    log=place_records([*DELAYED, *DELAYED]), rules=UnitRules(), cuts=[], bounds=(0, 24), with_tags=True,
    is_new_thread=True,
)  # fmt: skip
@settings(max_examples=250)
def test_units_and_tags_between_two_offsets_equal_those_of_the_scalar_module(  # noqa: PLR0913, PLR0917 - a log and its use
    log: list[MessageRecord],
    rules: UnitRules,
    cuts: list[int],
    bounds: tuple[int, int],
    with_tags: bool,
    is_new_thread: bool,
) -> None:
    """For any grouping. The scalar code reads the first record of a queue in a thread, the compiled code later ones."""
    offsets = [*(record.physical_offset for record in log), log[-1].end_offset]
    first, last = (offsets[min(number, len(log))] for number in sorted(bounds))
    with patch.object(collect, "_THREAD", local()) if is_new_thread else nullcontext():
        collector = UnitCollector(rules, with_tags=with_tags)
    for start, stop in pairwise(sorted({0, *(cut for cut in cuts if cut < len(log)), len(log)})):
        collector.add(group_of(log[start:stop]), first, last)
    packed = collector.finish()

    kept = [record for record in log if first <= record.physical_offset < last]

    assert unpack(packed) == units_by_queue(kept, rules)
    by_offset = {
        record.physical_offset: parse_properties(
            record.properties_raw, rules.release_at(record.physical_offset).property_parser
        ).get("TAGS")
        for record in kept
    }
    tags = [packed.tags[number] if number >= 0 else None for number in packed.tag_numbers]

    assert tags == [by_offset[int(offset)] for offset in packed.units["physical_offset"] if with_tags]


@pytest.mark.parametrize(("prefix", "queues", "repeats"), [("%LMQ%", 1500, 6), ("", 4500, 1), ("", 0, 5000)])
def test_records_may_have_more_units_than_the_table_has_rows(prefix: str, queues: int, repeats: int) -> None:
    names = ",".join(f"{prefix}{n}" for n in range(queues))
    offsets = ",".join("0" * queues)
    properties = {"TAGS": "t", "INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    log = place_records([make_record(properties=properties)] * repeats)
    packed = pack_units(group_of(log), UnitRules(), with_tags=True)

    assert packed.units.size == repeats * (queues + 1)
    assert unpack(packed) == units_by_queue(log, UnitRules())
    assert {packed.tags[n] for n in packed.tag_numbers} == {"t"}


def test_tables_of_queues_and_tags_grow() -> None:
    """Texts keep their numbers when the table grows."""
    log = place_records(
        make_record(topic=f"{n % 700:0127d}", properties={"TAGS": f"tag{n % 1100}" * 40}) for n in range(2400)
    )
    packed = pack_units(group_of(log), UnitRules(), with_tags=True)

    assert len(packed.names) == 700
    assert unpack(packed) == units_by_queue(log, UnitRules())
    found = {
        int(unit["physical_offset"]): packed.tags[n] for unit, n in zip(packed.units, packed.tag_numbers, strict=True)
    }

    assert found == {record.physical_offset: f"tag{n % 1100}" * 40 for n, record in enumerate(log)}


@pytest.mark.parametrize("most", [0, 2, 1 << 16])
def test_a_range_has_only_its_own_queues(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread remembers the queues of earlier ranges, up to a limit."""
    monkeypatch.setattr(collect, "_MOST_MET", most)
    records = [make_record(b"", topic=topic, queue_id=number) for topic in ("B", "A", "C") for number in (1, 0)]
    for some in ([0, 1, 2, 0], [5, 4], [3, 1, 5], [2]):
        log = list(place_records(records[number] for number in some))
        collector = UnitCollector(UnitRules())
        collector.add(group_of(log))
        packed = collector.finish()
        expected = units_by_queue(log, UnitRules())

        assert packed.names == sorted(expected)
        assert unpack(packed) == expected


def packed_of(units: Sequence[ExpectedUnit]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    fields = (
        "queue_offset",
        "physical_offset",
        "tags_code",
        "store_timestamp",
        "size",
        "batch_count",
        "is_multi_dispatched",
    )
    return np.array([tuple(int(getattr(unit, field)) for field in fields) for unit in units], PACKED_UNIT)


def fill(builder: QueueBuilder, slices: Sequence[Sequence[ExpectedUnit]]) -> list[tuple[int, bytes]]:
    data = bytearray()
    for units in slices:
        for offset, part in builder.append(packed_of(units)):
            start = builder.start or 0
            assert offset == start + len(data)
            data += part.tobytes()
    start = builder.start or 0
    data = data.ljust(builder.logical_end_of_files - start, b"\0")
    return [(start + at, bytes(data[at : at + builder.file_size])) for at in range(0, len(data), builder.file_size)]


@st.composite
def sequences(draw: st.DrawFn, kind: QueueKind) -> list[ExpectedUnit]:
    units: list[ExpectedUnit] = []
    queue_offset = draw(st.integers(0, 12))
    physical_offset = draw(st.integers(0, 100))
    for _ in range(draw(st.integers(0, 25))):
        size = draw(st.integers(1, 50))
        code = draw(I32)
        dispatched = draw(st.booleans())
        name = QueueName(kind, "T", 0)
        units.append(
            ExpectedUnit(name, queue_offset, physical_offset, size, code, 5, 3, is_multi_dispatched=dispatched)
        )
        queue_offset = draw(st.just(min(queue_offset + 1, 1 << 62)) | st.integers(0, 30) | I64)
        physical_offset += draw(st.integers(0, 60))
    return units


@given(sequences(QueueKind.PLAIN), st.sampled_from(RELEASES), st.sampled_from(RELEASES), st.data())
def test_appended_files_equal_those_of_the_scalar_queue(
    units: list[ExpectedUnit], old: Release, new: Release, data: st.DataObject
) -> None:
    """Blanks, gaps, repeated and dropped units, and a change of release, in slices of any size."""
    rules = UnitRules(((0, old), (data.draw(st.integers(1, 600)), new)))
    scalar = ConsumeQueue(100)
    for unit in units:
        scalar.append(unit, rules.release_at(unit.physical_offset))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units)), max_size=3)))
    slices = [units[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(units)], strict=True)]

    assert fill(QueueBuilder(QueueKind.PLAIN, 100, rules.releases), slices) == list(scalar.files())


@given(sequences(QueueKind.BATCH), st.data())
def test_appended_batch_files_equal_those_of_the_scalar_queue(units: list[ExpectedUnit], data: st.DataObject) -> None:
    scalar = BatchConsumeQueue(92)
    for unit in units:
        scalar.append(unit, RELEASES[-1])
    cut = data.draw(st.integers(0, len(units)))
    builder = QueueBuilder(QueueKind.BATCH, 92, UnitRules().releases)

    assert fill(builder, [units[:cut], units[cut:]]) == list(scalar.files())
    assert builder.skipped_count == len(units) - len({unit.physical_offset for unit in units})


@given(sequences(QueueKind.PLAIN), st.data())
def test_extension_units_and_addresses_equal_those_of_the_scalar_extension(
    units: list[ExpectedUnit], data: st.DataObject
) -> None:
    scalar = ConsumeQueueExt(110)
    codes = [unit.tags_code if unit.is_multi_dispatched else scalar.append(unit.tags_code, 5) for unit in units]
    cut = data.draw(st.integers(0, len(units)))
    number = 0
    files = bytearray(110 * 25)
    counts: list[int] = []
    for part in (units[:cut], units[cut:]):
        addressed, number, spans = append_ext_units(packed_of(part), number, 110)
        counts += addressed["tags_code"].tolist()
        for offset, span in spans:
            files[offset : offset + len(span)] = span.tobytes()

    assert counts == codes
    for base, expected in scalar.files():
        assert bytes(files[base : base + 110]) == expected


IN_PLACE, ELSEWHERE, SKIPPED = (0, 0), (1, 0), (0, 1)  # units at wrong positions, which are skipped
THREE = [(0, 0, 10), (1, 10, 10), (2, 20, 10)]
FIVE = [*THREE, (3, 30, 10), (4, 40, 10)]


@pytest.mark.parametrize(
    ("release", "there", "unit", "expected", "files"),
    [
        ("5.3.3", [], (7, 0, 10), IN_PLACE, 1),  # a new queue begins with blanks before the unit
        ("5.3.3", [(0, 0, 10)], (3, 10, 10), ELSEWHERE, 1),  # an offset that is too high leaves no hole
        ("4.1.0", THREE, (1, 30, 10), ELSEWHERE, 1),  # an offset that is too low is dropped since 4.2.0
        ("4.2.0", THREE, (1, 30, 10), SKIPPED, 1),
        ("5.3.3", FIVE, (5, 50, 10), IN_PLACE, 2),
        ("5.3.3", FIVE, (1, 50, 10), SKIPPED, 2),  # but the file that was created for it remains
        # A recreated topic starts at 0; its first unit is never compared.
        ("5.3.3", THREE, (0, 30, 10), ELSEWHERE, 1),
        # Up to 4.4.0, the offset of the last unit decides whether a unit is skipped, since 4.5.1 its end.
        ("4.4.0", [(0, 100, 10)], (1, 100, 20), SKIPPED, 1),
        ("4.5.1", [(0, 100, 10)], (1, 100, 20), IN_PLACE, 1),
        ("4.5.1", [(0, 100, 10)], (1, 100, 10), SKIPPED, 1),
        ("4.4.0", [(0, 100, 10)], (1, 101, 1), IN_PLACE, 1),
        ("4.5.1", [(0, 100, 10)], (1, 101, 1), SKIPPED, 1),
    ],
)
def test_a_unit_is_appended_dropped_or_skipped_as_by_its_release(
    release: str, there: list[tuple[int, int, int]], unit: tuple[int, int, int], expected: tuple[int, int], files: int
) -> None:
    builder = QueueBuilder(QueueKind.PLAIN, 100, ((0, Release.from_version(release)),))
    name = QueueName(QueueKind.PLAIN, "T", 0)
    counts = fill(builder, [[ExpectedUnit(name, n, at, size, 7, 0)] for n, at, size in (*there, unit)])
    blanks = [UNIT.pack(0, PRE_BLANK_SIZE, 0)] * (0 if there else unit[0] % 5)
    units = [UNIT.pack(at, size, 7) for _, at, size in (*there, *([] if expected == SKIPPED else [unit]))]

    assert (builder.misplaced_count, builder.skipped_count) == expected
    assert [base for base, _ in counts] == [100 * number + (0 if there else 100) for number in range(files)]
    assert b"".join(data for _, data in counts) == b"".join([*blanks, *units]).ljust(100 * files, b"\0")


@pytest.mark.parametrize(
    ("lost", "blanks"), [(((10, 1010),), 6), (((10, 300), (700, 1010)), 6), (((10, 300),), 0), (((1020, 9000),), 0)]
)
def test_at_most_as_many_blanks_are_added_as_the_log_can_have_lost(
    lost: tuple[tuple[int, int], ...], blanks: int
) -> None:
    """One unit is before the loss, one after it at offset 7, and one follows; a file has five units."""
    name = QueueName(QueueKind.PLAIN, "T", 0)
    units = [ExpectedUnit(name, number, place, 10, 1, 1) for number, place in ((0, 0), (7, 1010), (8, 1020))]
    builder = QueueBuilder(QueueKind.PLAIN, 100, (*UnitRules().releases, (1015, RELEASES[-1])), lost)
    counts = b"".join(data for _, data in fill(builder, [units, []]))

    blank = UNIT.pack(0, PRE_BLANK_SIZE, 0)
    first, second, third = (UNIT.pack(unit.physical_offset, 10, 1) for unit in units)

    assert counts.rstrip(b"\0") == (first + blank * blanks + second + third).rstrip(b"\0")
    assert builder.blanks == blanks


@given(st.lists(st.lists(I64, max_size=4), max_size=4))
def test_the_setback_of_a_clock_is_the_same_for_any_parts_of_a_log(parts: list[list[int]]) -> None:
    times = [time for part in parts for time in part]
    setbacks = [before - after for number, after in enumerate(times) for before in times[:number]]

    found = StoreTimes()
    for part in parts:
        found = found.followed_by(find_store_times(np.array(part, np.int64)))

    assert found.setback_ms == max([0, *setbacks])
