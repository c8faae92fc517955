"""Records against what the real mqadmin printed of them, release by release."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.flags import COMPRESSED
from rmq_formats.message_id import decode_offset_id, encode_offset_id
from rmq_formats.properties import KEYS, TAGS, parse_properties
from rmq_formats.release import Release
from tests.golden import StoreOf, golden_stores, release_of
from tests.rmq_formats.stores import stored_records

LINE = re.compile(r"^(?P<label>[A-Z][A-Za-z ]+): +(?P<value>.*)$")
ADDED_BY_THE_QUERY = ("MIN_OFFSET", "MAX_OFFSET")


def printed_messages(text: str) -> Iterator[dict[str, str]]:
    message: dict[str, str] = {}
    for line in text.partition("# ---- stdout ----\n")[2].partition("# ---- stderr ----")[0].splitlines():
        match = LINE.match(line.removeprefix("WARN: No Consumer"))
        if match is None:
            continue
        if match["label"] == "OffsetID" and "Topic" in message:
            yield message
            message = {}
        message[match["label"]] = match["value"]
    if message:
        yield message


def printed_time(timestamp: int) -> str:
    moment = datetime.fromtimestamp(timestamp // 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S},{timestamp % 1000:03d}"


def as_printed(record: MessageRecord, release: Release) -> dict[str, str]:
    properties = parse_properties(record.properties_raw, release.property_parser)
    return {
        "OffsetID": encode_offset_id(record.store_host, record.physical_offset),
        "Topic": record.topic,
        "Tags": f"[{properties.get(TAGS, 'null')}]",
        "Keys": f"[{properties.get(KEYS, 'null')}]",
        "Queue ID": str(record.queue_id),
        "Queue Offset": str(record.queue_offset),
        "CommitLog Offset": str(record.physical_offset),
        "Reconsume Times": str(record.reconsume_times),
        "Born Timestamp": printed_time(record.born_timestamp),
        "Store Timestamp": printed_time(record.store_timestamp),
        "Born Host": str(record.born_host),
        "Store Host": str(record.store_host),
        "System Flag": str(record.sys_flag if release.prints_compressed_flag else record.sys_flag & ~COMPRESSED),
    }


def printed_properties(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.strip("{}").split(", "))
    return {name: value for name, _, value in pairs if name not in ADDED_BY_THE_QUERY}


@pytest.mark.parametrize("name", golden_stores("base"))
def test_records_are_what_mqadmin_says_they_are(golden: StoreOf, name: str) -> None:
    store = golden(name)
    release = Release.of(release_of(name))
    by_offset = {record.physical_offset: record for record, _ in stored_records(store)}
    outputs = sorted((store / "EXPECT").glob("*-queryMsgBy[IO]*-*.txt"))
    messages = [message for path in outputs for message in printed_messages(path.read_text())]

    assert len(messages) >= 6
    for message in messages:
        record = by_offset[decode_offset_id(message["OffsetID"]).physical_offset]
        expected = as_printed(record, release)
        assert {label: message.get(label) for label in expected} == expected
        assert printed_properties(message["Properties"]) == parse_properties(
            record.properties_raw, release.property_parser
        )
