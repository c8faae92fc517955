"""The scalar layer's view of a store, as reference for the pipeline."""

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jobs.products.queues.settings import determine_releases, determine_unit_rules
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify import PartReport
from jobs.verify.queues import verify_queues
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import Piece, PieceKind, SegmentBytes, walk_segment
from rmq_formats.consumequeue.dispatch import walk_units
from rmq_formats.store import FileKind, classify

_LOG = (FileKind.COMMITLOG, FileKind.DLEDGER_LOG)


class StoredRecord(NamedTuple):
    """A record, and the bytes it was read from."""

    record: MessageRecord
    raw: bytes


def segments_of(store: Path) -> list[Path]:
    """Return the files of a log, wherever they lie, in the order of their offsets."""
    files = [path for path in store.rglob("*") if path.is_file()]
    found = [
        path
        for path in files
        if classify(path.relative_to(store).as_posix()).kind in _LOG
        or path.parent.name in {"commitlog-a", "commitlog-b"}
    ]
    return sorted(found, key=lambda path: path.name)


def read_segment(path: Path) -> SegmentBytes:
    plain = SegmentBytes.from_buffer(path.read_bytes(), int(path.name))
    return replace(plain, framing=find_framing(plain.read, plain.size, plain.base_offset))


def newest_segment(store: Path) -> Path:
    """Find the last segment that holds anything: a crash leaves one of zeros after it, made ahead of need."""
    return [path for path in segments_of(store) if any(path.read_bytes()[:8])][-1]


def walked(segments: Sequence[Path]) -> Iterator[tuple[SegmentBytes, list[Piece]]]:
    """Walk a log with the scalar modules alone; records follow a segment where a later one holds anything."""
    newest = max((path.name for path in segments if any(path.read_bytes()[:8])), default="")
    for path in segments:
        segment = read_segment(path)
        yield segment, list(walk_segment(segment, final=path.name < newest))


def walked_segments(store: Path) -> Iterator[tuple[SegmentBytes, list[Piece]]]:
    return walked(segments_of(store))


def records_of(segments: Sequence[Path]) -> Iterator[StoredRecord]:
    for segment, pieces in walked(segments):
        header = segment.framing.header_size
        for piece in pieces:
            if piece.kind is PieceKind.RECORD:
                position = piece.offset - segment.base_offset
                raw = bytes(segment.read(position + header, piece.size - header))
                yield StoredRecord(segment.record_at(position), raw)


def stored_records(store: Path) -> Iterator[StoredRecord]:
    return records_of(segments_of(store))


def names(store: Path) -> list[str]:
    """List the files of a golden store but for those that tell of it."""
    return [name for name in files_in(store) if not name.startswith(("EXPECT/", "PROVENANCE"))]


def raw_records(store: Path) -> list[bytes]:
    return [raw for _, raw in stored_records(store)]


def log_folders(store: Path) -> list[str]:
    """Return the folders of a log that lies on several paths; a request names them, for any other log none."""
    return [str(path) for path in sorted(store.glob("commitlog-*"))]


def compare_queues(store: Path, release: str) -> PartReport:
    """Compare the queues of a store with its log."""
    listed = list_store(str(store), commitlog=log_folders(store))
    rules = determine_unit_rules(listed, determine_releases(listed, release).value.rules, BrokerConf())
    report, _ = verify_queues(SerialWorkers(), listed, rules)
    return report


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def content_of(store: Path) -> dict[str, bytes]:
    """Return the bytes of each file but of those that a repair has set aside."""
    return {name: data for name, data in files_in(store).items() if ".replaced-" not in name}


def flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def tree_state(root: Path) -> dict[str, tuple[str, int, int]]:
    """Return what a write below *root* would change: hash, time and mode of everything."""
    state = {}
    for directory, _, names in os.walk(root):
        for name in [".", *names]:
            path = Path(directory, name)
            status = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            state[str(path)] = (digest, status.st_mtime_ns, status.st_mode)
    return state


def lose_first_segment_like_retention(store: Path) -> int:
    """Delete the first segment, and the files that retention deletes with it; return where the log begins now."""
    first, second, *_ = sorted((store / "commitlog").iterdir())
    first.unlink()
    for path in [path for path in (store / "consumequeue").rglob("*") if path.is_file()]:
        units = [unit for unit in walk_units(path.read_bytes()) if unit.size]
        if not units or units[-1].physical_offset < int(second.name):
            path.unlink()
    shutil.rmtree(store / "index")
    return int(second.name)


def damage_each_part(store: Path) -> Path:
    """Change a record of the log, and lose a queue and an index file; return the changed segment."""
    segment = sorted((store / "commitlog").iterdir())[1]
    flip(segment, 4616)
    shutil.rmtree(store / "consumequeue" / "T1" / "1")
    sorted((store / "index").iterdir())[2].unlink()
    return segment


def folder_of_process(prefix: str) -> Path:
    """Make a folder for what tests of this process share; it is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


HOLD = (
    "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1); "
    "print(flush=True); sys.stdin.read()"
)


@contextmanager
def held(store: Path) -> Iterator[int]:
    """Hold the store's lock as a running broker does, in another process; give its id."""
    command = [sys.executable, "-c", HOLD, str(store / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
