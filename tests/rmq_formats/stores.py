"""The log of a golden store, read with the scalar modules alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmq_formats.commitlog.framing import detect_framing
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import Piece, PieceKind, SegmentBytes, walk_segment

LOG_FOLDERS = ("commitlog", "commitlog-a", "commitlog-b", "dledger-n0/data")


class StoredRecord(NamedTuple):
    """A record, and the bytes it was read from."""

    record: MessageRecord
    raw: bytes


def segment_files(store: Path) -> list[Path]:
    files = [path for folder in LOG_FOLDERS for path in (store / folder).glob("*")]
    return sorted(files, key=lambda path: path.name)


def read_segment(path: Path) -> SegmentBytes:
    raw = path.read_bytes()
    return SegmentBytes.of(raw, int(path.name), detect_framing(raw))


def newest_segment(store: Path) -> Path:
    """Find the last segment that holds anything: a crash leaves one of zeros after it, made ahead of need."""
    return [path for path in segment_files(store) if any(path.read_bytes()[:8])][-1]


def walked_segments(store: Path) -> Iterator[tuple[SegmentBytes, list[Piece]]]:
    newest = newest_segment(store)
    for path in segment_files(store):
        segment = read_segment(path)
        yield segment, list(walk_segment(segment, final=path.name < newest.name))


def stored_records(store: Path) -> Iterator[StoredRecord]:
    for segment, pieces in walked_segments(store):
        header = segment.framing.header_size
        for piece in pieces:
            if piece.kind is PieceKind.RECORD:
                position = piece.offset - segment.base_offset
                raw = bytes(segment.read(position + header, piece.size - header))
                yield StoredRecord(segment.record_at(position), raw)


def names(store: Path) -> list[str]:
    found = sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())
    return [name for name in found if not name.startswith(("EXPECT/", "PROVENANCE"))]
