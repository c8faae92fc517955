"""Read, compare and change stores; the readable modules serve as the reference for the fast ones."""

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

from jobs.products.queues.settings import determine_unit_rules
from jobs.store.release import determine_writers
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.queues import verify_queues
from jobs.verify.report import PartReport
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import (
    NO_EVIDENCE,
    Piece,
    PieceKind,
    SegmentBytes,
    TailEvidence,
    walk_segment,
)
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.store import FileKind, classify

_LOG = (FileKind.COMMITLOG, FileKind.DLEDGER_LOG)


class StoredRecord(NamedTuple):
    """A record and its bytes."""

    record: MessageRecord
    raw: bytes


def list_segments(store: Path) -> list[Path]:
    """Return the segments of a log, which may be in several directories, in the order of their offsets."""
    files = [path for path in store.rglob("*") if path.is_file()]
    found = [
        path
        for path in files
        if classify(path.relative_to(store).as_posix()).kind in _LOG
        or path.parent.name in {"commitlog-a", "commitlog-b"}
    ]
    return sorted(found, key=lambda path: path.name)


def walk_log(
    segments: Sequence[Path], evidence: TailEvidence = NO_EVIDENCE
) -> Iterator[tuple[SegmentBytes, list[Piece]]]:
    """Walk a log with the readable modules; a segment is full if a later one is not empty."""
    newest = max((path.name for path in segments if any(path.read_bytes()[:8])), default="")
    for path in segments:
        plain = SegmentBytes.from_buffer(path.read_bytes(), int(path.name))
        segment = replace(plain, framing=find_framing(plain.read, plain.size, plain.base_offset))
        yield segment, list(walk_segment(segment, final=path.name < newest, evidence=evidence))


def walk_store(store: Path, evidence: TailEvidence = NO_EVIDENCE) -> Iterator[tuple[SegmentBytes, list[Piece]]]:
    return walk_log(list_segments(store), evidence)


def read_records(segments: Sequence[Path]) -> Iterator[StoredRecord]:
    for segment, pieces in walk_log(segments):
        header = segment.framing.header_size
        for piece in pieces:
            if piece.kind is PieceKind.RECORD:
                position = piece.offset - segment.base_offset
                raw = bytes(segment.read(position + header, piece.size - header))
                yield StoredRecord(segment.record_at(position), raw)


def read_store_records(store: Path) -> Iterator[StoredRecord]:
    return read_records(list_segments(store))


def list_names(store: Path) -> list[str]:
    """List the files of a golden store, without the recorded answers and the description of its origin."""
    return [name for name in read_files(store) if not name.startswith(("EXPECT/", "PROVENANCE"))]


def raw_records(store: Path) -> list[bytes]:
    return [raw for _, raw in read_store_records(store)]


def log_folders(store: Path) -> list[str]:
    """Return the directories of a log on several paths, as a request names them; an empty list for any other log."""
    return [str(path) for path in sorted(store.glob("commitlog-*"))]


def compare_queues(store: Path, release: str) -> PartReport:
    listed = list_store(str(store), commitlog=log_folders(store))
    rules = determine_unit_rules(listed, determine_writers(listed, release).value.rules, BrokerConf())
    report, *_ = verify_queues(SerialWorkers(), listed, rules)
    return report


def read_files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def read_store_files(store: Path) -> dict[str, bytes]:
    """Return the content of each file, except files that a repair has set aside."""
    return {name: data for name, data in read_files(store).items() if ".replaced-" not in name}


def flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def tree_state(root: Path) -> dict[str, tuple[str, int, int]]:
    """Return the hash, time and mode of each file and directory below *root*, to detect any write."""
    state = {}
    for directory, _, names in os.walk(root):
        for name in [".", *names]:
            path = Path(directory, name)
            status = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            state[str(path)] = (digest, status.st_mtime_ns, status.st_mode)
    return state


def kill_after_dispatch(store: Path, dispatched: int) -> None:
    """Change a store to that of a broker that was killed when only records before *dispatched* had units."""
    (store / "abort").touch()
    for path in store.glob("consumequeue/*/*/*"):
        units = [path.read_bytes()[at : at + UNIT.size] for at in range(0, path.stat().st_size, UNIT.size)]
        data = b"".join(unit if int(UNIT.unpack(unit)[0]) < dispatched else bytes(UNIT.size) for unit in units)
        path.write_bytes(data)
        if not any(data):
            path.unlink()


def damage_log_queue_and_index(store: Path) -> Path:
    """Change a record of the log, and delete a queue and an index file; return the changed segment."""
    segment = sorted((store / "commitlog").iterdir())[1]
    flip(segment, 4616)
    shutil.rmtree(store / "consumequeue" / "T1" / "1")
    sorted((store / "index").iterdir())[2].unlink()
    return segment


def make_process_directory(prefix: str) -> Path:
    """Make a directory that the tests of this process share; it is deleted when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


HOLD_LOCK_PROGRAM = (
    "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1); "
    "print(flush=True); sys.stdin.read()"
)


@contextmanager
def hold_lock(store: Path) -> Iterator[int]:
    """Hold the store's lock in another process, as a running broker does, and yield the id of that process."""
    command = [sys.executable, "-c", HOLD_LOCK_PROGRAM, str(store / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
