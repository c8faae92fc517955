"""Texts as read by Java: strings and their hashes, properties, message ids, configuration files."""

import importlib
import random
import sys
import zlib
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats import compiled
from rmq_formats.broker_conf import BrokerConf, decode_json_config, parse_broker_conf, parse_java_properties
from rmq_formats.crc import crc32
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.kernels.integers import as_bytes
from rmq_formats.message_id import (
    UNIQUE_ID,
    UniqueId,
    creation_time,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
)
from rmq_formats.properties import (
    CRC_SIZE,
    PropertyParser,
    decode_java_text,
    index_key_hash,
    java_hash,
    parse_java_integer,
    parse_properties,
    property_crc_text,
    property_items,
)
from tests.rmq_formats.builders import encode_properties
from tests.support.commands import measure_peak

R = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("주문-注文-😀".encode(), "주문-注文-😀"),
        # An encoded surrogate is one character to Java 17, three to Python's `errors="replace"`.
        (b"a\xed\xa0\x80b", f"a{R}b"),
        (b"\xed\xbf\xbf", R),
        (b"\xed\xa0", R),
        (b"\xed\xa0a", f"{R}a"),
        (b"\xed\x9f\xbf", "\ud7ff"),  # the last character before the surrogates is valid
        # Other bytes are replaced as in Python.
        (b"\xc0\x80", R * 2),
        (b"\xf0\x9f\x98", R),
        (b"\xf4\x90\x80\x80", R * 4),
        (b"\xe0\x80\x80", R * 3),
        (b"\x80\xff", R * 2),
    ],
)
def test_malformed_utf8_is_replaced_as_in_java(raw: bytes, expected: str) -> None:
    """The number of replacement characters changes a key's hash."""
    assert decode_java_text(raw) == expected


@pytest.mark.parametrize(
    ("text", "expected", "of_index"),
    [
        ("", 0, 0),
        ("a", 97, 97),
        ("TagA", 2598919, 2598919),
        ("hello", 99162322, 99162322),
        ("zzzzzz", -685785664, 685785664),
        ("polygenelubricants", -(1 << 31), 0),  # the absolute value overflows
        ("😀", 0xD83D * 31 + 0xDE00, 0xD83D * 31 + 0xDE00),  # two UTF-16 units
        ("중", 0xC911, 0xC911),
    ],
)
def test_hashes_equal_those_of_java_and_are_never_negative_in_an_index(text: str, expected: int, of_index: int) -> None:
    assert java_hash(text) == expected
    assert index_key_hash(text) == of_index


@given(number=st.integers(-(1 << 70), 1 << 70))
def test_integers_are_accepted_as_by_java(number: int) -> None:
    expected = number if -(1 << 63) <= number < 1 << 63 else None
    padded = f"{'-' if number < 0 else '+'}{'0' * 6000}{abs(number)}"

    assert [parse_java_integer(text) for text in (str(number), padded)] == [expected, expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("+7", 7), ("-7", -7), ("00", 0), ("\N{ARABIC-INDIC DIGIT SEVEN}", 7), ("32767", 32767)],
        *(
            (text, None)
            for text in ("", "+", "+-7", " 7", "7_0", "x", "32768", "\N{MATHEMATICAL BOLD DIGIT ONE}", None)
        ),
    ],
)
def test_short_integers_are_parsed_as_by_java(text: str | None, expected: int | None) -> None:
    assert parse_java_integer(text, bits=16) == expected


@pytest.mark.parametrize("lengths", [range(600), (4 << 10, (64 << 10) - 1, (64 << 10) + 17)], ids=["short", "long"])
def test_every_length_has_the_same_crc_as_in_zlib(lengths: range | tuple[int, ...]) -> None:
    data = random.Random(7).randbytes(max(lengths) + 3)
    buffer = as_bytes(data)
    for length in lengths:
        assert int(crc32(buffer, 3, 3 + length)) == zlib.crc32(data[3 : 3 + length]), length


def test_crc_tables_are_used_if_numba_has_no_internals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "_CACHE", tmp_path)  # cached code would use the multiplication
    with monkeypatch.context() as without:
        without.delattr("numba.core.cgutils")
        without.setitem(sys.modules, "numba.core.cgutils", None)
        without.delitem(sys.modules, "rmq_formats.crc")
        tables_alone = importlib.import_module("rmq_formats.crc")
    data = random.Random(7).randbytes(1000)

    assert not tables_alone.HAS_CARRYLESS_MULTIPLICATION
    assert int(tables_alone.crc32(as_bytes(data), 3, 999)) == zlib.crc32(data[3:999])


SPLIT, SCAN = PropertyParser.SPLIT, PropertyParser.SCAN


@pytest.mark.parametrize(
    ("raw", "split", "scan"),
    [
        (b"a\x01b\x01c\x02", {}, {"a": "b\x01c"}),  # a value with the separator
        (b"a\x01b\x01\x02", {"a": "b"}, {"a": "b\x01"}),  # Java's split drops empty parts at the end
        (b"a\x01\x02", {}, {}),  # an empty value
        (b"\x01b\x02", {"": "b"}, {}),  # an empty name
        (b"a\x02b\x01c\x02", {"b": "c"}, {"b": "c"}),  # no separator: the search may run into the next item
        (b"\x01\x02", {}, {}),
        (b"ab", {}, {}),
        (b"", {}, {}),
    ],
)
def test_the_parsers_differ_on_malformed_properties(raw: bytes, split: dict[str, str], scan: dict[str, str]) -> None:
    assert parse_properties(raw, SPLIT) == split
    assert parse_properties(raw, SCAN) == scan


@pytest.mark.parametrize("parser", PropertyParser)
def test_the_last_value_of_a_repeated_property_wins(parser: PropertyParser) -> None:
    """Batches of 5.0.0 to 5.3.3 have two UNIQ_KEYs; the name keeps its first position."""
    raw = b"UNIQ_KEY\x01own\x02WAIT\x01true\x02UNIQ_KEY\x01envelope\x02"

    assert list(parse_properties(raw, parser).items()) == [("UNIQ_KEY", "envelope"), ("WAIT", "true")]
    assert ("UNIQ_KEY", "own") in list(property_items(raw.decode(), parser))


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("parser", PropertyParser)
@given(properties=st.dictionaries(TEXTS, TEXTS), trailing=st.booleans())
def test_encoded_properties_are_decoded_unchanged(
    parser: PropertyParser, properties: dict[str, str], trailing: bool
) -> None:
    assert parse_properties(encode_properties(properties, trailing_separator=trailing), parser) == properties


def test_the_property_crc_is_written_in_reverse() -> None:
    """Ten decimal digits: CRC-32 of "123456789" is 0xCBF43926, without its top bit 1274296614."""
    text = property_crc_text(b"123456789")

    assert text == b"__CRC32#\x014166924721\x02"
    assert len(text) == CRC_SIZE == 20


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
def test_an_offset_id_consists_of_host_and_offset(text: str, host: str, offset: int) -> None:
    found = decode_offset_id(text)

    assert str(found.host) == host
    assert found.physical_offset == offset
    assert encode_offset_id(*found) == text
    assert decode_offset_id(text.lower()) == found


def test_a_unique_id_consists_of_client_process_time_and_number() -> None:
    """The id of the first message of a real store, sent on 2026-11-20 at 07:42:36.667 UTC."""
    unique_id = decode_unique_id("0A010203075F4E0E2F2A63805C7B0000")

    assert unique_id.address == bytes([10, 1, 2, 3])
    assert unique_id.process_id == 0x075F
    assert unique_id.loader_hash == 0x4E0E2F2A
    assert unique_id.time_diff == 0x63805C7B
    assert unique_id.counter == 0


@given(st.binary(min_size=16, max_size=16) | st.binary(min_size=28, max_size=28))
def test_any_16_or_28_bytes_are_a_valid_id_of_both_kinds(raw: bytes) -> None:
    text = raw.hex().upper()
    unique_id = decode_unique_id(text)

    assert UNIQUE_ID[len(unique_id.address)].pack(*unique_id) == raw
    assert encode_offset_id(*decode_offset_id(text)) == text
    assert min(unique_id.process_id, unique_id.time_diff, unique_id.counter) >= 0


@pytest.mark.parametrize(
    "text", ["", "order-4711", "7F" * 15, "7F" * 17, "7F" * 20, "7F" * 15 + " 7", "7G" * 16, "7F" * 56]
)
def test_other_texts_are_rejected_as_ids(text: str) -> None:
    with pytest.raises(CorruptData, match="32 or 56"):
        decode_offset_id(text)
    with pytest.raises(CorruptData, match="32 or 56"):
        decode_unique_id(text)


TEN_DAYS = 10 * 86_400_000


@pytest.mark.parametrize(
    ("time_diff", "now", "zone", "expected"),
    [
        (3_600_000, ms(2026, 11, 20, 12), UTC, ms(2026, 11, 1, 1)),
        (3_600_000, ms(2026, 11, 20, 12), SHANGHAI, ms(2026, 11, 1, 1, zone=SHANGHAI)),
        (TEN_DAYS, ms(2027, 1, 10), UTC, ms(2026, 12, 11)),  # otherwise in the future: so of last month, here December
        (TEN_DAYS, ms(2027, 1, 11), UTC, ms(2026, 12, 11)),  # the current time is treated as the future
        (TEN_DAYS, ms(2027, 1, 11) + 1, UTC, ms(2027, 1, 11)),
        (2_678_399_000, ms(2027, 1, 2), UTC, ms(2026, 12, 31, 23, 59, 59)),  # 31 days are beyond a signed integer
    ],
)
def test_an_id_is_dated_to_the_last_month_in_the_local_time_zone(
    time_diff: int, now: int, zone: tzinfo, expected: int
) -> None:
    text = UNIQUE_ID[4].pack(*UniqueId(bytes(4), 1, 2, time_diff, 3)).hex()

    assert creation_time(decode_unique_id(text), now, zone) == expected


def test_numeric_names_of_objects_are_read_as_texts() -> None:
    assert decode_json_config(b'{"T@g":{0:1,\n\t12 : 5},"U@g":{-1:3}}') == {"T@g": {"0": 1, "12": 5}, "U@g": {"-1": 3}}
    assert decode_json_config(rb'{"a":"{1:2,3:\"{4:5}"}') == {"a": '{1:2,3:"{4:5}'}


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b"\xff\xfe", b'"' + b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000]
)
def test_only_json_objects_are_accepted(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_json_config(raw)


@pytest.mark.parametrize(
    ("raw", "copies"),
    [
        (b'{"a":[' + b"[]," * (1 << 21) + b"[]]}", 1),
        (b'{"a":"' + b"x" * (4 << 20) + b'"}', 8),
        (
            b'{"a":"' + b"x" * (4 << 20) + "\N{GRINNING FACE}".encode() + rb'\ud800"}',
            10,
        ),  # a file of 64 MiB took 1.1 GB
    ],
    ids=["many values", "a long text", "a half and a whole character"],
)
def test_a_file_of_many_values_is_rejected_and_a_long_text_takes_few_copies(raw: bytes, copies: int) -> None:
    """Each `[]` takes three bytes of the file, and 64 bytes of memory."""

    def decode() -> None:
        with pytest.raises(CorruptData, match="more than 3,000,000 values") if copies == 1 else nullcontext():
            decode_json_config(raw)

    assert measure_peak(decode)[1] < copies * len(raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb"\ud83d\ude00", "\N{GRINNING FACE}"),
        (rb"\ud83d", "?"),
        (rb"\ude00\ud83d", "??"),
        (rb"\ud83d\ud83d\ude00", "?\N{GRINNING FACE}"),
        (rb"\\ud83d\ude00", r"\ud83d?"),
        (rb"\\\ud83d", r"\?"),
        (rb"\u2603", "\u2603"),
    ],
)
def test_half_a_character_is_read_as_a_question_mark(raw: bytes, text: str) -> None:
    assert decode_json_config(b'{"a":"' + raw + b'"}') == {"a": text}


@given(st.binary(max_size=100))
def test_any_bytes_are_decoded_or_rejected(raw: bytes) -> None:
    with suppress(CorruptData):
        assert isinstance(decode_json_config(raw), dict)


EXAMPLE = rb"""
# Licensed to nobody
brokerClusterName = DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
storePathRootDir=/data/rocketmq/store
storePathCommitLog=/disk1/log, /disk2/log
readOnlyCommitLogStorePaths=/disk0/log
mapedFileSizeCommitLog=1073741824
mappedFileSizeConsumeQueue = 6000000
maxHashSlotNum=5000000
maxIndexNum=20000000
messageDelayLevel=1s 5s 10s
enableConsumeQueueExt=TRUE
storeType=defaultRocksDB
"""


WHOLE = BrokerConf(
    broker_name="broker-a",
    root="/data/rocketmq/store",
    commitlog=("/disk1/log", "/disk2/log"),
    read_only_commitlog=("/disk0/log",),
    segment_size=1 << 30,
    consume_queue_size=6_000_000,
    hash_slots=5_000_000,
    index_num=20_000_000,
    delay_level="1s 5s 10s",
    enable_consume_queue_ext=True,
)
SIZES = BrokerConf(segment_size=16384, consume_queue_size=200)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (EXAMPLE, WHOLE),
        # 4.5.2 corrected the spelling.
        (b"mapedFileSizeCommitLog=16384\nmapedFileSizeConsumeQueue=200", SIZES),
        (b"mappedFileSizeCommitLog=16384\nmappedFileSizeConsumeQueue=200", SIZES),
        (b"enableConsumeQueueExt=yes\nenableLmq=true", BrokerConf()),
        (b"", BrokerConf()),
    ],
    ids=["all settings", "old spelling", "new spelling", "unrelated settings", "nothing"],
)
def test_a_configuration_has_the_paths_and_sizes_of_a_store(raw: bytes, expected: BrokerConf) -> None:
    assert parse_broker_conf(raw) == expected


@pytest.mark.parametrize("value", ["", "1G", "16_384x", "0", "-20", "9" * 19, "9" * 5000])
def test_an_invalid_number_is_reported_with_the_name_of_its_field(value: str) -> None:
    with pytest.raises(CorruptData, match="mappedFileSizeCommitLog="):
        parse_broker_conf(f"mappedFileSizeCommitLog={value}".encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a=1", {"a": "1"}),
        (b"  a  =  1  ", {"a": "1  "}),
        (b"a:1\r\nb 2\rc", {"a": "1", "b": "2", "c": ""}),
        (b"a=b=c", {"a": "b=c"}),
        (b"# a=1\n! b=2\n\n \t\n", {}),
        (b"a = one \\\n   two", {"a": "one two"}),
        (b"a = one \\", {"a": "one "}),
        (b"a = c:\\\\", {"a": "c:\\"}),
        (b"a\\=b\\ c = \\u4e2d\\t\\n\\x", {"a=b c": "中\t\nx"}),
        (b"a=\xe9", {"a": "é"}),  # Latin-1, as Java reads it
        (b"a=1\na=2", {"a": "2"}),
        (b"=x", {"": "x"}),
    ],
)
def test_properties_files_are_parsed_as_by_java(text: bytes, expected: dict[str, str]) -> None:
    assert parse_java_properties(text) == expected


@given(st.binary(max_size=200) | st.lists(st.sampled_from(EXAMPLE.splitlines())).map(b"\\\n".join))
def test_any_configuration_file_is_parsed_or_rejected(raw: bytes) -> None:
    try:
        conf = parse_broker_conf(raw)
    except FormatError:
        return

    assert isinstance(conf, BrokerConf)
