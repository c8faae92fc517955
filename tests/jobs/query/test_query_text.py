"""Times, hosts, maps and widths as Java prints them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given

from jobs.query.mqadmin.java import check_charset, decode_as_java, map_text
from jobs.query.mqadmin.text import host_text, pad, time_text
from rmq_formats.commitlog.record import Host
from tests.rmq_formats.strategies import HOSTS, I64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("milliseconds", "zone", "expected"),
    [
        (0, "UTC", "1970-01-01 00:00:00,000"),
        (-1, "UTC", "1969-12-31 23:59:59,999"),
        (1_795_160_556_667, "UTC", "2026-11-20 07:42:36,667"),
        (1_795_160_556_667, "Asia/Shanghai", "2026-11-20 15:42:36,667"),
        ((1 << 63) - 1, "UTC", "292278994-08-17 07:12:55,807"),
    ],
)
def test_a_time_is_printed_as_java_prints_it(milliseconds: int, zone: str, expected: str) -> None:
    assert expected == time_text(milliseconds, ZoneInfo(zone))


@given(milliseconds=I64)
def test_every_number_is_a_time(milliseconds: int) -> None:
    shown = time_text(milliseconds, UTC)
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        assert shown.count(":") == len("::")
        return
    assert f"{moment.year:04d}-{moment:%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}" == shown


def test_ipv6_hosts_stand_in_brackets_with_all_their_zeros() -> None:
    address = bytes.fromhex("20010db8000000000000000000000001")

    assert "[2001:db8:0:0:0:0:0:1]:10911" == host_text(Host(address, 10911))


@given(host=HOSTS)
def test_every_host_has_a_text_that_ends_in_its_port(host: Host) -> None:
    assert host_text(host).endswith(f":{host.port}")


def test_a_map_is_printed_bucket_by_bucket() -> None:
    """The order that a real mqadmin printed, with 16 buckets and with 128."""
    properties = {
        "REAL_TOPIC": "T1",
        "TAGS": "TagD",
        "KEYS": "k",
        "WAIT": "true",
        "REAL_QID": "1",
        "DELAY": "1",
        "UNIQ_KEY": "u",
    }

    assert "{REAL_TOPIC=T1, KEYS=k, UNIQ_KEY=u, WAIT=true, DELAY=1, TAGS=TagD, REAL_QID=1}" == map_text(properties, 16)
    assert "{UNIQ_KEY=u, DELAY=1, TAGS=TagD, KEYS=k, WAIT=true, REAL_TOPIC=T1, REAL_QID=1}" == map_text(properties, 128)
    many = {f"n{number}": "v" for number in range(13)}  # such a map has grown
    assert map_text(many, 32) == map_text(many, 16)


def test_widths_count_utf_16_units() -> None:
    """A character beyond the first plane is two for Java."""
    assert "ключ  " == pad("ключ", 6)
    assert "🔑  " == pad("🔑", 4)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xd5\xfd\xce\xc4 a", "\u6b63\u6587 a"),
        (b"\xa9\xaa\xab\xac\xad\xae\xaf\xb0\xb1\xb2", "\u2506\ue069\ue127\ue1e5\u8f88"),
        (b"\xf9\xfa\xfb\xfc\xfd\xfe\xff", "\ue2eb\ue3a9\ue467\ufffd"),
        (b"\x80\x81\xff\x81\x30\x81", "\ufffd\ufffd\ufffd0\ufffd"),
    ],
)
def test_gbk_is_decoded_as_java_decodes_it(raw: bytes, text: str) -> None:
    assert decode_as_java(raw, "GBK") == text


@pytest.mark.parametrize("charset", ["undefined", "punycode", "idna", "base64", "no-such"])
def test_what_is_no_charset_of_texts_is_refused(charset: str) -> None:
    with pytest.raises(ValueError, match="not a charset"):
        check_charset(charset)


def test_utf_16_without_a_mark_begins_with_the_high_byte() -> None:
    assert decode_as_java("\u6b63".encode("utf-16-be"), "UTF-16") == "\u6b63"
