"""Records: the meaning and valid values of their bytes, and their encoding."""

import struct
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.layout import BORN_HOST_V6, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, STORE_HOST_V6
from rmq_formats.commitlog.record import (
    Host,
    InnerMessage,
    MessageRecord,
    decode_inner_batch,
    decode_record,
    encode_record,
    has_right_property_crc,
)
from rmq_formats.errors import CorruptData, FormatError, NeedMoreData
from rmq_formats.kernels.integers import as_bytes
from rmq_formats.properties import property_crc_text
from tests.rmq_formats.builders import BROKER, BROKER_V6, PRODUCER, PRODUCER_V6, make_record
from tests.rmq_formats.strategies import mutations, records

# Written by hand, field by field, according to the broker's sources.
BY_HAND = b"".join(
    (
        struct.pack(">i", 91 + 5 + 2 + 4),  # total size
        bytes.fromhex("DAA320A7"),  # magic, V1
        struct.pack(">i", zlib.crc32(b"hello") & 0x7FFFFFFF),
        struct.pack(">i", 3),  # queue id
        struct.pack(">i", -7),  # flag
        struct.pack(">q", 42),  # queue offset
        struct.pack(">q", 1 << 40),  # physical offset
        struct.pack(">i", 0x308),  # sysFlag
        struct.pack(">q", 1_763_600_000_000),  # born timestamp
        bytes([10, 0, 0, 7]) + struct.pack(">i", 51234),  # born host
        struct.pack(">q", 1_763_600_000_005),  # store timestamp
        bytes([10, 0, 0, 1]) + struct.pack(">i", 10911),  # store host
        struct.pack(">i", 2),  # reconsume times
        struct.pack(">q", 1 << 39),  # prepared transaction offset
        struct.pack(">i", 5) + b"hello",
        struct.pack(">b", 2) + b"T1",
        struct.pack(">h", 4) + b"a\x01b\x02",
    )
)


def test_every_field_of_a_record_is_decoded() -> None:
    record = decode_record(BY_HAND)

    assert record == MessageRecord(
        total_size=102,
        magic_code=-626843481,
        body_crc=zlib.crc32(b"hello") & 0x7FFFFFFF,
        queue_id=3,
        flag=-7,
        queue_offset=42,
        physical_offset=1 << 40,
        sys_flag=0x308,
        born_timestamp=1_763_600_000_000,
        born_host=Host(bytes([10, 0, 0, 7]), 51234),
        store_timestamp=1_763_600_000_005,
        store_host=Host(bytes([10, 0, 0, 1]), 10911),
        reconsume_times=2,
        prepared_transaction_offset=1 << 39,
        body_length=5,
        body=b"hello",
        topic_length=2,
        topic_raw=b"T1",
        properties_length=4,
        properties_raw=b"a\x01b\x02",
    )
    assert record.topic == "T1"
    assert record.end_offset == (1 << 40) + 102
    assert encode_record(record) == BY_HAND


@given(records(), st.binary(max_size=20), st.binary(max_size=20))
def test_encoded_records_are_decoded_at_any_position(record: MessageRecord, before: bytes, behind: bytes) -> None:
    assert decode_record(before + encode_record(record) + behind, len(before)) == record


def test_each_host_has_its_own_address_length() -> None:
    """Each host has its own bit in sysFlag; bits that the producer set there are ignored."""
    both = make_record(born_host=PRODUCER_V6, store_host=BROKER_V6)
    born = make_record(born_host=PRODUCER_V6, store_host=BROKER)
    store = make_record(born_host=PRODUCER, store_host=BROKER_V6)
    neither = make_record(sys_flag=BORN_HOST_V6 | STORE_HOST_V6 | 1)

    assert [record.sys_flag for record in (both, born, store, neither)] == [0x30, 0x10, 0x20, 1]
    assert [record.total_size - neither.total_size for record in (both, born, store)] == [24, 12, 12]
    assert all(decode_record(encode_record(record)) == record for record in (both, born, store, neither))


@pytest.mark.parametrize(("topic", "magic_code"), [("t" * 128, MAGIC_V1), ("t" * 40000, MAGIC_V2)], ids=["V1", "V2"])
def test_a_topic_too_long_for_its_version_cannot_be_encoded(topic: str, magic_code: int) -> None:
    """The broker would store a negative length, and fail to read its own record."""
    with pytest.raises(CorruptData, match="do not fit"):
        encode_record(make_record(topic=topic, magic_code=magic_code))


def test_negative_lengths_of_body_and_properties_mean_empty() -> None:
    record = make_record(body=b"", properties=b"")._replace(body_length=-1, properties_length=-5)

    decoded = decode_record(encode_record(record))

    assert decoded.body == b""
    assert decoded.properties_raw == b""
    assert decoded == record


# The error in BY_HAND (102 bytes) if the number at a position is changed.
WRONG = {
    "invalid magic 00000000": (4, ">i", 0),
    "invalid magic CBD43194": (4, ">i", MAGIC_BLANK),
    "total_size 90 is below the minimum of 91": (0, ">i", 90),
    "total_size -1 is below the minimum of 91": (0, ">i", -1),
    "total_size is 101, but the fields add up to 102 bytes": (0, ">i", 101),
    "total_size is 103, but the fields add up to 102 bytes": (0, ">i", 103),
    "total_size is 102, but the fields add up to 101 bytes": (96, ">h", 3),
    "topic_length -1": (93, ">b", -1),
    "a field ends 94 bytes after the end of the record": (93, ">b", 100),
    "a field ends 10 bytes after the end of the record": (36, ">i", BORN_HOST_V6 | STORE_HOST_V6),
    "a field ends 2147483634 bytes after the end of the record": (84, ">i", (1 << 31) - 1),
    "physical_offset 1099511627777 in a record": (28, ">q", (1 << 40) + 1),
}


@pytest.mark.parametrize("reason", WRONG)
def test_inconsistent_records_are_corrupt(reason: str) -> None:
    position, code, value = WRONG[reason]
    raw = bytearray(BY_HAND + bytes(5000))
    struct.pack_into(code, raw, position, value)

    with pytest.raises(CorruptData) as caught:
        decode_record(raw, 0, 1 << 40)

    assert caught.value.reason == reason
    assert caught.value.offset == 1 << 40


def test_a_record_cut_short_needs_more_data() -> None:
    for size in range(len(BY_HAND)):
        with pytest.raises(NeedMoreData, match=f"at offset {1 << 40}"):
            raise AssertionError(f"cut to {size} bytes: {decode_record(BY_HAND[:size], 0, 1 << 40)}")
    with pytest.raises(NeedMoreData):
        decode_record(BY_HAND, -102)  # a negative position


@pytest.mark.parametrize("raw", [b"no record at all, but as long as one's head is", BY_HAND[:60], BY_HAND[:20]])
def test_an_error_has_the_position_if_no_offset_is_given(raw: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        decode_record(b"ten bytes." + raw, 10)

    assert caught.value.offset == 10


@given(st.data())
def test_damaged_bytes_decode_to_a_record_or_raise_a_format_error(data: st.DataObject) -> None:
    damaged = data.draw(mutations(BY_HAND))
    try:
        record = decode_record(damaged)
    except FormatError:
        return

    assert encode_record(record) == damaged[: record.total_size]


def with_property_crc(record: MessageRecord) -> MessageRecord:
    """Append the CRC of the whole record, which 5.2.0 and later may write."""
    longer = record._replace(
        total_size=record.total_size + 20,
        properties_length=record.properties_length + 20,
        properties_raw=record.properties_raw + bytes(20),
    )
    crc = property_crc_text(encode_record(longer)[:-20])
    return longer._replace(properties_raw=record.properties_raw + crc)


def test_the_property_crc_covers_everything_before_it() -> None:
    """A record without a property CRC, which is off by default, is valid."""
    record = with_property_crc(make_record())

    assert has_right_property_crc(record) is True
    assert has_right_property_crc(record._replace(queue_id=1)) is False
    assert has_right_property_crc(make_record()) is None
    assert has_right_property_crc(make_record(properties=b"__CRC32#\x01")) is None


def _inner(flag: int, body: bytes, properties: bytes) -> bytes:
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


INNER = _inner(1, b"first", b"a\x01b") + _inner(2, b"", b"")


def test_every_message_of_an_inner_batch_is_decoded() -> None:
    assert list(decode_inner_batch(INNER)) == [InnerMessage(1, b"first", b"a\x01b"), InnerMessage(2, b"", b"")]


@given(mutations(INNER))
def test_damaged_inner_batches_are_decoded_or_rejected(damaged: bytes) -> None:
    try:
        messages = list(decode_inner_batch(damaged))
    except FormatError:
        return

    assert sum(len(message.body) for message in messages) <= len(damaged)


@pytest.mark.parametrize(
    ("numbers", "properties_length"),
    [
        ((21, 0, 0, 0, 0), 0),  # smaller than the minimum
        ((100, 0, 0, 0, 0), 0),  # larger than the body
        ((22, 0, 0, 0, -1), 0),
        ((22, 0, 0, 0, 1), 0),  # its body leaves no space for the length of the properties
        ((22, 0, 0, 0, 0), 1),  # the sum of the parts is wrong
        ((22, 0, 0, 0, 0), -1),
    ],
)
def test_inconsistent_inner_messages_are_corrupt(numbers: tuple[int, ...], properties_length: int) -> None:
    body = struct.pack(">iiiii", *numbers) + struct.pack(">h", properties_length)

    with pytest.raises(CorruptData, match="inner message of"):
        list(decode_inner_batch(body))


def test_every_bit_change_in_a_record_with_property_crc_is_detected() -> None:
    raw = encode_record(with_property_crc(make_record(b"body", properties=b"KEYS\x01k\x02")))
    kinds = Counter(
        _change(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]) for at in range(len(raw)) for bit in range(8)
    )

    assert kinds.keys() == {None, kernels.WRONG_BODY_CRC, kernels.WRONG_RECORD_CRC, kernels.TRAILING_ZEROS}
    assert kinds[kernels.WRONG_BODY_CRC] == 8 * (4 + len(b"body"))
    assert _change(raw) == 0


@pytest.mark.parametrize(
    ("sys_flag", "queue_offset", "kind"),
    [(4, 1, kernels.WRONG_RECORD_CRC), (12, 1, kernels.WRONG_RECORD_CRC), (12, 0, 0), (8, 1, 0)],
)
def test_a_record_without_a_queue_has_no_queue_offset(sys_flag: int, queue_offset: int, kind: int) -> None:
    assert _change(encode_record(make_record()._replace(sys_flag=sys_flag, queue_offset=queue_offset))) == kind


def _change(raw: bytes) -> int | None:
    """Return the result of the compiled walk for a record: 0 for no change, None if it is not a record."""
    buffer = as_bytes(raw)
    place = int.from_bytes(raw[28:36], "big")
    if kernels.check_record(buffer, 0, len(raw), place) != kernels.GOOD:
        return None
    numbers, kinds = np.zeros((2, 1), np.int64)
    kernels.find_records_with_wrong_crc(buffer, np.zeros(1, np.int64), numbers, kinds)
    return int(kinds[0])
