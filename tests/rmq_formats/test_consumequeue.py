"""The units of a record, and how a broker appends them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import MessageRecord, new_record
from rmq_formats.consumequeue.dispatch import (
    BatchUnit,
    ExpectedUnit,
    QueueKind,
    QueueName,
    Unit,
    UnitRules,
    decode_batch_unit,
    decode_unit,
    delay_ms,
    expected_units,
    parse_delay_levels,
    walk_units,
)
from rmq_formats.consumequeue.layout import BATCH_UNIT, EXT_ADDRESS_BASE, UNIT, decode_ext_unit, rounded_file_size
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.release import Release
from tests.rmq_formats.builders import encode_properties

NEW = Release.from_version("5.3.3")


def a_record(topic: str = "T", *, release: str = "5.3.3", **fields: Any) -> MessageRecord:  # noqa: ANN401 - any field
    properties = fields.pop("properties", {})
    assert isinstance(properties, dict)
    text = encode_properties(properties, trailing_separator=Release.from_version(release).trailing_separator)
    return new_record(topic=topic.encode(), magic_code=MAGIC_V1, properties=text, **fields)


def units_of(record: MessageRecord, release: str = "5.3.3", **rules: Any) -> list[ExpectedUnit]:  # noqa: ANN401 - any rule
    return list(expected_units(record, UnitRules(((0, Release.from_version(release)),), **rules)))


def tags_code_of(properties: dict[str, str], topic: str = "T", **rules: Any) -> list[int]:  # noqa: ANN401 - any rule
    return [unit.tags_code for unit in units_of(a_record(topic, properties=properties, store_timestamp=1000), **rules)]


@pytest.mark.parametrize(("configured", "rounded"), [(200, 200), (201, 220), (1, 20), (6_000_000, 6_000_000)])
def test_a_configured_file_size_is_rounded_up_to_whole_units(configured: int, rounded: int) -> None:
    assert rounded_file_size(configured) == rounded


@pytest.mark.parametrize(
    ("properties", "topic", "codes"),
    [
        # Java's hash of the whole text, sign-extended to 64 bits; a list of tags is one text.
        ({}, "T", [0]),
        ({"TAGS": "TagA"}, "T", [2598919]),
        ({"TAGS": "a||b"}, "T", [((97 * 31 + 124) * 31 + 124) * 31 + 98]),
        ({"TAGS": "polygenelubricants"}, "T", [-(1 << 31)]),
        ({"TAGS": "TagA", "DELAY": "3"}, "T", [2598919]),
        # In the schedule topic, the time of delivery. Levels above the highest are reduced; those below 1 are ignored.
        *(
            ({"TAGS": "TagA", "DELAY": level}, "SCHEDULE_TOPIC_XXXX", [code])
            for level, code in [
                ("1", 2000),
                ("3", 11_000),
                ("18", 7_201_000),
                ("99", 7_201_000),
                ("0", 2598919),
                ("-2", 2598919),
            ]
        ),
        ({"DELAY": "soon"}, "SCHEDULE_TOPIC_XXXX", []),  # the broker's parser fails, so the record is refused
    ],
)
def test_a_tags_code_is_a_hash_or_a_delivery_time(properties: dict[str, str], topic: str, codes: list[int]) -> None:
    assert tags_code_of(properties, topic) == codes


def test_delay_levels_are_configured_and_start_at_1() -> None:
    """`messageDelayLevel`, which is not in the log, defines them; an undefined level waits one second."""
    assert tags_code_of({"DELAY": "2"}, "SCHEDULE_TOPIC_XXXX", delay_levels="2s 1d") == [86_401_000]
    assert parse_delay_levels("\N{ARABIC-INDIC DIGIT THREE}s") == (3000,)  # as parsed by `Long.parseLong`
    assert [delay_ms(level, (5000, 7000)) for level in (-1, 0, 1, 2, 3)] == [1000, 1000, 5000, 7000, 7000]
    assert delay_ms(1, ()) == 1000


@pytest.mark.parametrize("text", ["", "5", "s", "5x", "1s  5s"])
def test_invalid_delay_levels_are_rejected(text: str) -> None:
    with pytest.raises(CorruptData, match="messageDelayLevel"):
        parse_delay_levels(text)


@pytest.mark.parametrize(("transaction", "count"), [(0, 1), (4, 0), (8, 1), (12, 0)])
def test_prepared_and_rolled_back_records_have_no_units(transaction: int, count: int) -> None:
    assert len(units_of(a_record(sys_flag=transaction))) == count


def multi(names: str, offsets: str) -> dict[str, str]:
    return {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets, "TAGS": "TagA"}


MULTI = multi("%LMQ%a,b", "5,6")
BOTH = [("%LMQ%a", 0, 5), ("b", 3, 6)]


@pytest.mark.parametrize(
    ("topic", "release", "rules", "properties", "added"),
    [
        # Light queues have the id 0, others that of the record.
        ("T", "5.3.3", {}, MULTI, BOTH),
        # 4.9.3 introduced it; 5.1.1 excluded retry and system topics.
        ("T", "4.9.2", {}, MULTI, []),
        ("T", "4.9.3", {}, MULTI, BOTH),
        ("%RETRY%g", "5.1.0", {}, MULTI, BOTH),
        ("%RETRY%g", "5.1.1", {}, MULTI, []),
        ("rmq_sys_x", "5.1.1", {}, MULTI, []),
        ("T", "5.3.3", {"multi_dispatch": False}, MULTI, []),
        ("T", "5.3.3", {"lmq": False}, MULTI, [("%LMQ%a", 3, 5), ("b", 3, 6)]),
        # Lists of different lengths are ignored, and nothing is dispatched after an offset that is not a number.
        ("T", "5.3.3", {}, multi("a,b", "1"), []),
        ("T", "5.3.3", {}, multi("a,b,,", "1,2"), [("a", 3, 1), ("b", 3, 2)]),
        ("T", "5.3.3", {}, multi("a,b", "x,2"), []),
        ("T", "5.3.3", {}, multi("a,b", "1,x"), [("a", 3, 1)]),
        ("T", "5.3.3", {}, multi("a/b,c", "1,2"), [("c", 3, 2)]),
        ("T", "5.3.3", {}, multi(" ", "1"), []),
    ],
)
def test_multi_dispatch_adds_a_unit_to_each_listed_queue(
    topic: str, release: str, rules: dict[str, Any], properties: dict[str, str], added: list[tuple[str, int, int]]
) -> None:
    record = a_record(topic, release=release, queue_id=3, queue_offset=8, properties=properties)

    assert [
        (unit.queue, unit.queue_offset, unit.is_multi_dispatched) for unit in units_of(record, release, **rules)
    ] == [
        (QueueName(QueueKind.PLAIN, topic, 3), 8, False),
        *((QueueName(QueueKind.PLAIN, name, queue_id), offset, True) for name, queue_id, offset in added),
    ]


BATCH = {"INNER_BASE": "40", "INNER_NUM": "3"}


def test_an_inner_batch_gives_a_batch_unit() -> None:
    record = a_record(sys_flag=0xC0, physical_offset=900, store_timestamp=77, properties=BATCH)
    (unit,) = units_of(record)

    assert unit.queue == QueueName(QueueKind.BATCH, "T", 0)
    assert unit.unit == BatchUnit(900, record.total_size, 0, 77, 40, 3)
    assert decode_batch_unit(unit.encoded) == unit.unit


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        ({}, 0),
        ({"INNER_BASE": "1"}, 0),
        ({"INNER_BASE": "0", "INNER_NUM": "2"}, 1),
        ({"INNER_BASE": "0", "INNER_NUM": "0"}, 1),
        ({"INNER_BASE": "-1", "INNER_NUM": "1"}, 0),  # queue offsets start at 0
        ({"INNER_BASE": "0", "INNER_NUM": "-1"}, 0),
        ({"INNER_BASE": "0", "INNER_NUM": "32767"}, 1),
        ({"INNER_BASE": "0", "INNER_NUM": "32768"}, 0),  # not a `short` of Java
    ],
)
def test_records_of_batch_topics_have_units_if_base_and_count_are_valid(properties: dict[str, str], count: int) -> None:
    assert len(units_of(a_record(properties=properties), batch_topics=frozenset({"T"}))) == count


@pytest.mark.parametrize(("topic", "safe"), [("T", True), ("a b", True), ("", False), ("..", False), ("a/b", False)])
def test_topics_that_are_not_valid_directory_names_are_unsafe(topic: str, safe: bool) -> None:
    name = QueueName(QueueKind.PLAIN, topic, 0)

    assert name.path == f"consumequeue/{topic}/0"
    assert name.is_safe_path is safe


def test_a_queue_ends_at_the_first_unwritten_unit() -> None:
    unit = UNIT.pack(5, 6, 7)

    assert list(walk_units(unit + UNIT.pack(5, 0, 7) + unit)) == [Unit(5, 6, 7)]
    assert list(walk_units(unit * 2)) == [Unit(5, 6, 7)] * 2


@pytest.mark.parametrize(
    ("offset", "size", "base_offset", "count", "is_written"),
    [(0, 1, 0, 1, True), (-1, 1, 0, 1, False), (0, 0, 0, 1, False), (0, 1, -1, 1, False), (0, 1, 0, 0, False)],
)
def test_batch_units_are_recognized_as_written_as_by_brokers(
    offset: int, size: int, base_offset: int, count: int, is_written: bool
) -> None:
    data = BATCH_UNIT.pack(offset, size, 7, 8, base_offset, count, -1, 0)

    assert decode_batch_unit(data).is_written is is_written


@given(st.integers(0, (1 << 62)))
def test_extension_addresses_are_never_mistaken_for_hashes(offset: int) -> None:
    assert Unit(0, 1, EXT_ADDRESS_BASE + offset).has_ext_address
    assert not Unit(0, 1, -(1 << 31)).has_ext_address


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_as_units_or_rejected(data: bytes) -> None:
    assert len(list(walk_units(data))) <= len(data) // UNIT.size
    for decode in (decode_unit, decode_batch_unit, decode_ext_unit):
        try:
            decode(data)
        except FormatError:
            continue
