"""
Generate large stores from a seed, without a broker, as fast as the disk can write them.

All records of a store have the same size, so a batch of records is a two-dimensional array of bytes, which numpy fills
column by column. Bodies are taken from a pool with precomputed checksums, which is larger than any compressor's window.
Where a reader sorts messages by topic, equal bodies come closer together; so such a recipe asks for distinct bodies.
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
from jobs.rebuild.index import rebuild_index
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK, MAGIC_V1, RECORD
from rmq_formats.commitlog.record import Host, encode_record, new_record
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.store import file_name_of_offset

DIRECTORY = Path(tempfile.gettempdir()) / "rocketmq-lake-benchmark"  # the default of --directory; its stores are reused
_MAX_POOL_BODIES = 8192
_MAX_POOL_BYTES = 256 << 20
_MAX_BATCH_RECORDS = 16384
_MAX_BATCH_BYTES = 64 << 20
_SEGMENT_SIZE = 1 << 30  # a broker's default
_DEFAULT_GEOMETRY = Geometry()
FIRST_TIMESTAMP = 1_760_000_000_000  # ms
_DIGITS = 12
_UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_UNITS_PER_FILE = 300_000
_TAG_A = 2598919  # Java's hash of "TagA"
_KEY = b"order-" + b"0" * _DIGITS
_WORDS = b"order created paid shipped amount customer warehouse status pending total currency EUR item quantity "


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of a generated store."""

    total_bytes: int
    record_size: int  # with all fields
    compressible: bool = False
    topics: int = 8
    queues: int = 4
    segment_size: int = _SEGMENT_SIZE
    seed: int = 4711
    keys: int = 1  # of each message
    distinct_bodies: bool = False  # the pool has a body for each message, and is as large as the log

    @property
    def name(self) -> str:
        """The name of the store's directory, which is different for different bytes."""
        kind = "text" if self.compressible else "random"
        mib, rest = divmod(self.total_bytes, 1 << 20)
        size = str(self.total_bytes) if rest else f"{mib}m"
        segments = "" if self.segment_size == _SEGMENT_SIZE else f"-segments-of-{self.segment_size}"
        keys = f"-{self.keys}keys" if self.keys > 1 else ""
        bodies = "-distinct" if self.distinct_bodies else ""
        return f"{size}-{self.record_size}b-{kind}-{self.topics}x{self.queues}-{self.seed}{segments}{keys}{bodies}"


def make_store(recipe: Recipe, directory: Path) -> Path:
    """Write the log of a store below *directory*, unless it exists; return the root of the store."""
    root = directory / recipe.name
    finished = root / "checkpoint"
    if finished.exists():
        return root
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    _Log(recipe).write(root / "commitlog")
    finished.write_bytes(bytes(4096))
    return root


def compute_offsets(recipe: Recipe) -> NDArray[np.int64]:
    """Return the physical offset of each record of a store."""
    per_segment = (recipe.segment_size - BLANK.size) // recipe.record_size
    numbers = np.arange(recipe.total_bytes // recipe.record_size, dtype=np.int64)
    return numbers // per_segment * recipe.segment_size + numbers % per_segment * recipe.record_size


def make_healthy_store(recipe: Recipe, directory: Path, geometry: Geometry = _DEFAULT_GEOMETRY) -> Path:
    """Write a store with log, queues and index, as after a clean stop, unless it exists; return its root."""
    store = make_store(recipe, directory)
    if not (store / "index").exists():
        add_queues(recipe, store)
        out = directory / "unfinished-index"
        shutil.rmtree(out, ignore_errors=True)
        given = GivenSettings(geometry.hash_slots, geometry.index_num, RELEASE)
        rebuild_index(RebuildIndexRequest(str(store), str(out), given_settings=given), SerialWorkers())
        (out / "installed").mkdir()
        for file in list(out.rglob("*")):
            if file.is_file() and file.name.isdigit():
                file.rename(out / "installed" / file.name)
        (out / "installed").rename(store / "index")  # last, so that a killed call leaves no incomplete index
        shutil.rmtree(out)
    return store


def add_queues(recipe: Recipe, store: Path) -> None:
    """Write the queue files of a generated store."""
    offsets = compute_offsets(recipe)
    numbers = np.arange(offsets.size)
    numbers_in_topic = numbers // recipe.topics
    for topic in range(recipe.topics):
        for queue in range(recipe.queues):
            chosen = (numbers % recipe.topics == topic) & (numbers_in_topic % recipe.queues == queue)
            directory = store / "consumequeue" / f"Bench{topic:03}" / str(queue)
            directory.mkdir(parents=True, exist_ok=True)
            _write_units(directory, 0, offsets[chosen], recipe.record_size)


def make_store_with_recreated_topic(recipe: Recipe, root: Path, earlier: int) -> None:
    """
    Write a store whose only topic was created again after its first *earlier* messages.

    Its queue begins again at 0, and the queue files have only the units of the new topic. The recipe has one topic with
    one queue, and fits into one segment.
    """
    log, path = _Log(recipe), root / "commitlog" / file_name_of_offset(0)
    (root / "commitlog").mkdir(parents=True)
    offsets = compute_offsets(recipe)
    for generation in (np.arange(earlier), np.arange(earlier, offsets.size)):
        for start in range(0, generation.size, _MAX_BATCH_RECORDS):
            some = generation[start : start + _MAX_BATCH_RECORDS]
            offset = int(offsets[some[0]])
            records = log.encode(some - generation[0], offset, FIRST_TIMESTAMP + some // 10)
            _write_at(path, recipe.segment_size, offset, records.data)
    queue = root / "consumequeue" / "Bench000" / "0"
    queue.mkdir(parents=True)
    _write_units(queue, 0, offsets[earlier:], recipe.record_size)
    (root / "checkpoint").write_bytes(bytes(4096))


class LiveStore:
    """A store of a running broker, whose log and queues grow with each call of `append`."""

    def __init__(self, root: Path, recipe: Recipe) -> None:
        """Create an empty store; the recipe's `total_bytes` is not used."""
        self.root = root
        self.written = 0
        self._recipe = recipe
        self._log = _Log(recipe)
        self._per_segment = (recipe.segment_size - BLANK.size) // recipe.record_size
        (root / "commitlog").mkdir(parents=True)
        (root / "abort").touch()

    def append(self, count: int) -> None:
        """Append records with the current time."""
        while count > 0:
            index = self.written % self._per_segment  # in the segment
            batch = min(count, self._per_segment - index, _MAX_BATCH_RECORDS)
            self._append_batch(np.arange(self.written, self.written + batch, dtype=np.int64), index)
            self.written += batch
            count -= batch

    def _append_batch(self, numbers: NDArray[np.int64], index: int) -> None:
        size = self._recipe.segment_size
        base, position = int(numbers[0]) // self._per_segment * size, index * self._recipe.record_size
        path = self.root / "commitlog" / file_name_of_offset(base)
        now = time.time_ns() // 1_000_000
        _write_at(path, size, position, self._log.encode(numbers, base + position, now).data)
        if index + len(numbers) == self._per_segment:
            end = self._per_segment * self._recipe.record_size
            _write_at(path, size, end, BLANK.pack(size - end, MAGIC_BLANK))
        self._append_units(numbers, base + position)

    def _append_units(self, numbers: NDArray[np.int64], offset: int) -> None:
        recipe = self._recipe
        count = recipe.topics * recipe.queues
        for first_index in range(min(count, len(numbers))):  # of each queue
            chosen = np.arange(first_index, len(numbers), count)
            number_in_topic, topic = divmod(int(numbers[first_index]), recipe.topics)
            directory = self.root / "consumequeue" / f"Bench{topic:03}" / str(number_in_topic % recipe.queues)
            directory.mkdir(parents=True, exist_ok=True)
            first = int(numbers[first_index]) // count
            _write_units(directory, first, offset + chosen * recipe.record_size, recipe.record_size)


def _write_units(directory: Path, first: int, offsets: NDArray[np.int64], record_size: int) -> None:
    """Write consecutive units of one queue, from queue offset *first* on."""
    units = np.empty(len(offsets), _UNIT)
    units["offset"], units["size"], units["tags"] = offsets, record_size, _TAG_A
    for file in range(first // _UNITS_PER_FILE, (first + len(units) - 1) // _UNITS_PER_FILE + 1):
        start = file * _UNITS_PER_FILE
        part = units[max(start - first, 0) : start + _UNITS_PER_FILE - first]
        path = directory / file_name_of_offset(start * _UNIT.itemsize)
        _write_at(path, _UNITS_PER_FILE * _UNIT.itemsize, max(first - start, 0) * _UNIT.itemsize, part.data)


def _write_at(path: Path, size: int, position: int, data: bytes | memoryview) -> None:
    """Write to a position of a file, which gets its full size immediately."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)


class _Log:
    """Encodes the records of a generated log in batches."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        generator = np.random.default_rng(recipe.seed)
        self._topics = [b"Bench%03d" % number for number in range(recipe.topics)]
        empty = self._template(self._topics[0], b"")
        body_size = recipe.record_size - len(empty)
        if body_size < 0:
            raise ValueError(f"record_size {recipe.record_size}: a record without a body has {len(empty)} bytes")
        pool = min(_MAX_POOL_BODIES, max(_MAX_POOL_BYTES // max(body_size, 1), 1))
        count = recipe.total_bytes // recipe.record_size if recipe.distinct_bodies else pool
        self._bodies = _make_bodies(generator, count, body_size, compressible=recipe.compressible)
        self._checksums = np.array([crc32(body) & 0x7FFFFFFF for body in self._bodies], ">i4")
        templates = [self._template(topic, bytes(body_size)) for topic in self._topics]
        self._templates = np.frombuffer(b"".join(templates), np.uint8).reshape(len(templates), -1)
        self._body_start = RECORD[0].size
        properties = templates[0][self._body_start + body_size :]
        self._unique_key_digits = self._body_start + body_size + properties.index(b"UNIQ_KEY\x01") + 9 + 20
        first_key = self._body_start + body_size + properties.index(b"KEYS\x01") + 5
        self._key_digits = [first_key + number * (len(_KEY) + 1) + len(_KEY) - _DIGITS for number in range(recipe.keys)]

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
        """Write all segments; the unused end of the last one is a hole."""
        recipe = self._recipe
        per_segment = (recipe.segment_size - BLANK.size) // recipe.record_size
        total = recipe.total_bytes // recipe.record_size
        batch = min(_MAX_BATCH_RECORDS, max(_MAX_BATCH_BYTES // recipe.record_size, 1))
        for number in range((total + per_segment - 1) // per_segment):
            base_offset = number * recipe.segment_size
            first = number * per_segment
            count = min(per_segment, total - first)
            with (directory / file_name_of_offset(base_offset)).open("wb") as file:
                for start in range(0, count, batch):
                    numbers = np.arange(first + start, first + min(start + batch, count), dtype=np.int64)
                    offset = base_offset + start * recipe.record_size
                    file.write(self.encode(numbers, offset, FIRST_TIMESTAMP + numbers // 10).data)
                if count == per_segment:
                    file.write(BLANK.pack(recipe.segment_size - count * recipe.record_size, MAGIC_BLANK))
                file.truncate(recipe.segment_size)

    def encode(self, numbers: NDArray[np.int64], offset: int, times: NDArray[np.int64] | int) -> NDArray[np.uint8]:
        """Return the records with these numbers and store timestamps; *offset* is that of the first record."""
        recipe = self._recipe
        bodies = numbers % len(self._bodies)  # indices in the pool
        times = np.broadcast_to(times, numbers.shape)
        rows = self._templates[numbers % recipe.topics]
        numbers_in_topic = numbers // recipe.topics
        rows[:, self._body_start : self._body_start + self._bodies.shape[1]] = self._bodies[bodies]
        self._fill(rows, "body_crc", self._checksums[bodies])
        self._fill(rows, "queue_id", (numbers_in_topic % recipe.queues).astype(">i4"))
        self._fill(rows, "queue_offset", (numbers_in_topic // recipe.queues).astype(">i8"))
        self._fill(rows, "physical_offset", (offset + np.arange(len(numbers)) * recipe.record_size).astype(">i8"))
        self._fill(rows, "born_timestamp", (times - 1).astype(">i8"))
        self._fill(rows, "store_timestamp", times.astype(">i8"))
        for column in range(_DIGITS):
            digit = ord("0") + numbers // 10 ** (_DIGITS - 1 - column) % 10
            rows[:, self._unique_key_digits + column] = digit
            for key, start in enumerate(self._key_digits):
                rows[:, start + column] = ord("0") + (numbers * recipe.keys + key) // 10 ** (_DIGITS - 1 - column) % 10
        return rows

    @staticmethod
    def _fill(rows: NDArray[np.uint8], field: str, values: NDArray[np.generic]) -> None:
        start = RECORD[0].offset(field)
        width = values.dtype.itemsize
        rows[:, start : start + width] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _make_bodies(generator: np.random.Generator, count: int, size: int, *, compressible: bool) -> NDArray[np.uint8]:
    if not compressible:
        return generator.integers(0, 256, (count, size), np.uint8)
    words = _WORDS.split()
    chosen = (generator.integers(0, len(words), size // 4 + 1) for _ in range(count))
    texts = (b" ".join([words[number] for number in row])[:size].ljust(size) for row in chosen)
    return np.frombuffer(b"".join(texts), np.uint8).reshape(count, size)
