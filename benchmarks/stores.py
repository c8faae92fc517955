"""
Large stores made from a seed, at the speed of the disk: real records, in real files, without a broker.

Every record of a store has one size, so that a batch of them is a table of bytes whose columns are filled by numpy.
Bodies come from a pool whose checksums are known; the pool is larger than any compressor's window.
"""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benchmarks.broker import RELEASE
from jobs.products.index.settings import GivenSettings
from jobs.rebuild.index import RebuildIndexRequest, rebuild_index
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK, MAGIC_V1, RECORD
from rmq_formats.commitlog.record import Host, encode_record, new_record
from rmq_formats.store import file_name_of_offset

FOLDER = Path(tempfile.gettempdir()) / "rocketmq-lake-benchmark"  # where stores are kept, unless one is named
_POOL = 8192  # bodies, and at most so many bytes of them
_POOL_BYTES = 256 << 20
_BATCH = 16384  # records, and at most so many bytes of them
_BATCH_BYTES = 64 << 20
_SEGMENT_SIZE = 1 << 30  # of a broker that nobody configured
_START = 1_760_000_000_000  # ms
_DIGITS = 12
_UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_QUEUE_UNITS = 300_000  # in a file
_TAG_A = 2598919  # Java's hash of the tag
_KEY = b"order-" + b"0" * _DIGITS
_WORDS = b"order created paid shipped amount customer warehouse status pending total currency EUR item quantity "


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a store is made of."""

    total_bytes: int
    record_size: int  # of the whole record
    compressible: bool = False
    topics: int = 8
    queues: int = 4
    segment_size: int = _SEGMENT_SIZE
    seed: int = 4711
    keys: int = 1  # of each message

    @property
    def name(self) -> str:
        """A name that differs where the bytes do."""
        kind = "text" if self.compressible else "random"
        mib, rest = divmod(self.total_bytes, 1 << 20)
        size = str(self.total_bytes) if rest else f"{mib}m"
        segments = "" if self.segment_size == _SEGMENT_SIZE else f"-segments-of-{self.segment_size}"
        keys = f"-{self.keys}keys" if self.keys > 1 else ""
        return f"{size}-{self.record_size}b-{kind}-{self.topics}x{self.queues}-{self.seed}{segments}{keys}"


def make_store(recipe: Recipe, folder: Path) -> Path:
    """Write the store below *folder*, unless it is there, and return its root."""
    root = folder / recipe.name
    finished = root / "checkpoint"
    if finished.exists():
        return root
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    _Log(recipe).write(root / "commitlog")
    finished.write_bytes(bytes(4096))
    return root


def offsets_of(recipe: Recipe) -> NDArray[np.int64]:
    """Return where each record of a recipe's log stands."""
    per_segment = (recipe.segment_size - BLANK.size) // recipe.record_size
    numbers = np.arange(recipe.total_bytes // recipe.record_size, dtype=np.int64)
    return numbers // per_segment * recipe.segment_size + numbers % per_segment * recipe.record_size


def make_healthy_store(recipe: Recipe, folder: Path) -> Path:
    """Write a store with its queues and its index, unless it exists, as a broker that was stopped leaves it."""
    store = make_store(recipe, folder)
    if not (store / "index").exists():
        add_queues(recipe, store)
        out = folder / "index-of-healthy-store"
        shutil.rmtree(out, ignore_errors=True)
        rebuild_index(RebuildIndexRequest(str(store), str(out), GivenSettings(release=RELEASE)), SerialWorkers())
        (store / "index").mkdir()
        for file in out.rglob("*"):
            if file.is_file() and file.name.isdigit():
                file.rename(store / "index" / file.name)
        shutil.rmtree(out)
    return store


def add_queues(recipe: Recipe, store: Path) -> None:
    """Write the queue files of a store's log."""
    offsets = offsets_of(recipe)
    numbers = np.arange(offsets.size)
    of_topic = numbers // recipe.topics
    for topic in range(recipe.topics):
        for queue in range(recipe.queues):
            chosen = (numbers % recipe.topics == topic) & (of_topic % recipe.queues == queue)
            folder = store / "consumequeue" / f"Bench{topic:03}" / str(queue)
            folder.mkdir(parents=True, exist_ok=True)
            _write_units(folder, 0, offsets[chosen], recipe.record_size)


class LiveStore:
    """A store that grows as fast as is asked: log and queues, as a broker writes them that is at work."""

    def __init__(self, root: Path, recipe: Recipe) -> None:
        """Begin a store; the recipe's total counts for nothing."""
        self.root = root
        self.written = 0
        self._recipe = recipe
        self._log = _Log(recipe)
        self._per_segment = (recipe.segment_size - BLANK.size) // recipe.record_size
        (root / "commitlog").mkdir(parents=True)
        (root / "abort").touch()

    def append(self, count: int) -> None:
        """Append so many records, stored now."""
        while count > 0:
            at = self.written % self._per_segment
            some = min(count, self._per_segment - at, _BATCH)
            self._append(np.arange(self.written, self.written + some, dtype=np.int64), at)
            self.written += some
            count -= some

    def _append(self, numbers: NDArray[np.int64], at: int) -> None:
        size = self._recipe.segment_size
        base, position = int(numbers[0]) // self._per_segment * size, at * self._recipe.record_size
        path = self.root / "commitlog" / file_name_of_offset(base)
        _write_at(path, size, position, self._log.rows(numbers, base + position, time.time_ns() // 1_000_000).data)
        if at + len(numbers) == self._per_segment:
            end = self._per_segment * self._recipe.record_size
            _write_at(path, size, end, BLANK.pack(size - end, MAGIC_BLANK))
        self._append_units(numbers, base + position)

    def _append_units(self, numbers: NDArray[np.int64], offset: int) -> None:
        recipe = self._recipe
        count = recipe.topics * recipe.queues
        for of_queue in range(min(count, len(numbers))):
            chosen = np.arange(of_queue, len(numbers), count)
            of_topic, topic = divmod(int(numbers[of_queue]), recipe.topics)
            folder = self.root / "consumequeue" / f"Bench{topic:03}" / str(of_topic % recipe.queues)
            folder.mkdir(parents=True, exist_ok=True)
            first = int(numbers[of_queue]) // count
            _write_units(folder, first, offset + chosen * recipe.record_size, recipe.record_size)


def _write_units(folder: Path, first: int, offsets: NDArray[np.int64], record_size: int) -> None:
    """Write units of one queue, the first of them at queue offset *first*."""
    units = np.empty(len(offsets), _UNIT)
    units["offset"], units["size"], units["tags"] = offsets, record_size, _TAG_A
    for file in range(first // _QUEUE_UNITS, (first + len(units) - 1) // _QUEUE_UNITS + 1):
        start = file * _QUEUE_UNITS
        part = units[max(start - first, 0) : start + _QUEUE_UNITS - first]
        path = folder / file_name_of_offset(start * _UNIT.itemsize)
        _write_at(path, _QUEUE_UNITS * _UNIT.itemsize, max(first - start, 0) * _UNIT.itemsize, part.data)


def _write_at(path: Path, size: int, position: int, data: bytes | memoryview) -> None:
    """Write into a file that has its full size from the start."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)


class _Log:
    """The log of a recipe, batch by batch."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        random = np.random.default_rng(recipe.seed)
        self._topics = [b"Bench%03d" % number for number in range(recipe.topics)]
        empty = self._template(self._topics[0], b"")
        body_size = recipe.record_size - len(empty)
        if body_size < 0:
            raise ValueError(f"a record of {recipe.record_size} bytes is smaller than its {len(empty)} bytes of fields")
        self._bodies = _bodies(random, body_size, compressible=recipe.compressible)
        self._checksums = np.array([crc32(body) & 0x7FFFFFFF for body in self._bodies], ">i4")
        templates = [self._template(topic, bytes(body_size)) for topic in self._topics]
        self._templates = np.frombuffer(b"".join(templates), np.uint8).reshape(len(templates), -1)
        self._body_at = RECORD[0].size
        properties = templates[0][self._body_at + body_size :]
        self._unique_at = self._body_at + body_size + properties.index(b"UNIQ_KEY\x01") + 9 + 20
        first_key = self._body_at + body_size + properties.index(b"KEYS\x01") + 5
        self._keys_at = [first_key + number * (len(_KEY) + 1) + len(_KEY) - _DIGITS for number in range(recipe.keys)]

    def _template(self, topic: bytes, body: bytes) -> bytes:
        digits = b"0" * _DIGITS
        properties = (
            b"KEYS\x01" + b" ".join([_KEY] * self._recipe.keys) + b"\x02UNIQ_KEY\x010A0000078C3C18B4AAC2" + digits
            + b"\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        )  # fmt: skip
        return encode_record(
            new_record(
                topic=topic,
                magic_code=MAGIC_V1,
                body=body,
                properties=properties,
                born_host=Host(bytes([10, 0, 0, 7]), 51234),
                store_host=Host(bytes([10, 0, 0, 1]), 10911),
            )
        )

    def write(self, directory: Path) -> None:
        """Write whole segments; only the last one may be open, its rest unwritten."""
        recipe = self._recipe
        per_segment = (recipe.segment_size - BLANK.size) // recipe.record_size
        total = recipe.total_bytes // recipe.record_size
        batch = min(_BATCH, max(_BATCH_BYTES // recipe.record_size, 1))
        for number in range((total + per_segment - 1) // per_segment):
            base_offset = number * recipe.segment_size
            first = number * per_segment
            count = min(per_segment, total - first)
            with (directory / file_name_of_offset(base_offset)).open("wb") as file:
                for start in range(0, count, batch):
                    numbers = np.arange(first + start, first + min(start + batch, count), dtype=np.int64)
                    offset = base_offset + start * recipe.record_size
                    file.write(self.rows(numbers, offset, _START + numbers // 10).data)
                if count == per_segment:
                    file.write(BLANK.pack(recipe.segment_size - count * recipe.record_size, MAGIC_BLANK))
                file.truncate(recipe.segment_size)

    def rows(self, numbers: NDArray[np.int64], offset: int, times: NDArray[np.int64] | int) -> NDArray[np.uint8]:
        """Return records by their numbers, stored at *times*, the first of them at *offset*."""
        recipe = self._recipe
        pooled = numbers % len(self._bodies)
        times = np.broadcast_to(times, numbers.shape)
        rows = self._templates[numbers % recipe.topics]
        of_topic = numbers // recipe.topics
        rows[:, self._body_at : self._body_at + self._bodies.shape[1]] = self._bodies[pooled]
        self._put(rows, "body_crc", self._checksums[pooled])
        self._put(rows, "queue_id", (of_topic % recipe.queues).astype(">i4"))
        self._put(rows, "queue_offset", (of_topic // recipe.queues).astype(">i8"))
        self._put(rows, "physical_offset", (offset + np.arange(len(numbers)) * recipe.record_size).astype(">i8"))
        self._put(rows, "born_timestamp", (times - 1).astype(">i8"))
        self._put(rows, "store_timestamp", times.astype(">i8"))
        for column in range(_DIGITS):
            digit = ord("0") + numbers // 10 ** (_DIGITS - 1 - column) % 10
            rows[:, self._unique_at + column] = digit
            for key, at in enumerate(self._keys_at):
                rows[:, at + column] = ord("0") + (numbers * recipe.keys + key) // 10 ** (_DIGITS - 1 - column) % 10
        return rows

    @staticmethod
    def _put(rows: NDArray[np.uint8], field: str, values: NDArray[np.generic]) -> None:
        start = RECORD[0].offset(field)
        width = values.dtype.itemsize
        rows[:, start : start + width] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _bodies(random: np.random.Generator, size: int, *, compressible: bool) -> NDArray[np.uint8]:
    pool = min(_POOL, max(_POOL_BYTES // max(size, 1), 1))
    if not compressible:
        return random.integers(0, 256, (pool, size), np.uint8)
    words = _WORDS.split()
    chosen = random.integers(0, len(words), (pool, size // 4 + 1))
    texts = [b" ".join(words[number] for number in row)[:size].ljust(size) for row in chosen]
    return np.frombuffer(b"".join(texts), np.uint8).reshape(pool, size)
