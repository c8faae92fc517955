"""What the scalar layer says of a store, for tests to hold the pipeline to."""

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jobs.store.queue_files import stored_queues
from jobs.store.store import list_store
from jobs.store.units import units_of
from rmq_formats.commitlog.framing import detect_framing
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import PieceKind, walk
from rmq_formats.consumequeue.unit import walk_units
from rmq_formats.store import FileKind, classify

_LOG = (FileKind.COMMITLOG, FileKind.DLEDGER_LOG)


def segments_of(store: Path, *directories: str) -> list[Path]:
    files = [path for path in store.rglob("*") if path.is_file()]
    if directories:
        found = [path for path in files if path.parent.name in directories]
    else:
        found = [path for path in files if classify(path.relative_to(store).as_posix()).kind in _LOG]
    return sorted(found, key=lambda path: path.name)


def records_of(segments: list[Path]) -> Iterator[tuple[MessageRecord, bytes]]:
    contents = [path.read_bytes() for path in segments]
    for number, (path, content) in enumerate(zip(segments, contents, strict=True)):
        framing = detect_framing(content)
        base_offset = int(path.name)
        final = any(any(later[:8]) for later in contents[number + 1 :])
        for piece in walk(content, base_offset, framing, final=final):
            if piece.kind is PieceKind.RECORD:
                position = piece.offset - base_offset + framing.header_size
                record = decode_record(content, position)
                yield record, content[position : position + record.total_size]


def units_by_queue(store: Path) -> dict[str, list[list[int]]]:
    """Return the units of each queue after their numbers, as a broker's recorded answers have them."""
    return {
        f"{queue.name.topic}/{queue.name.queue_id}": [
            [number, *map(int, unit)]
            for number, unit in enumerate(units_of(queue, queue.start, queue.written_end()).tolist(), queue.start)
        ]
        for queue in stored_queues(list_store(str(store)))
    }


def log_folders(store: Path) -> list[str]:
    """Return the folders of a log that lies on several paths; a request names them, for any other log none."""
    return [str(path) for path in sorted(store.glob("commitlog-*"))]


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


def folder_of_process(prefix: str) -> Path:
    """Make a folder for what tests of this process share; it is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
