"""`dump`: every record, unit and entry of one file with its offset, and the end of the file."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.dump import file as dump_file
from jobs.storage.model import Reader
from rmq_formats.commitlog.layout import MAGIC_V2
from rmq_formats.indexfile.layout import decode_header
from tests.golden import StoreOf, golden_stores
from tests.rmq_formats.builders import BROKER_V6, PRODUCER_V6, a_record, a_segment, log_of
from tests.support.commands import Run, state_of
from tests.support.stores import segments_of, stored_records

ONE = a_record(b"one")


@pytest.mark.parametrize("name", golden_stores("base", "types-crc", "dledger-upgraded", "multipath"))
def test_every_record_of_a_real_log_is_printed_with_its_offset(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    before = state_of(store)

    outcome = run("dump", "--json", *segments_of(store))

    printed = [line for line in outcome.lines if line["kind"] == "record"]
    records = [record for record, _ in stored_records(store)]
    assert outcome.code is ExitCode.CLEAN
    assert [line["physical_offset"] for line in printed] == [record.physical_offset for record in records]
    for line, record in zip(printed, records, strict=True):
        assert base64.b64decode(line["body"]) == record.body
        assert base64.b64decode(line["properties_raw"]) == record.properties_raw
        assert (line["topic"], line["sys_flag"], line["store_host"]) == (
            record.topic,
            record.sys_flag,
            str(record.store_host),
        )
    assert state_of(store) == before


@pytest.mark.parametrize(
    "record",
    [
        ONE,
        a_record(b"\xff\xfe" * 50, born_host=PRODUCER_V6),
        a_record(topic="%RETRY%" + "g" * 150, magic_code=MAGIC_V2, store_host=BROKER_V6, sys_flag=8),
        a_record(properties=b"a\x01b\x01c\x02\x02odd\x02tail"),
        a_record(b"no row of messages", sys_flag=0xC0),
    ],
    ids=["plain", "v6 born host", "V2", "odd properties", "odd inner batch"],
)
def test_every_byte_of_a_record_is_assigned_to_a_field(tmp_path: Path, run: Run, record: object) -> None:
    path = tmp_path / ("0" * 20)
    path.write_bytes(log_of([record]))  # type: ignore[list-item]

    _, first, *fields, _ = run("dump", "--fields", "--limit", "1", path).out.splitlines()
    offsets = [int(line.split()[0]) for line in fields]
    names = [line.split()[1] for line in fields]

    assert offsets == sorted(offsets)
    assert (offsets[0], names[:2]) == (0, ["total_size", "magic_code"])
    assert names.index("body") < names.index("topic") < names.index("properties_length") < names.index("property")
    assert int(first.split()[2]) == path.stat().st_size


class BadSector(Reader):
    """A reader that fails like a disk with one bad sector."""

    def __init__(self, raw: bytes, bad: range) -> None:
        self.size = len(raw)
        self._raw = raw
        self._bad = bad

    def read(self, position: int, length: int) -> bytes:
        if position < self._bad.stop and position + length > self._bad.start:
            raise OSError(5, "Input/output error")
        return self._raw[position : position + length]


def test_an_unreadable_sector_is_damage_and_later_records_are_printed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [a_record(b"x" * 900) for _ in range(30)]
    raw = a_segment(records, 65536, sealed=True)
    path = tmp_path / ("0" * 20)
    path.write_bytes(raw)

    class Storage:
        @contextmanager
        def open(self, _: str) -> Iterator[BadSector]:
            yield BadSector(raw, range(8192, 12288))

    monkeypatch.setattr(dump_file, "storage_for", lambda *_: Storage())
    outcome = run("dump", path)

    assert outcome.code is ExitCode.DAMAGE
    assert "# UNREADABLE 4096 bytes cannot be read at position 8192: Input/output error" in outcome.out
    assert "sealed segment" in outcome.out
    assert outcome.out.count("  record  ") > 20


# files of queues and index


@pytest.mark.parametrize("name", golden_stores("base", "types", "cqext", "direct"))
def test_every_byte_of_a_file_of_a_real_queue_or_index_is_printed(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    files = [*store.glob("*consumequeue*/*/*/*"), *sorted((store / "index").iterdir())[:-1]]

    outcome = run("dump", "--json", *files)
    printed = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    for path in files:
        items = [line for line in printed if line["file"] == str(path)]
        assert items[0]["offset"] == 0
        assert all(before["offset"] + before["size"] == item["offset"] for before, item in pairwise(items))
        assert items[-1]["offset"] + items[-1]["size"] == path.stat().st_size
        assert items[-1]["damaged_places"] == 0
        if path.parent.name == "index":
            count = decode_header(path.read_bytes()).index_count
            assert sum(item["kind"] == "entry" for item in items) == count - 1
