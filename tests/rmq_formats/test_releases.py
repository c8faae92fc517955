"""Differences between releases, the detection of a store's release, and the recovery at a broker's start."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from rmq_formats.broker_start import FirstRecord, UnloadableFile, find_refused_file, find_start_segment
from rmq_formats.commitlog.layout import MAGIC_V2
from rmq_formats.detection import (
    Era,
    Mark,
    abort_mark,
    checkpoint_mark,
    detect_eras,
    file_marks,
    index_entry_marks,
    record_marks,
    slot_count_mark,
)
from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.indexfile.layout import IndexHeader
from rmq_formats.properties import PropertyParser, index_key_hash
from rmq_formats.release import NEWEST, OLDEST, SWITCHES, HashSlotCount, Release, Version, make_rules, release_at
from rmq_formats.store import Checkpoint, classify, decode_checkpoint
from tests.golden import GOLDEN, StoreOf, release_of
from tests.rmq_formats.builders import BROKER_V6, make_record
from tests.rmq_formats.test_record import with_property_crc
from tests.support.stores import list_names, read_store_records


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.3.3", (5, 3, 3, 0)),
        (" V5_3_3 ", (5, 3, 3, 0)),
        ("4.0.0-incubating", (4, 0, 0, 0)),
        ("5.0.0-ALPHA", (5, 0, 0, -2)),
        ("5.0.0-preview", (5, 0, 0, -3)),
    ],
)
def test_versions_are_parsed_in_every_spelling_of_rocketmq(text: str, expected: tuple[int, ...]) -> None:
    assert Version.parse(text) == expected


@pytest.mark.parametrize("text", ["", "5", "5.3", "five", "5.3.3.1", "5.3.99999999"])
def test_other_texts_are_rejected_as_versions(text: str) -> None:
    with pytest.raises(UnsupportedFormat, match=r"5\.3\.3"):
        Version.parse(text)


def test_versions_are_ordered_by_age() -> None:
    """5.0.0 had three preview releases."""
    ages = ["4.9.8", "5.0.0-PREVIEW", "5.0.0-ALPHA", "5.0.0-BETA", "5.0.0", "5.0.1", "5.1.0"]

    assert sorted(set(ages), key=Version.parse) == ages
    assert [str(Version.parse(age)) for age in ages] == ages


def test_every_switch_has_a_first_value_and_changes_in_order() -> None:
    for steps in SWITCHES.values():
        oldest, *later = steps
        versions = [Version.parse(since) for since in later]

        assert oldest == ""
        assert versions == sorted(versions)
        assert all(before != after for before, after in zip(steps.values(), list(steps.values())[1:], strict=False))


@pytest.mark.parametrize(
    ("switch", "value", "versions"),
    [
        # The first preview of 5.0.0 still had the old parser.
        ("property_parser", PropertyParser.SPLIT, ("4.0.0", "4.9.0", "5.0.0-PREVIEW")),
        ("property_parser", PropertyParser.SCAN, ("4.9.1", "4.9.8", "5.0.0-ALPHA", "5.5.1")),
        # An unpublished version, such as a private build, behaves like the newest release before it.
        ("indexes_tags", False, ("5.3.9",)),
        ("indexes_tags", True, ("6.0.0",)),
    ],
)
def test_a_version_has_the_switches_of_its_release(switch: str, value: object, versions: Sequence[str]) -> None:
    assert {version: getattr(Release.from_version(version), switch) for version in versions} == dict.fromkeys(
        versions, value
    )


def test_rules_must_be_in_ascending_order() -> None:
    rules = make_rules((100, OLDEST), (200, NEWEST))

    assert [release_at(rules, offset) for offset in (50, 199, 200, 201)] == [OLDEST, OLDEST, NEWEST, NEWEST]
    with pytest.raises(CorruptData, match="ascend"):
        make_rules((100, OLDEST), (100, NEWEST))
    with pytest.raises(CorruptData, match="ascend"):
        make_rules()


def span(era: Era) -> tuple[int, str, str]:
    return era.first_offset, str(era.oldest_release), str(era.newest_release)


def test_several_marks_narrow_the_range_of_releases() -> None:
    """No separator at the end: 4.9.1 to 4.9.8, or 5.0.0 to 5.1.4; a region: 5.0.0 and later."""
    marks = [
        Mark("no separator", "trailing_separator", (False,), 100),
        Mark("region", "adds_region_and_trace", (True,), 300),
    ]
    (era,) = detect_eras(marks)

    assert span(era) == (0, "5.0.0", "5.1.4")
    assert era.marks == tuple(marks)
    assert era.undecided_switches(["property_parser", "indexes_tags"]) == []
    assert era.undecided_switches(["two_byte_topic_length", "indexes_tags"]) == ["two_byte_topic_length"]


def test_a_contradicting_mark_starts_a_new_era() -> None:
    """The store was written by 4.7.0 or older, then by 5.4.0 or newer."""
    eras = detect_eras(
        [
            Mark("tags", "indexes_tags", (True,), 500),
            Mark("every put", "hash_slot_count", (HashSlotCount.EVERY_PUT,), 200),
            Mark("still tags", "indexes_tags", (True,), 900),
        ]
    )

    assert [span(era) for era in eras] == [(0, "4.0.0", "4.7.0"), (500, "5.4.0", "5.5.1")]
    assert [mark.reason for mark in eras[1].marks] == ["tags"]


def test_a_mark_that_no_release_leaves_is_ignored() -> None:
    assert len(detect_eras([Mark("more fields than any release has", "checkpoint_fields", (99,), 500)])) == 1


def test_a_file_is_evidence_only_of_the_last_release() -> None:
    """A checkpoint has no offset, and is ignored if it contradicts the newest records (a copy of two stores)."""
    old = Mark("every put", "hash_slot_count", (HashSlotCount.EVERY_PUT,), 200)
    new = Mark("tags", "indexes_tags", (True,), 500)
    file = Mark("checkpoint", "checkpoint_fields", (6,))

    assert span(detect_eras([file, new, old])[-1]) == (500, "5.5.0", "5.5.1")
    assert [span(era) for era in detect_eras([file, old])] == [(0, "4.0.0", "4.7.0")]


a_record = partial(make_record, physical_offset=4711)
MARKED = [
    (a_record(topic="T" * 200, magic_code=MAGIC_V2), "5.1.0", "5.5.1"),
    (a_record(store_host=BROKER_V6), "4.6.0", "5.5.1"),
    (a_record(sys_flag=0xC0), "5.0.0", "5.5.1"),
    (with_property_crc(a_record()), "5.2.0", "5.5.1"),
    (a_record(properties=b"CLUSTER\x01c\x02"), "4.6.0", "4.9.0"),
    (a_record(properties=b"CLUSTER\x01c"), "4.9.1", "4.9.8"),
    (a_record(properties=b"CLUSTER\x01c\x02MSG_REGION\x01r"), "5.0.0", "5.1.4"),
    (a_record(properties=b"CLUSTER\x01c\x02MSG_REGION\x01r\x02"), "5.2.0", "5.5.1"),
    (a_record(topic="RMQ_SYS_TRANS_HALF_TOPIC"), "4.3.0", "5.5.1"),
    (a_record(b"0", topic="RMQ_SYS_TRANS_OP_HALF_TOPIC"), "4.0.0", "5.0.0"),
    (a_record(b"0,1,", topic="RMQ_SYS_TRANS_OP_HALF_TOPIC"), "5.1.0", "5.5.1"),
    (a_record(sys_flag=8, properties=b"TRAN_MSG\x01true\x02REAL_TOPIC\x01T\x02"), "4.3.0", "5.3.3"),
    (a_record(topic="rmq_sys_wheel_timer"), "5.0.0", "5.5.1"),
    (a_record(topic="OFFSET_MOVED_EVENT"), "4.0.0", "4.9.8"),
    (a_record(), "4.0.0", "5.5.1"),
]
FILES = {
    "lock": "4.2.0", "abort.bak": "5.0.0", f"batchconsumequeue/T/0/{0:020}": "5.0.0",
    "compaction/position-checkpoint": "5.1.0", f"compaction/compactionLog/T/0/{0:020}": "5.1.0",
    f"compaction/compactionCq/T/0/{0:020}": "5.1.0", "rocksdbstore/CURRENT": "5.4.0", "config/topics.json": "4.0.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("marks", "offset", "lowest", "highest"),
    [
        *((list(record_marks(record)), 4711, *releases) for record, *releases in MARKED),
        *((list(file_marks([classify(path)])), None, lowest, "5.5.1") for path, lowest in FILES.items()),
    ],
)
def test_records_and_files_show_the_release_of_their_broker(
    marks: list[Mark], offset: int | None, lowest: str, highest: str
) -> None:
    """An era begins at the offset of a mark; a mark without one would count for the last era."""
    (era,) = detect_eras(marks)

    assert span(era) == (0, lowest, highest)
    assert {mark.offset for mark in marks} <= {offset}


@pytest.mark.parametrize("body", [b"0;", b""])  # altered after it was written; not in a lake without bodies
def test_an_altered_or_missing_body_of_an_op_message_is_no_evidence_of_a_release(body: bytes) -> None:
    """One flipped bit in the last body of a store of 5.3.3 was taken for a change to 5.0.0."""
    record = a_record(b"0,", topic="RMQ_SYS_TRANS_OP_HALF_TOPIC")

    assert list(record_marks(record))
    assert [] == list(record_marks(record._replace(body=body)))


def test_damaged_records_are_no_evidence_of_a_release() -> None:
    """A changed bit or zeros at the end read as properties that another release writes or leaves out."""
    properties = b"CLUSTER\x01DefaultCluster\x02KEYS\x01k1\x02"
    record = with_property_crc(make_record(properties=properties))

    assert list(record_marks(record))
    assert not list(record_marks(record._replace(queue_id=record.queue_id + 1)))
    assert list(record_marks(make_record(properties=properties)))
    assert not list(record_marks(make_record(properties=properties[:-4] + bytes(4))))


def test_a_record_with_an_altered_body_is_no_evidence_of_a_release() -> None:
    """Its properties, or the fields before its body, may be altered as well."""
    record = make_record(b"order", sys_flag=8, properties=b"CLUSTER\x01c\x02TRAN_MSG\x01true\x02")

    assert list(record_marks(record))
    assert [] == list(record_marks(record._replace(body=b"0rder")))


def test_a_commit_without_real_topic_is_from_the_oldest_or_newest_releases() -> None:
    (era,) = detect_eras(record_marks(make_record(sys_flag=8, properties=b"TRAN_MSG\x01true\x02")))

    assert {str(release) for release in era.candidates} >= {"4.0.0", "4.2.0", "5.4.0", "5.5.1"}
    assert not {str(release) for release in era.candidates} & {"4.3.0", "4.9.8", "5.3.3"}


@pytest.mark.parametrize(
    ("mark", "lowest", "reason"),
    [
        (checkpoint_mark(Checkpoint(1, 2, 3, 4)), "5.0.0", "checkpoint field master_flushed_offset"),
        (checkpoint_mark(Checkpoint(1, 2, 3, 4, 5)), "5.1.1", "checkpoint field confirm_offset"),
        (checkpoint_mark(Checkpoint(1, 2, 3, 0, 0, 6)), "5.5.0", "checkpoint field dispatched_offset"),
        (abort_mark(b"4711"), "5.0.0", "the file abort contains a process id"),
    ],
)
def test_the_content_of_checkpoint_and_abort_shows_the_oldest_possible_release(
    mark: Mark, lowest: str, reason: str
) -> None:
    assert str(detect_eras([mark])[0].oldest_release) == lowest
    assert mark.reason == reason


def test_checkpoints_of_the_oldest_release_and_an_empty_abort_are_no_evidence() -> None:
    assert [checkpoint_mark(Checkpoint(1, 2, 3)), checkpoint_mark(Checkpoint(0, 0, 0)), abort_mark(b"")] == [None] * 3


@pytest.mark.parametrize(
    ("slots", "count", "shared", "expected"),
    [
        (19, 20, True, HashSlotCount.EVERY_PUT),
        (15, 20, True, HashSlotCount.EMPTY_SLOT),
        (15, 20, False, HashSlotCount.EMPTY_SLOT),
        (19, 20, False, None),
        (0, 1, False, None),
    ],
)
def test_the_slot_count_of_an_index_file_shows_its_counting_rule(
    slots: int, count: int, shared: bool, expected: HashSlotCount | None
) -> None:
    """If no entries share a slot, both rules give the same count."""
    mark = slot_count_mark(IndexHeader(1, 2, 100, 200, slots, count), has_shared_slot=shared)

    assert (mark and mark.values[0]) == expected
    assert (mark and mark.offset) == (
        expected and {HashSlotCount.EVERY_PUT: 100, HashSlotCount.EMPTY_SLOT: 200}[expected]
    )


@pytest.mark.parametrize(("hashed", "expected"), [("Orders#T#TagA", True), ("Orders#TagA", False)])
def test_the_hashed_text_shows_whether_the_release_indexes_tags(hashed: str, expected: bool) -> None:
    """5.4.0 and later."""
    record = make_record(properties={"TAGS": "TagA"}, physical_offset=77)

    (mark,) = index_entry_marks(record, {index_key_hash(hashed)})

    assert mark.values == (expected,)
    assert mark.offset == 77
    assert [] == list(index_entry_marks(make_record(), {1}))


@pytest.mark.parametrize(
    ("hashed", "expected"), [({"Orders#a"}, PropertyParser.SPLIT), ({"Orders#a", "Orders#u\x01v"}, PropertyParser.SCAN)]
)
def test_the_hashed_keys_show_how_properties_were_parsed(hashed: set[str], expected: PropertyParser) -> None:
    """Up to 4.9.0, a value with a separator in it was dropped."""
    record = make_record(properties={"KEYS": "a", "UNIQ_KEY": "u\x01v"}, physical_offset=77)

    (mark,) = index_entry_marks(record, {*map(index_key_hash, hashed)})

    assert "property_parser" == mark.switch
    assert (expected,) == mark.values
    assert 77 == mark.offset


def marks_of(store: Path) -> Iterator[Mark]:
    for record, _ in read_store_records(store):
        yield from record_marks(record)
    yield from file_marks(map(classify, list_names(store)))
    mark = checkpoint_mark(decode_checkpoint((store / "checkpoint").read_bytes()))
    if mark:
        yield mark
    if (store / "abort").exists() and (mark := abort_mark((store / "abort").read_bytes())):
        yield mark


# The marks decide every rule for the bytes of queues; index files decide the others.
ORDINARY = {
    "b420-base": ("4.0.0", "4.2.0"),
    "b470-base": ("4.3.0", "4.9.8"),  # 4.7.0 writes no CLUSTER
    "b498-base": ("4.9.1", "4.9.8"),
    "b514-base": ("5.1.0", "5.1.4"),
    "b533-base": ("5.2.0", "5.3.3"),
    "b551-base": ("5.5.0", "5.5.1"),
}


@pytest.mark.sample(12, always=[*ORDINARY])
@pytest.mark.parametrize("name", [name for name in GOLDEN if name[0] == "b"])
def test_the_release_that_wrote_a_store_is_not_ruled_out_and_ordinary_stores_show_its_line(
    golden: StoreOf, name: str
) -> None:
    (era,) = detect_eras(marks_of(golden(name)))

    assert Release.from_version(release_of(name)) in era.candidates
    assert name not in ORDINARY or span(era)[1:] == ORDINARY[name]


# Ten segments of a hundred bytes, the first records stored ten seconds after each other.
LOG = {base: (base, 100_000 + base * 100) for base in range(0, 1000, 100)}
MIDDLE = Checkpoint(160_000, 155_000, 0)  # the times of the log and of the queues, which lag


@pytest.mark.parametrize(
    ("release", "has_abort", "checkpoint", "reach", "expected"),
    [
        ("4.9.8", False, MIDDLE, 950, 700),  # the last three, regardless of the queues
        ("5.3.1", False, MIDDLE, 950, 700),
        ("5.3.2", False, MIDDLE, 950, 900),  # the last one that has units
        ("5.3.2", False, MIDDLE, 300, 300),
        ("5.3.3", False, MIDDLE, -1, 0),  # no queues
        ("4.9.8", True, MIDDLE, 950, 500),  # the earlier of both times, minus three seconds
        ("5.3.3", True, MIDDLE._replace(logic_timestamp=152_999), 950, 400),
        ("5.3.3", True, Checkpoint(0, 0, 0), 950, 0),
        ("5.4.0", True, MIDDLE, 950, 500),
        ("5.5.0", True, MIDDLE._replace(logic_timestamp=150_001), 950, 500),  # the time of the queues, unchanged
        ("5.5.0", True, MIDDLE._replace(dispatched_offset=250), 950, 200),  # or the offset
    ],
)
def test_a_broker_start_recovers_from_the_right_segment(
    release: str, has_abort: bool, checkpoint: Checkpoint, reach: int, expected: int
) -> None:
    found = find_start_segment(
        list(LOG), lambda base, _: LOG[base], Release.from_version(release), checkpoint, reach, has_abort=has_abort
    )

    assert found == expected


def test_segments_with_a_damaged_first_record_are_skipped_after_a_kill() -> None:
    """From 5.4.0 on, also after a clean stop; at most ten segments are tried."""
    log = {**LOG, 500: None}
    long: dict[int, FirstRecord | None] = dict.fromkeys(range(0, 2000, 100))

    def find(log: Mapping[int, FirstRecord | None], release: str, reach: int, *, has_abort: bool) -> int | None:
        return find_start_segment(
            list(log), lambda base, _: log[base], Release.from_version(release), MIDDLE, reach, has_abort=has_abort
        )

    assert find(log, "5.3.3", -1, has_abort=True) == 400
    assert find(log, "5.4.0", 550, has_abort=False) == 400
    assert find(log, "5.3.3", 550, has_abort=False) == 500
    assert find(long, "5.4.0", 550, has_abort=False) == 1000
    assert find({}, "5.4.0", 550, has_abort=False) is None


@pytest.mark.parametrize(
    ("release", "longer", "empty_last", "empty_middle"),
    [
        ("4.4.0", False, False, False),  # omits records that do not fit
        ("4.9.1", True, True, True),
        ("4.9.2", False, False, False),
        ("4.9.8", True, True, True),
        ("5.1.2", True, True, True),
        ("5.1.3", True, False, True),
    ],
)
def test_some_releases_refuse_wrong_file_sizes(
    release: str, longer: bool, empty_last: bool, empty_middle: bool
) -> None:
    files = (
        UnloadableFile("longer", 112, 100, is_last=False),
        UnloadableFile("empty", 0, 100, is_last=True),
        UnloadableFile("empty", 0, 100, is_last=False),
    )
    refused = [find_refused_file([file], Release.from_version(release)) is not None for file in files]

    assert [longer, empty_last, empty_middle] == refused
