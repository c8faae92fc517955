"""
Fuzz the walks: mutated segments by the hundred thousand, through the scalar walk and the compiled scan.

    python -m tests.fuzz_segments --cases 1000000

Each case must give pieces that cover the segment without gap or overlap, the same from both walks, each record piece
holding a record that encodes to its own bytes; no exception but FormatError's family, no slow case, no growth of
memory. The last result is in benchmarks/results/fuzz-segments.json.
"""

import argparse
import json
import platform
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmq_formats.commitlog.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import encode_record
from rmq_formats.commitlog.scan import scan
from rmq_formats.commitlog.segment import Framing, Piece, PieceKind, SegmentBytes, walk_segment
from tests.rmq_formats.builders import BROKER_V6, PRODUCER_V6, a_blank, a_record, log_of

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "fuzz-segments.json"
BASE = 4096

_WORDS = tuple(
    value.to_bytes(4, "big", signed=True)
    for value in (0, 1, -1, 8, 48, 88, 91, 92, 300, 1 << 30, (1 << 31) - 1, -(1 << 31), MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
)


class Case(NamedTuple):
    """One mutated segment."""

    raw: bytes
    framing: Framing
    final: bool
    store_timestamp: int | None


def seeds() -> list[tuple[bytes, Framing]]:
    """Return whole segments of some hundred bytes: every kind of record, every kind of end."""
    short = a_record(b"x", topic="T", properties=b"")
    v6 = a_record(b"yy", topic="T", born_host=PRODUCER_V6, store_host=BROKER_V6)
    second = a_record(b"", topic="T", magic_code=MAGIC_V2, properties=b"a\x01b\x02")
    carrier = a_record(encode_record(short._replace(physical_offset=BASE + 88)), topic="T", properties=b"")
    found = []
    for framing in Framing:
        for records in ([short, second], [v6, short], [short, short, short], [carrier, short]):
            log = log_of(records, BASE, framing)
            found += [(log + a_blank(40, framing), framing), (log + bytes(40), framing), (log, framing)]
            behind = log_of([short], BASE + len(log) + 8, framing)
            found += [(log + a_blank(8 + size, framing)[:8] + behind, framing) for size in (0, len(behind))]
    return found


def mutate(source: random.Random, raw: bytes) -> bytes:
    damaged = bytearray(raw)
    for _ in range(source.randint(1, 4)):
        if not damaged:
            break
        at = source.randrange(len(damaged))
        change = source.randrange(7)
        if change == 0:
            damaged[at] ^= 1 << source.randrange(8)
        elif change == 1:
            damaged[at] = source.randrange(256)
        elif change == 2:
            damaged[at : at + 4] = source.choice(_WORDS)
        elif change == 3:
            other = source.randrange(len(damaged))
            damaged[at : at + 91] = damaged[other : other + 91]
        elif change == 4:
            del damaged[at : at + source.randint(1, 20)]
        elif change == 5:
            damaged[at:at] = source.randbytes(source.randint(1, 20))
        else:
            del damaged[at:]
    return bytes(damaged)


def cases(seed: int, count: int) -> Iterator[Case]:
    source = random.Random(seed)
    whole = seeds()
    for _ in range(count):
        raw, framing = source.choice(whole)
        store_timestamp = source.choice((None, 0, 1 << 62))
        yield Case(mutate(source, raw), framing, source.random() < 0.5, store_timestamp)


def check(case: Case) -> list[Piece]:
    segment = SegmentBytes.of(case.raw, BASE, case.framing)
    pieces = list(walk_segment(segment, final=case.final, store_timestamp=case.store_timestamp))
    offset = BASE
    for piece in pieces:
        assert (piece.offset, piece.size > 0) == (offset, True), (case, pieces)
        offset = piece.end
        if piece.kind is PieceKind.RECORD:
            position = piece.offset - BASE
            record = encode_record(segment.record_at(position))
            start = position + case.framing.header_size
            assert case.raw[start : start + len(record)] == record, (case, piece)
            assert piece.size == case.framing.header_size + len(record), (case, piece)
    assert offset == BASE + len(case.raw), (case, pieces)
    assert pieces == list(_scanned(case)), case
    return pieces


def _scanned(case: Case) -> Iterator[Piece]:
    raw = case.raw
    items = scan(
        lambda position, length: raw[position : position + length],
        0,
        len(raw),
        len(raw),
        BASE,
        case.framing,
        final=case.final,
        store_timestamp=case.store_timestamp,
        window=256,
    )
    header = case.framing.header_size
    for item in items:
        if isinstance(item, Piece):
            yield item
        else:
            places = zip(item.positions.tolist(), item.sizes.tolist(), strict=True)
            yield from (Piece(PieceKind.RECORD, item.base_offset + at - header, size + header) for at, size in places)


def run(seed: int, count: int) -> dict[str, object]:
    kinds: Counter[str] = Counter()
    slowest = 0.0
    check(next(iter(cases(seed, 1))))  # compiles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    for case in cases(seed, count):
        started = time.perf_counter()
        kinds.update(str(piece.kind) for piece in check(case))
        slowest = max(slowest, time.perf_counter() - started)
    return {
        "cases": count,
        "seed": seed,
        "pieces": dict(sorted(kinds.items())),
        "foreign_exceptions": 0,
        "differences_scalar_compiled": 0,
        "slowest_case_s": round(slowest, 4),
        "memory_growth_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
        "seconds": round(time.monotonic() - began, 1),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help=f"write {RESULT.name}")
    arguments = parser.parse_args()
    result = run(arguments.seed, arguments.cases)
    print(json.dumps(result, indent=1))
    if arguments.record:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
