"""Message ids: the broker's, the client's, and why both readings of one text are possible."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.errors import CorruptData
from rmq_formats.message_id import (
    UNIQUE_ID,
    UniqueId,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    nearly_time,
)
from rmq_formats.properties import PropertyParser, parse_properties
from tests.golden import StoreOf, golden_stores
from tests.rmq_formats.stores import stored_records

SHANGHAI = ZoneInfo("Asia/Shanghai")


def ms(*when: int, zone: ZoneInfo | None = None) -> int:
    return int(datetime(*when, tzinfo=zone or UTC).timestamp()) * 1000  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "host", "offset"),
    [
        ("7F000001000051AF00000000000001E4", "127.0.0.1:20911", 0x1E4),
        ("20010DB8000000000000000000000001" + "00002A9F" + "0000000000000010", "[2001:db8::1]:10911", 16),
    ],
)
def test_an_offset_id_is_host_and_offset(text: str, host: str, offset: int) -> None:
    found = decode_offset_id(text)

    assert (str(found.host), found.physical_offset) == (host, offset)
    assert encode_offset_id(*found) == text
    assert decode_offset_id(text.lower()) == found


def test_a_unique_id_names_client_process_time_and_number() -> None:
    """The id of the first message of a real store, sent on 2026-11-20 at 07:42:36.667 UTC."""
    unique_id = decode_unique_id("0A010203075F4E0E2F2A63805C7B0000")

    assert unique_id.address == bytes([10, 1, 2, 3])
    assert unique_id.process_id == 0x075F
    assert unique_id.loader_hash == 0x4E0E2F2A
    assert unique_id.time_diff == 0x63805C7B
    assert unique_id.counter == 0


@given(st.binary(min_size=16, max_size=16) | st.binary(min_size=28, max_size=28))
def test_every_16_or_28_bytes_are_an_id_of_both_kinds(raw: bytes) -> None:
    text = raw.hex().upper()
    unique_id = decode_unique_id(text)

    assert UNIQUE_ID[len(unique_id.address)].pack(*unique_id) == raw
    assert encode_offset_id(*decode_offset_id(text)) == text
    assert min(unique_id.process_id, unique_id.time_diff, unique_id.counter) >= 0


@pytest.mark.parametrize(
    "text", ["", "order-4711", "7F" * 15, "7F" * 17, "7F" * 20, "7F" * 15 + " 7", "7G" * 16, "7F" * 56]
)
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(CorruptData, match="32 or 56"):
        decode_offset_id(text)
    with pytest.raises(CorruptData, match="32 or 56"):
        decode_unique_id(text)


def made(time_diff: int) -> UniqueId:
    return UniqueId(bytes(4), 1, 2, time_diff, 3)


def test_a_client_takes_an_id_for_one_of_this_month() -> None:
    """The month began on the 1st at 0 o'clock, in the zone of who asks."""
    now = ms(2026, 11, 20, 12)

    assert nearly_time(made(3_600_000), now, UTC) == ms(2026, 11, 1, 1)
    assert nearly_time(made(3_600_000), now, SHANGHAI) == ms(2026, 11, 1, 1, zone=SHANGHAI)


def test_a_client_takes_an_id_that_would_lie_ahead_for_one_of_last_month() -> None:
    """Now itself counts as ahead, and January's last month is December."""
    ten_days = 10 * 86_400_000

    assert nearly_time(made(ten_days), ms(2027, 1, 10), UTC) == ms(2026, 12, 11)
    assert nearly_time(made(ten_days), ms(2027, 1, 11), UTC) == ms(2026, 12, 11)
    assert nearly_time(made(ten_days), ms(2027, 1, 11) + 1, UTC) == ms(2027, 1, 11)


def test_the_end_of_a_long_month_is_beyond_a_signed_integer() -> None:
    """31 days are 2,678,400,000 ms: the field is unsigned."""
    text = UNIQUE_ID[4].pack(*made(2_678_399_000)).hex()

    assert nearly_time(decode_unique_id(text), ms(2027, 1, 2), UTC) == ms(2026, 12, 31, 23, 59, 59)


IDS = re.compile(r"msgId=(?P<unique>[0-9A-F,]+) offsetMsgId=(?P<offset>[0-9A-F,]+|null)")


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", golden_stores("base", "types", "retry", "timer", "dledger", "multipath", "rockscq"))
def test_ids_that_producers_were_told_belong_to_the_records_of_the_store(golden: StoreOf, name: str) -> None:
    """Every id in the producer's own results leads to a record; offset ids are made from store host and offset."""
    store = golden(name)
    told = [match for line in (store / "EXPECT/sent.txt").read_text().splitlines() if (match := IDS.search(line))]
    records = [stored.record for stored in stored_records(store)]
    known = {encode_offset_id(record.store_host, record.physical_offset) for record in records}
    texts = [record.properties_raw for record in records]

    assert told
    for match in told:
        assert set(match["offset"].split(",")) - {"null"} <= known
        assert all(any(unique.encode() in text for text in texts) for unique in match["unique"].split(","))


@pytest.mark.parametrize("name", golden_stores("base"))
def test_the_time_in_an_id_is_that_of_its_birth(golden: StoreOf, name: str) -> None:
    """Real clients made the ids; the store's zone is UTC."""
    delays = []
    for record, _ in stored_records(golden(name)):
        unique = parse_properties(record.properties_raw, PropertyParser.SCAN).get("UNIQ_KEY")
        if unique:
            time = nearly_time(decode_unique_id(unique), record.born_timestamp + 1, UTC)
            delays.append(record.born_timestamp - time)

    assert len(delays) > 30
    assert all(0 <= delay < 120_000 for delay in delays)
