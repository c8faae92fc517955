"""Records that end in zeros, and the last record of a closed store: complete, unfinished or damaged."""

import json
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.diagnosis import kinds
from jobs.diagnosis.log_check import RangeCheck, _find_zeroed_properties
from jobs.store.release import Writers
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, property_crc_text
from rmq_formats.release import Release
from tests.rmq_formats.builders import make_record, place_records
from tests.rmq_formats.reference import group_of
from tests.support.commands import Run
from tests.support.lakes import raw_rows, rows_of
from tests.support.query_stores import Sent, stored, write_segment, write_store
from tests.support.stores import flip

_LIGHT = f"KEYS\x01k\x02{INNER_MULTI_DISPATCH}\x01%LMQ%a\x02{INNER_MULTI_QUEUE_OFFSET}\x010\x02".encode()
_UNUSED_FIELD = bytes(20)


def _find_damage(records: list[MessageRecord], release: str, group_sizes: int = 100) -> list[int]:
    """Return the numbers of the records that a check reports as zeroed, read in groups of a size."""
    placed = place_records(records)
    check = RangeCheck()
    for start in range(0, len(placed), group_sizes):
        check.add(group_of(placed[start : start + group_sizes]))
    _find_zeroed_properties([check], Writers(((0, Release.from_version(release)),), release))
    offsets = [record.physical_offset for record in placed]
    return [offsets.index(one.offset) for one in check.doubtful_records if one.kind == kinds.ZEROED_PROPERTIES]


@pytest.mark.parametrize("group_sizes", [1, 100])
def test_a_text_in_a_body_does_not_turn_unused_crc_fields_into_damage(group_sizes: int) -> None:
    records = [make_record(b"__CRC32#"), make_record(properties=_LIGHT + _UNUSED_FIELD), make_record(b"__CRC32#")]

    assert [] == _find_damage(records, "5.2.0", group_sizes)


@pytest.mark.parametrize("release", ["5.1.4", "5.3.1", "5.5.1"])
def test_only_two_releases_leave_the_crc_field_unused(release: str) -> None:
    light = make_record(properties=_LIGHT + _UNUSED_FIELD)

    assert [0] == _find_damage([light], release)
    assert [] == _find_damage([light], "5.3.0")


@pytest.mark.parametrize("group_sizes", [1, 100])
def test_a_crc_field_of_zeros_between_records_with_crcs_is_damage(group_sizes: int) -> None:
    """The broker computes these CRCs for all records or for none."""
    with_crc = make_record(properties=b"KEYS\x01k\x02" + property_crc_text(b"other bytes"))

    records = [with_crc, make_record(properties=_LIGHT + _UNUSED_FIELD), with_crc]

    assert [1] == _find_damage(records, "5.2.0", group_sizes)


@pytest.mark.parametrize(
    ("properties", "releases_without_damage"),
    [
        (b"KEYS\x01k\x02c\x01text\0", {"4.9.1", "5.1.4"}),
        (b"c\x01\0", {"4.9.1", "5.1.4"}),
        (b"KEYS\x01k\x02c\0", set()),  # no value
        (b"KEYS\x01k\x02\0\0", set()),
        (b"KEYS\x01k\x02c\x01tex" + bytes(12), set()),  # more zeros than a value ends in
        (b"KEYS\x01k\x02CLUSTER\x01Def\0\0", set()),  # a value that the broker writes
    ],
)
def test_a_value_that_ends_in_nul_is_legal_without_a_separator_at_the_end(
    properties: bytes, releases_without_damage: set[str]
) -> None:
    for release in ("4.9.0", "4.9.1", "5.1.4", "5.2.0"):
        expected = [] if release in releases_without_damage else [0]

        assert expected == _find_damage([make_record(properties=properties)], release)


def test_a_value_that_ends_in_nul_is_undecided_while_its_release_is(tmp_path: Path, run: Run) -> None:
    """It was called damage: the first record of a store does not show which of its later releases wrote it."""
    serialized = b"CLUSTER\x01c\x02MSG_REGION\x01r\x02KEYS\x01k\x02"
    records = [make_record(properties=serialized + b"c\x01text\0"), *[make_record(properties=serialized)] * 3]
    store = write_segment(tmp_path / "store", place_records(records))

    detected = run("verify", store, "--json")
    given = [run("verify", store, "--json", "--release", release) for release in ("5.1.3,5.2.0@300", "5.2.0")]

    found = [{one["kind"] for one in outcome.document["findings"]} for outcome in (detected, *given)]
    assert [False, False, True] == [kinds.ZEROED_PROPERTIES in one for one in found]
    assert [True, False, False] == ["end in zeros; undecided" in outcome.out for outcome in (detected, *given)]


def test_a_batch_whose_every_message_ends_in_nul_is_legal() -> None:
    """Its messages keep the text of a client that writes no separator at the end."""
    of_batch = make_record(properties=b"KEYS\x01k\x02c\x01text\0")
    other = make_record(properties=b"KEYS\x01k\x02")
    of_broker = make_record(properties=b"KEYS\x01k\x02CLUSTER\x01c\x02c\x01text\0")

    assert [] == _find_damage([other, of_batch, of_batch, of_batch, other], "5.4.0")
    assert [1] == _find_damage([other, of_batch, other], "5.4.0")
    assert [0, 2] == _find_damage([of_batch, other, of_batch], "5.4.0")
    assert [1, 2] == _find_damage([other, of_broker, of_broker], "5.4.0")


@pytest.mark.parametrize("with_queues", [True, False])
def test_an_altered_last_body_of_a_closed_store_is_damage(tmp_path: Path, run: Run, with_queues: bool) -> None:
    """It was taken for a record that a broker is still writing: one message less, exit code 0."""
    records = stored([Sent(keys=("k",), body=bytes([65 + number]) * 30) for number in range(5)])
    store = write_store(tmp_path / "store", records, with_queues=with_queues, with_index=with_queues)
    (store / "checkpoint").write_bytes(bytes(4096))
    (segment,) = (store / "commitlog").iterdir()
    flip(segment, segment.read_bytes().index(b"E" * 30) + 7)

    code, _, err = run("ingest", store, "--lake", tmp_path / "lake", "--release", "5.5.1")
    verify_code, out, _ = run("verify", store, "--json", "--release", "5.5.1", "--hash-slots", "7", "--index-num", "9")
    inspect_code, inspected, _ = run("inspect", store)

    assert ExitCode.DAMAGE == code, err
    assert 4 == len(raw_rows(tmp_path / "lake")), err
    assert [records[-1].physical_offset] == [row["physical_offset"] for row in rows_of(tmp_path / "lake", "quarantine")]
    assert (
        ExitCode.DAMAGE if with_queues else ExitCode.MISMATCH
    ) == verify_code  # the missing queues contradict the log
    assert [kinds.WRONG_BODY_CRC] == [one["kind"] for one in json.loads(out)["findings"] if one["part"] == "log"]
    assert ExitCode.DAMAGE == inspect_code
    assert "does not match its CRC" in inspected


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_last_record_with_an_unused_crc_field_is_complete(tmp_path: Path, run: Run, is_clean: bool) -> None:
    """It was left for the next run, and `verify` said that the end of the log was lost."""
    records = place_records([make_record(properties=_LIGHT + _UNUSED_FIELD) for _ in range(3)])
    store = write_segment(tmp_path / "store", records)
    if not is_clean:
        (store / "abort").write_bytes(b"4711")

    code, _, err = run("ingest", store, "--lake", tmp_path / "lake", "--release", "5.2.0")

    assert ExitCode.CLEAN == code, err
    assert [one.physical_offset for one in records] == [offset for offset, _ in raw_rows(tmp_path / "lake")]
