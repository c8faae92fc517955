"""Index files of a tier, as a real broker wrote them, and broken."""

import json
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.hashing import index_key_hash
from rmq_formats.tier_index import ENTRY, HEADER, SLOT, read_tier_index
from tests.golden import StoreOf

_FOLDER = "tiered/212d6b50_DefaultCluster/b0/rmq_sys_INDEX/0/INDEX"
_SLOTS = 50  # tieredStoreIndexFileMaxHashSlotNum of the store


@pytest.fixture
def place(situation: StoreOf) -> Path:
    return situation("b550-tiered")


def files(place: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((place / _FOLDER).iterdir(), key=lambda path: path.name[-20:])]


def changed(data: bytes, position: int, raw: bytes) -> bytes:
    return data[:position] + raw + data[position + len(raw) :]


def test_every_file_of_the_broker_agrees_with_itself(place: Path) -> None:
    found = [read_tier_index(data) for data in files(place)]

    assert {_SLOTS} == {len(index.slots) for index in found}
    assert [[] for _ in found] == [list(index.differences()) for index in found]


def test_a_key_leads_to_the_message_that_the_broker_found(place: Path) -> None:
    """It found one in its own log, and the same one in the tier, where it has another offset."""
    own, copied = json.loads((place / "EXPECT.json").read_text())["beforeStop"]["keys"]["Orders#k3"]
    entries = np.concatenate([read_tier_index(data).entries for data in files(place)])
    found = entries[entries["key_hash"] == index_key_hash("Orders#k3")]

    assert own > copied
    assert [copied] == found["physical_offset"].tolist()


def test_seconds_are_cut_off_towards_zero(place: Path) -> None:
    index = read_tier_index(files(place)[0])
    begin = index.begin_timestamp
    times = np.array([begin - 1999, begin - 999, begin, begin + 999, begin + 1000], np.int64)

    assert [-1, 0, 0, 0, 1] == index.seconds_to(times).tolist()


@pytest.mark.parametrize(
    ("position", "raw", "field"),
    [
        (HEADER.offset("slots_used"), b"\0\0\0\7", "slots_used"),
        (HEADER.offset("entry_count"), b"\0\0\0\7", "entry_count"),
        (HEADER.size + SLOT.size, b"\0\0\0\7", "slot 1"),
        (HEADER.size + SLOT.size * 2 + 4, b"\0\0\0\7", "slot 2"),
        (HEADER.size + SLOT.size * 2 + 4, b"\xff\xff\xff\xe4", "slot 2"),
        (HEADER.size + SLOT.size * _SLOTS, b"\0\0\0\7", "entry 0 key_hash"),
        (HEADER.size + SLOT.size * _SLOTS, b"\xff", "entry 0 key_hash"),
    ],
)
def test_a_file_that_contradicts_itself_says_where(place: Path, position: int, raw: bytes, field: str) -> None:
    (difference,) = read_tier_index(changed(files(place)[0], position, raw)).differences()

    assert (field, 1) == (difference.field, difference.times)
    assert difference.found != difference.expected


def test_a_file_without_its_end_says_how_long_it_should_be(place: Path) -> None:
    data = files(place)[0]
    index = read_tier_index(data[:-30])
    (difference,) = index.differences()

    assert (str(len(data) - 30), str(len(data))) == (difference.found, difference.expected)
    assert index.entry_count - 2 == len(index.entries)
    assert index.position_of(len(index.entries)) == len(data) - 2 * ENTRY.size


@pytest.mark.parametrize(
    ("position", "raw", "why"),
    [
        *((0, raw, "magic") for raw in (b"\xbc\xc5\x02\x89", bytes(4))),
        *((HEADER.size, slot.to_bytes(4, "big"), "cannot begin") for slot in (0, HEADER.size, HEADER.size + 1)),
    ],
)
def test_a_file_that_is_not_full_or_whose_first_slot_leads_nowhere_is_refused(
    place: Path, position: int, raw: bytes, why: str
) -> None:
    with pytest.raises(CorruptData, match=why):
        read_tier_index(changed(files(place)[0], position, raw))


@pytest.mark.parametrize("size", [0, HEADER.size, HEADER.size + SLOT.size - 1, HEADER.size + SLOT.size * _SLOTS - 1])
def test_a_file_that_ends_before_its_slots_needs_more(place: Path, size: int) -> None:
    with pytest.raises(NeedMoreData):
        read_tier_index(files(place)[0][:size])
