"""Bridges over lost bytes: a broker passes over them, and everything here still sees the hole."""

from collections.abc import Sequence

import pytest

from rmq_formats.broker_start import StopKind, read_on
from rmq_formats.commitlog.bridge import LostMessage, bridge, closed
from rmq_formats.commitlog.layout import MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import encode_record, new_record
from rmq_formats.commitlog.scan import scan
from rmq_formats.commitlog.segment import Piece, PieceKind, walk
from rmq_formats.release import Release

BASE = 1 << 20


def record(place: int) -> bytes:
    return encode_record(new_record(topic=b"T", magic_code=MAGIC_V1, body=b"body", physical_offset=BASE + place))


FIRST = record(0)
START = BASE + len(FIRST)


@pytest.mark.parametrize(
    ("size", "lost", "tiles"),
    [
        (500, [], 1),
        (92, [], 1),
        (500, [LostMessage(START, 500, "T1", 3, 7)], 1),
        (500, [LostMessage(START, 200, "T1", 3, 7), LostMessage(START + 200, 300, "%LMQ%x", 0, 0)], 2),
        (500, [LostMessage(START + 200, 150, "T1", 3, 7)], 3),
        (500, [LostMessage(START, 500, "t" * 128, 3, 7)], 1),  # longer than a record of the first version takes
        (500, [LostMessage(START + 50, 150, "T1", 3, 7)], 1),  # 50 bytes before it are too few for a record
        (500, [LostMessage(START, 300, "T1", 3, 7), LostMessage(START + 200, 300, "T1", 3, 8)], 1),  # they overlap
    ],
)
def test_a_broker_passes_over_a_bridge_that_is_a_hole_to_us(size: int, lost: Sequence[LostMessage], tiles: int) -> None:
    over = bridge(START, START + size, lost, 9)
    assert over is not None
    segment = FIRST + over + record(len(FIRST) + size)

    stop = read_on(lambda at, length: segment[at : at + length], 0, len(segment), Release.of("5.3.3"), len(segment))
    pieces = list(walk(segment, BASE))
    scanned = scan(lambda at, length: segment[at : at + length], 0, len(segment), len(segment), BASE, final=True)

    assert (StopKind.AT_LIMIT, len(segment)) == stop
    assert [PieceKind.RECORD, PieceKind.DAMAGE, PieceKind.RECORD] == [piece.kind for piece in pieces]
    assert (START, size) == (pieces[1].offset, pieces[1].size)
    assert [pieces[1]] == [item for item in scanned if isinstance(item, Piece)]
    assert tiles == sum(over.count(magic.to_bytes(4, "big", signed=True)) for magic in (MAGIC_V1, MAGIC_V2))


@pytest.mark.parametrize("size", [8, 60, 99, 100, 4096])
def test_a_hole_up_to_the_end_of_a_segment_ends_in_a_blank(size: int) -> None:
    segment = FIRST + closed(START, START + size, [], 9)

    stop = read_on(lambda at, length: segment[at : at + length], 0, len(segment), Release.of("5.3.3"))

    assert len(FIRST) + size == len(segment)
    assert StopKind.END_OF_FILE is stop.kind


@pytest.mark.parametrize("field", ["flag", "body", "properties"])
def test_a_message_that_is_only_nearly_a_bridge_is_a_message(field: str) -> None:
    flag = int.from_bytes(b"LOST") - (field == "flag")
    body = b"\0\1" if field == "body" else b"\0\0"
    properties = b"A\1B" if field == "properties" else b""
    made = new_record(
        topic=b"T", magic_code=MAGIC_V1, flag=flag, body=body, properties=properties, physical_offset=BASE
    )

    assert [PieceKind.RECORD] == [piece.kind for piece in walk(encode_record(made), BASE)]
