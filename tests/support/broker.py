"""A simulated broker for tests: it appends to a store, rolls over, deletes old segments, and crashes."""

import os
import shutil
from bisect import bisect_left
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from random import Random

from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.store import file_name_of_offset
from tests.rmq_formats.builders import STORED, make_record

SEGMENT_SIZE = 16384
QUEUE_FILE_SIZE = 100 * UNIT.size
KEYS = 3  # of each record of `some_records`
TAG_A = 2598919  # Java's hash of the tag of `some_records`


def some_records(count: int, seed: int = 1, stored: int = STORED) -> list[MessageRecord]:
    """Return records of different topics and lengths, with store times one millisecond apart."""
    random = Random(seed)
    return [
        make_record(
            random.randbytes(random.choice((0, 3, 40, 400))),
            topic=random.choice(("Orders", "Payments", "%RETRY%group", "_a")),
            properties={"KEYS": f"order-{seed}-{number}", "UNIQ_KEY": f"{seed:08X}{number:024X}", "TAGS": "TagA"},
            queue_id=random.randrange(4),
            queue_offset=number,
            store_timestamp=stored + number,
        )
        for number in range(count)
    ]


class Broker:
    """Writes a store as a broker does: into preallocated files, each record at the end of the previous one."""

    def __init__(
        self,
        root: Path,
        offset: int = 0,
        segment_size: int = SEGMENT_SIZE,
        history: Path | None = None,
        *,
        dispatches: bool = False,
    ) -> None:
        """
        Start at *offset*; every byte is also written to *history*, whose files are never deleted.

        With *dispatches*, assign queue offsets and write units, and create the `abort` file of a running broker.
        """
        self.root = root
        self.offset = offset
        self._segment_size = segment_size
        self._queues: dict[tuple[str, int], list[int]] = {}  # physical offsets of the records of each queue
        self._dispatches = dispatches
        self._logs = [root / "commitlog", *([history / "commitlog"] if history else [])]
        for log in self._logs:
            log.mkdir(parents=True, exist_ok=True)
        if dispatches:
            (root / "abort").touch()

    def copied(self, root: Path) -> "Broker":
        shutil.copytree(self.root, root)
        other = Broker(root, self.offset, self._segment_size, dispatches=self._dispatches)
        other._queues = deepcopy(self._queues)
        return other

    def append(self, records: Iterable[MessageRecord], *, cut_at: int | None = None) -> list[MessageRecord]:
        written = []
        for record in records:
            left = self._segment_size - self.offset % self._segment_size
            if record.total_size + BLANK.size > left:
                self.seal()
            queue = self._queues.setdefault((record.topic, record.queue_id), [])
            at = len(queue) if self._dispatches else record.queue_offset
            written.append(record._replace(physical_offset=self.offset, queue_offset=at))
            self._write(encode_record(written[-1])[:cut_at])
            if cut_at is None:
                self.offset = written[-1].end_offset
                if self._dispatches:
                    queue.append(written[-1].physical_offset)
                    self._write_unit(written[-1])
        return written

    def seal(self) -> None:
        left = self._segment_size - self.offset % self._segment_size
        self._write(BLANK.pack(left, MAGIC_BLANK))
        self.offset += left

    def expire(self, segments: int = 1) -> None:
        for path in sorted(self._logs[0].iterdir())[:-1][:segments]:
            path.unlink()

    def delete_queues(self, topic: str) -> None:
        """Delete the queues of a topic; its next message has queue offset 0."""
        shutil.rmtree(self.root / "consumequeue" / topic)
        self._queues = {queue: offsets for queue, offsets in self._queues.items() if queue[0] != topic}

    def truncate(self, offset: int) -> None:
        """Truncate the log as recovery does: later bytes in the same file remain, later files are deleted."""
        for number, log in enumerate(self._logs):
            for path in log.iterdir():
                if int(path.name) > offset:
                    path.unlink()
                elif number and int(path.name) + self._segment_size > offset:
                    os.truncate(path, offset - int(path.name))  # history contains only the current log
                    os.truncate(path, self._segment_size)
        for queue in self._queues.values():
            del queue[bisect_left(queue, offset) :]
        self.offset = offset

    def _write_unit(self, record: MessageRecord) -> None:
        position = record.queue_offset * UNIT.size
        base = position - position % QUEUE_FILE_SIZE
        directory = self.root / "consumequeue" / record.topic / str(record.queue_id)
        directory.mkdir(parents=True, exist_ok=True)
        unit = UNIT.pack(record.physical_offset, record.total_size, TAG_A)
        _write_preallocated(directory / file_name_of_offset(base), QUEUE_FILE_SIZE, position - base, unit)

    def _write(self, data: bytes) -> None:
        base = self.offset - self.offset % self._segment_size
        for log in reversed(self._logs):
            _write_preallocated(log / file_name_of_offset(base), self._segment_size, self.offset - base, data)


def _write_preallocated(path: Path, size: int, position: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)
