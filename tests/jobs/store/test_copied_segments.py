"""A segment that is a copy of another one: consumers receive messages twice."""

from pathlib import Path

from jobs.console.result import ExitCode
from jobs.store.copied_segments import find_messages_delivered_twice
from jobs.store.store import list_store
from tests.support.commands import Run
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stores import list_segments


def _write_store_with_copy(root: Path, longer: int | None) -> tuple[Path, list[int]]:
    """
    Write a store whose second segment is a copy of its first one.

    Return the offsets of the messages of the first segment that have the place and the size of one of the second one.
    All messages have the same size, but the one with the number *longer*.
    """
    sent = [Sent(keys=("k",), body=bytes(30 + 7 * (number == longer))) for number in range(70)]
    records = stored(sent)
    places = {(one.physical_offset - SEGMENT_SIZE, one.total_size) for one in records}
    first = [one for one in records if one.physical_offset < SEGMENT_SIZE]
    store = write_store(root, records)
    original, copy = list_segments(store)[:2]
    copy.write_bytes(original.read_bytes())
    return store, [one.physical_offset for one in first if (one.physical_offset, one.total_size) in places]


def test_a_copy_delivers_the_messages_whose_place_and_size_a_unit_states(tmp_path: Path) -> None:
    store, expected = _write_store_with_copy(tmp_path / "store", longer=10)
    listed = list_store(str(store))

    found = find_messages_delivered_twice(listed, listed.segments[1])

    assert 10 == len(expected)  # those before the longer message; the places of the later ones are shifted
    assert expected == found


def test_a_segment_of_its_own_delivers_nothing_twice(tmp_path: Path) -> None:
    listed = list_store(str(write_store(tmp_path / "store", stored([Sent(body=bytes(30))] * 70))))

    assert [[], []] == [find_messages_delivered_twice(listed, segment) for segment in listed.segments[:2]]


def test_verify_says_which_messages_consumers_receive_twice(tmp_path: Path, run: Run) -> None:
    store, expected = _write_store_with_copy(tmp_path / "store", longer=None)

    code, out, _ = run("verify", store, "--release", "5.5.1", "--hash-slots", "7", "--index-num", "9")

    assert ExitCode.CLEAN != code
    assert f"consumers receive {len(expected)} messages of commitlog/{0:020} a second time, at offsets 0, " in out
    assert f"{expected[-1]:,}" in out
