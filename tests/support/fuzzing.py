"""Mutate tiny stores, and read them with the readable modules and with the pipeline; mutate JSON files."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from jobs.store.chain import complete_records_end, read_chained
from jobs.store.ranges import Range, plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import MessageRecord, encode_record, has_right_body_crc, record_from_row
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import NO_EVIDENCE, Framing, Piece, PieceKind, TailEvidence, is_fully_written
from rmq_formats.properties import PropertyParser, may_end_in_complete_value
from rmq_formats.store import file_name_of_offset
from tests.rmq_formats.builders import STORED, frame_record, make_blank, make_record
from tests.support.stores import walk_store

SEGMENT_SIZE = 1536
WORDS = (0, 1, -1, 7, 8, 90, 91, 1 << 20, (1 << 31) - 1, -(1 << 31), MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
RANGE_SIZES = (300, 700, 1 << 20)
Rows = list[tuple[int, bytes]]
Damage = list[tuple[int, int]]


class Result(NamedTuple):
    """The content of a log."""

    rows: Rows
    damage: Damage
    end: int


@dataclass(slots=True)
class TinyStore:
    """A store of a few segments, before and after its mutation."""

    framing: Framing
    segments: dict[int, bytearray]  # by base offset
    records: list[MessageRecord]
    mutated: list[tuple[int, int]]  # ranges of offsets that mutations changed
    is_closed: bool = True  # whether a broker shut it down

    def write(self, root: Path) -> None:
        directory = root / ("commitlog" if self.framing is Framing.PLAIN else "dledger-n0/data")
        directory.mkdir(parents=True)
        for base_offset, content in self.segments.items():
            (directory / file_name_of_offset(base_offset)).write_bytes(content)
        if not self.is_closed:
            (root / "abort").touch()


def make_mutated_store(random: Random) -> TinyStore:
    store = _make_store(random)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        base = random.choice(list(store.segments))
        if store.segments[base]:
            _mutate(store, base, random)
    store.is_closed = random.random() < 0.5
    return store


def _make_store(random: Random) -> TinyStore:
    framing = random.choice((Framing.PLAIN, Framing.PLAIN, Framing.DLEDGER))
    offset = base = SEGMENT_SIZE * random.choice((0, 0, 1, 1 << 30))
    store = TinyStore(framing, {base: bytearray()}, [], [])
    for number in range(random.randrange(1, 16)):
        record = _some_record(random, number, offset + framing.header_size)
        left = SEGMENT_SIZE - (offset - base)
        if record.total_size + 8 + 2 * framing.header_size > left:
            store.segments[base] += make_blank(left, framing)
            base = offset = base + SEGMENT_SIZE
            store.segments[base] = bytearray()
            record = record._replace(physical_offset=offset + framing.header_size)
        store.records.append(record)
        store.segments[base] += frame_record(record, framing, number)
        offset = record.end_offset
    store.segments[base] += bytes(SEGMENT_SIZE - len(store.segments[base]))
    if random.random() < 0.3:
        store.segments[base + SEGMENT_SIZE] = bytearray(SEGMENT_SIZE)
    return store


def _some_record(random: Random, number: int, offset: int) -> MessageRecord:
    body = random.randbytes(1) * random.choice((0, 1, 20, 200))
    if random.random() < 0.1:  # a body that is a complete record, with its correct physical offset
        body = encode_record(
            make_record(b"inner", store_timestamp=STORED + number)._replace(physical_offset=offset + 88)
        )
    return make_record(
        body,
        topic=random.choice(("Orders", "a", "T" * 100, "../../x")),
        properties=random.choice(
            (b"", b"KEYS\x01a b\x02", b"\xff\xfe\x01\xff\x02", b"\x01\x01\x02\x02", b"A\x01" * 20)
        ),
        queue_offset=number,
        store_timestamp=STORED + number,
    )._replace(physical_offset=offset)


def _mutate(store: TinyStore, base: int, random: Random) -> None:
    content = store.segments[base]
    at, source = random.randrange(len(content)), random.randrange(len(content))
    size = random.choice((16, 64, 512))
    kind = random.choice(("flip", "flip", "word", "word", "zero", "copy", "garbage", "cut", "missing"))
    new = {
        "flip": bytes([content[at] ^ 1 << random.randrange(8)]),
        "word": random.choice(WORDS).to_bytes(4, "big", signed=True),
        "zero": bytes(size),
        "copy": bytes(content[source : source + size]),
        "garbage": random.randbytes(size),
    }
    if kind in new:
        written = new[kind][: len(content) - at]
        content[at : at + len(written)] = written
        store.mutated.append((base + at, base + at + len(written)))
    elif kind == "cut":
        del content[at:]
        store.mutated.append((base + at, base + SEGMENT_SIZE))
    elif len(store.segments) > 1:
        del store.segments[base]
        store.mutated.append((base, base + SEGMENT_SIZE))


def read_with_reference(root: Path) -> Result:
    rows: Rows = []
    damage: Damage = []
    end = 0
    is_closed = not (root / "abort").exists()
    evidence = TailEvidence(is_complete=_is_complete_in_closed_store) if is_closed else NO_EVIDENCE
    for segment, pieces in walk_store(root, evidence):
        for piece in pieces:
            if piece.kind in {PieceKind.UNWRITTEN, PieceKind.WAITING}:
                return Result(rows, sorted(damage), piece.offset)
            if piece.kind is PieceKind.DAMAGE:
                damage.append((piece.offset, piece.size))
            elif piece.kind is PieceKind.RECORD:
                record = segment.record_at(piece.offset - segment.base_offset)
                if has_right_body_crc(record):
                    at = piece.offset - segment.base_offset + segment.framing.header_size
                    rows.append((record.physical_offset, bytes(segment.read(at, record.total_size))))
                else:
                    damage.append((record.physical_offset, record.total_size))
        end = pieces[-1].end if pieces else max(end, segment.base_offset)
    return Result(rows, sorted(damage), end)


def _is_complete_in_closed_store(record: MessageRecord) -> bool:
    """Return whether the last record was not cut by a copy of the store, which has no checkpoint."""
    ends_in_zeros = (record.properties_raw or record.topic_raw).endswith(b"\0")
    may_end_in_zeros = has_right_body_crc(record) and may_end_in_complete_value(record.properties_raw)
    return is_fully_written(record) or not ends_in_zeros or may_end_in_zeros


def read_with_pipeline(root: Path, range_size: int) -> Result:
    store = list_store(str(root))
    ranges = plan_ranges(store, store.start_offset, range_size)
    outcomes = read_chained(SerialWorkers(), ranges, [_RowCollector])
    rows = [row for outcome in outcomes for row in outcome.payload[0][0]]
    damage = [place for outcome in outcomes for place in outcome.payload[0][1]]
    return Result(rows, sorted(damage), complete_records_end(outcomes, store.start_offset))


class _RowCollector:
    def __init__(self, _range: Range, _files: ExitStack) -> None:
        self._rows: Rows = []
        self._damage: Damage = []

    def add(self, item: RawRecords | Piece) -> None:
        if isinstance(item, Piece):
            self._damage += [(item.offset, item.size)] if item.kind is PieceKind.DAMAGE else []
        else:
            batch, bad = message_batch(item, PropertyParser.SCAN)
            self._rows += [(row["physical_offset"], encode_record(record_from_row(row))) for row in batch.to_pylist()]
            self._damage += bad

    def finish(self) -> tuple[Rows, Damage]:
        return self._rows, self._damage


def find_lost_records(store: TinyStore, result: Result) -> list[int]:
    read_offsets = {offset for offset, _ in result.rows}
    embedded = any(b"inner" in record.body for record in store.records)  # these may be found instead of lost records
    header_size = store.framing.header_size
    return [
        record.physical_offset
        for record in store.records
        if record.physical_offset not in read_offsets
        and record.end_offset <= result.end
        and not embedded
        and not any(
            start < record.end_offset and end > record.physical_offset - header_size for start, end in store.mutated
        )
    ]


_DEPTH = 100_000
_MARK = "\u2603 the value is written here"
# As bytes, because `json` cannot write all of them.
HOSTILE_VALUES = (
    *b'null true 0 -1 1.5 NaN -Infinity 1e999 "" [] {} [null] {"a":1}'.split(),
    *(b"9223372036854775808", b"-9223372036854775809", b"1" * 400, b"9" * 5000),
    *(rb'"\ud800"', rb'"a\u0000b"', b'"\xff"', b'"../../x"', b'"/"', rb'"\ud83d\ude00"', b'"x"', b'["x"]', b"[1,2]"),
    *(b"[" * _DEPTH, b"[" * 500 + b"]" * 500, b'{"a":' * 500 + b"1" + b"}" * 500),
)


def hostile_json(original: bytes, random: Random) -> bytes:
    """Return a JSON file with a hostile value, key, or end at a random position."""
    kind = random.choice(("value", "value", "value", "key", "missing", "twice", "cut", "bytes"))
    tree = json.loads(original)
    keys = list(_list_keys(tree))
    if kind == "cut" or not keys:
        return original[: random.randrange(len(original))]
    if kind == "bytes":
        at = random.randrange(len(original))
        return original[:at] + random.randbytes(random.choice((1, 3))) + original[at + 1 :]
    container, key = random.choice(keys)
    hostile = random.choice(HOSTILE_VALUES)
    if kind == "missing":
        del container[key]
        return json.dumps(tree).encode()
    if kind == "key" and isinstance(container, dict):
        container[_MARK] = container.pop(key)
        return (
            json.dumps(tree).encode().replace(json.dumps(_MARK).encode(), random.choice((rb'"\ud800"', b'""', b'"x"')))
        )
    if kind == "twice" and isinstance(container, dict):
        hostile = hostile + b"," + json.dumps(key).encode() + b":" + random.choice(HOSTILE_VALUES)
    container[key] = _MARK
    return json.dumps(tree).encode().replace(json.dumps(_MARK).encode(), hostile)


def _list_keys(tree: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - JSON
    pairs = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    for key, value in pairs:
        yield tree, key
        yield from _list_keys(value)
