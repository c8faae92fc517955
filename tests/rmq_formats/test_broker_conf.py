"""A broker's configuration file: Java properties, and what they say about a store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.broker_conf import BrokerConf, java_properties, parse_broker_conf
from rmq_formats.errors import CorruptData, FormatError

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


def test_a_configuration_says_where_a_store_lies_and_what_shape_it_has() -> None:
    assert parse_broker_conf(EXAMPLE) == BrokerConf(
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


@pytest.mark.parametrize("spelling", ["maped", "mapped"])
def test_sizes_are_known_under_both_spellings(spelling: str) -> None:
    """4.5.2 corrected the name."""
    raw = f"{spelling}FileSizeCommitLog=16384\n{spelling}FileSizeConsumeQueue=200".encode()

    assert (parse_broker_conf(raw).segment_size, parse_broker_conf(raw).consume_queue_size) == (16384, 200)


@pytest.mark.parametrize("raw", [b"", b"enableConsumeQueueExt=yes\nenableLmq=true"])
def test_what_is_not_set_and_what_is_not_the_stores_leaves_every_default(raw: bytes) -> None:
    assert parse_broker_conf(raw) == BrokerConf()


@pytest.mark.parametrize("value", ["", "1G", "16_384x", "9" * 5000])
def test_a_number_that_is_none_is_said_with_its_name(value: str) -> None:
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
def test_properties_text_is_read_as_java_reads_it(text: bytes, expected: dict[str, str]) -> None:
    assert java_properties(text) == expected


@given(st.binary(max_size=200) | st.lists(st.sampled_from(EXAMPLE.splitlines())).map(b"\\\n".join))
def test_any_file_is_read_or_refused(raw: bytes) -> None:
    try:
        conf = parse_broker_conf(raw)
    except FormatError:
        return

    assert isinstance(conf, BrokerConf)
