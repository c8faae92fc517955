"""Write small stores and their lakes from a list of messages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from jobs.query.lake_source import LakeSource, open_lake_stores
from jobs.query.source import Answer
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.store.store import list_store
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.consumequeue.dispatch import UnitRules, expected_units
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release, make_rules
from rmq_formats.store import file_name_of_offset
from tests.rmq_formats.builders import STORED, fit_into_segment, make_blank, make_record, make_segment
from tests.rmq_formats.reference import ConsumeQueue, IndexWriter
from tests.support.lakes import ingest_store

SEGMENT_SIZE = 4096
QUEUE_FILE_SIZE = 200
RELEASE = Release.from_version("5.5.1")
GEOMETRY = Geometry(7, 9)  # few slots, so that chains are long and most hits are other keys


class Sent(NamedTuple):
    """A message, with the properties that queries use."""

    topic: str = "Orders"
    keys: tuple[str, ...] = ()
    unique_key: str | None = None
    tags: str | None = None
    queue_id: int = 0
    body: bytes = b"hello"
    properties: tuple[tuple[str, str], ...] = ()
    sys_flag: int = 0

    def record(self, queue_offset: int, physical_offset: int, stored: int) -> MessageRecord:
        named = {"KEYS": " ".join(self.keys), "UNIQ_KEY": self.unique_key, "TAGS": self.tags}
        properties = {name: value for name, value in named.items() if value} | dict(self.properties)
        return make_record(
            self.body,
            topic=self.topic,
            properties=properties,
            queue_id=self.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            store_timestamp=stored,
            sys_flag=self.sys_flag,
        )


def stored(messages: Sequence[Sent], *, start: int = 0) -> list[MessageRecord]:
    """Return the records of a log of small segments, starting at *start*, with ten messages per second."""
    records: list[MessageRecord] = []
    numbers: dict[tuple[str, int], count[int]] = {}
    offset = start
    for place, message in enumerate(messages):
        number = next(numbers.setdefault((message.topic, message.queue_id), count()))
        record = message.record(number, offset, STORED + place * 100)
        record = fit_into_segment(record, SEGMENT_SIZE)
        records.append(record)
        offset = record.end_offset
    return records


def write_store(
    root: Path,
    records: Sequence[MessageRecord],
    *,
    geometry: Geometry = GEOMETRY,
    with_index: bool = True,
    with_queues: bool = True,
) -> Path:
    root.mkdir(parents=True)
    _write_log(root / "commitlog", records)
    if with_index:
        _write_index(root / "index", records, geometry)
    if with_queues:
        write_queues(root, records)
    return root


def write_segment(root: Path, records: Sequence[MessageRecord]) -> Path:
    """Write a store with one segment, without queues and index."""
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / file_name_of_offset(0)).write_bytes(make_segment(records, 1 << 14))
    return root


@contextmanager
def opened(
    root: Path, release: Release = RELEASE, geometry: Geometry | None = GEOMETRY, *, scan_log: bool = False
) -> Iterator[StoreSource]:
    """Open a store for queries; with a *geometry* of None, that of its index files is detected."""
    with StoreReader(list_store(str(root)), geometry) as reader:
        yield StoreSource(reader, release, scan_log=scan_log)


def write_lake(store: Path, lake: Path, **options: Any) -> Path:  # noqa: ANN401 - fields of the request
    usual = {"release": str(RELEASE), "hash_slots": GEOMETRY.hash_slots, "index_num": GEOMETRY.index_num}
    ingest_store(store, lake, "b0", **(usual | options))
    return lake


def open_lake(lake: Path | str, release: Release | None = None) -> LakeSource:
    """Open the only store of a lake."""
    (source,) = open_lake_stores(str(lake), None, release)
    return source


def offsets(answer: Answer) -> list[int]:
    return [message.record.physical_offset for message in answer.messages]


def _write_log(directory: Path, records: Sequence[MessageRecord]) -> None:
    directory.mkdir()
    bases = sorted({record.physical_offset // SEGMENT_SIZE * SEGMENT_SIZE for record in records}) or [0]
    for base in bases:
        own = [record for record in records if base <= record.physical_offset < base + SEGMENT_SIZE]
        log = b"".join(map(encode_record, own))
        rest = SEGMENT_SIZE - len(log)
        (directory / file_name_of_offset(base)).write_bytes(
            log + (bytes(rest) if base == bases[-1] else make_blank(rest))
        )


def _write_index(directory: Path, records: Sequence[MessageRecord], geometry: Geometry) -> None:
    directory.mkdir()
    writer = IndexWriter(geometry, make_rules((0, RELEASE)))
    writer.dispatch_all(records)
    for number, file in enumerate(writer.files):
        (directory / f"2025112001{number:07d}").write_bytes(file.encode())


def write_queues(root: Path, records: Sequence[MessageRecord]) -> None:
    queues: dict[str, ConsumeQueue] = {}
    for record in records:
        for unit in expected_units(record, UnitRules(((0, RELEASE),))):
            queues.setdefault(unit.queue.path, ConsumeQueue(QUEUE_FILE_SIZE)).append(unit, RELEASE)
    for path, queue in queues.items():
        directory = root / path
        directory.mkdir(parents=True)
        for offset, data in queue.files():
            (directory / file_name_of_offset(offset)).write_bytes(data)
