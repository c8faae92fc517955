"""Random messages in real store classes and in our modules: equal files, and equal decoding of malformed texts."""

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import pytest

from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import MessageRecord, new_record
from rmq_formats.consumequeue.dispatch import SCHEDULE_TOPIC, ExpectedUnit, QueueKind, QueueName
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.properties import decode_java_text, java_hash
from rmq_formats.release import Release, make_rules
from rmq_formats.store import file_name_of_offset
from tests.oracle.judge import (
    DerivedFiles,
    Difference,
    Writer,
    build_with_commands,
    build_with_scalar_modules,
    find_differences,
    find_unfaithful_pieces,
    read_derived_files,
    read_log,
)
from tests.oracle.process import DriverProcess, run_driver
from tests.oracle.releases import Geometry, version_of
from tests.oracle.sessions import ClientMessage, CraftedMessage, DirectMessage, RealStore, open_store
from tests.rmq_formats.builders import make_reader
from tests.rmq_formats.reference import ConsumeQueue, IndexWriter, select

_NOW: Final = 1_795_000_000_000
_LONG: Final = 1 << 63
_FILES: Final = 3000
_MESSAGES_A_ROUND: Final = 2000
_KEYS_A_MESSAGE: Final = 6
_BYTES_A_MESSAGE: Final = 1400
_BODIES: Final = (0, 1, 100, 1000, 4000)
_FILE_SIZES: Final = (8192, 16_384, 65_536, 1 << 20)
_INDEX_ENTRIES: Final = (2, 3, 5, 20, 100, 1000, 20_000)
_HASH_SLOTS: Final = (1, 2, 3, 7, 100, 5000)
_UNITS: Final = (1, 2, 3, 10, 1000)
_LOOKUPS: Final = 40

# Hash 0, the lowest hash, equal hashes; separators, blanks, all planes of Unicode, a lone surrogate.
_WORDS: Final = (
    *("Aa", "BB", "AaAa", "BBBB", "polygenelubricants", "\0", "a", "b#c", "#", "T#TagA", "TagA", "dup"),
    *("\t", "\u00a0", "\u3000", "é", "e\u0301", "ключ", "键", "\U0001f511", "\ud83d", "\udd11x", "x" * 300),
)
_TOPICS: Final = ("A", "B", "топик", "t" * 127, SCHEDULE_TOPIC, "%RETRY%g", "%DLQ%g", "rmq_sys_x")
_FRAGMENTS: Final = ("KEYS", "TAGS", "UNIQ_KEY", "DELAY", "\1", "\2", "\1", "\2", " ", "a", "bb", "3", "Aa", "BB", "é")


Found: TypeAlias = tuple[int, list[str]]  # the number of messages, and the differences of files


# --- the whole store -------------------------------------------------------------------------------------------------


def fuzz_store(driver: DriverProcess, store: Path, seed: int) -> Found:
    """Put random messages and batches with some restarts, and rebuild queues and index files from the log."""
    random = Random(seed)
    geometry = _geometry(random, random.choice(_FILE_SIZES))
    messages = _max_messages(geometry)
    cuts = sorted(random.sample(range(1, messages), min(random.choice((0, 0, 0, 1)), messages - 1)))
    draw = _MessageStream(random, driver.release, geometry)
    stored = 0
    for start, stop in zip([0, *cuts], [*cuts, messages], strict=True):
        with open_store(driver, store, geometry) as opened:
            for answer in opened.put_each(draw.message() for _ in range(stop - start)):
                stored += answer.size > 0
            if version_of(driver.release) >= (4, 1, 0):
                opened.put_batch(DirectMessage(draw.topic(), properties=""), draw.batch())
    log = read_log(store)
    writer = Writer(((0, driver.release),), geometry)
    disk = read_derived_files(store)
    found = [f"log: {offset}" for offset in find_unfaithful_pieces(store)]
    found += _describe("scalar", find_differences(disk, build_with_scalar_modules(log, writer)))
    found += _describe("commands", find_differences(disk, build_with_commands(store, writer)))
    if len(log) < stored:
        found.append(f"log: {len(log)} records of {stored} messages")
    return len(log), found


class _MessageStream:
    def __init__(self, random: Random, release: str, geometry: Geometry) -> None:
        self._random = random
        self._has_ipv6 = version_of(release) >= (4, 6, 0)
        self._bodies = [size for size in _BODIES if size * 2 < geometry.commit_log_file_size]
        self._time = _Clock(random)
        self._number = 0

    def message(self) -> DirectMessage:
        random = self._random
        topic = self.topic()
        born, stored = (self._host(), self._host()) if self._has_ipv6 else ("10.1.2.3", "127.0.0.1")
        return DirectMessage(
            topic,
            random.choice((0, 0, 1, 7)),
            random.randbytes(random.choice(self._bodies)),
            self._properties(may_be_junk=topic != SCHEDULE_TOPIC),
            random.choice((0, 0, 0, 0, 0, 4, 8, 12, 2)),
            flag=random.choice((0, -1, 77)),
            born_host=born,
            store_host=stored,
            store_timestamp=self._time.tick(),
        )

    def topic(self) -> str:
        return self._random.choice(_TOPICS)

    def batch(self) -> list[ClientMessage]:
        random = self._random
        return [ClientMessage("A", b"batched", "TagA", random.choice("abc")) for _ in range(random.choice((1, 2, 5)))]

    def _properties(self, *, may_be_junk: bool) -> str:
        random = self._random
        # In the schedule topic, a delay that is not a number makes brokers skip the rest of the file: see test_crashes.
        if may_be_junk and random.random() < 0.05:
            return "".join(random.choice(_FRAGMENTS) for _ in range(random.randrange(30)))
        self._number += 1
        properties = []
        if random.random() < 0.9:
            properties.append(("UNIQ_KEY", f"{self._number:032X}"))
        if random.random() < 0.8:
            properties.append(("KEYS", _keys(random)))
        if random.random() < 0.5:
            properties.append(("TAGS", random.choice(_WORDS)))
        if random.random() < 0.1:
            properties.append(("DELAY", str(random.choice((-1, 0, 1, 18, 99)))))
        random.shuffle(properties)
        text = "".join(f"{name}\1{value}\2" for name, value in properties)
        return text if random.random() < 0.9 else text[:-1]

    def _host(self) -> str:
        return self._random.choice(("10.1.2.3", "2001:db8::1"))


class _Clock:
    """Store times that mostly advance and sometimes jump."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = _NOW

    def tick(self) -> int:
        random = self._random
        if random.random() < 0.98:
            self._now += random.choice((0, 0, 0, 1, 7, 400))
        else:
            jump = random.choice((-1, -999, -1000, -86_400_000, 1000, 3_600_000, 10**13))
            self._now = random.choice((self._now + jump, _NOW, 0, 1, -1, 1000 * ((1 << 31) + 5)))
        return self._now


def _keys(random: Random) -> str:
    count = random.choice((1, 1, 1, 2, 3, 5, 40)) if random.random() < 0.2 else random.choice((1, 2))
    return random.choice(("", "", " ")) + random.choice((" ", " ", "  ")).join(
        random.choice(_WORDS) if random.random() < 0.5 else f"k{random.randrange(10**6)}" for _ in range(count)
    )


# --- queues and index alone ------------------------------------------------------------------------------------------


def fuzz_dispatch(driver: DriverProcess, store: Path, seed: int) -> Found:
    """
    Dispatch crafted messages to the index service and to the queues, then look up keys.

    Queue offsets repeat, jump or go back, physical offsets repeat, and store times are arbitrary.
    """
    random = Random(seed)
    geometry = _geometry(random, _FILE_SIZES[0])
    release = Release.from_version(driver.release)
    crafted = list(_crafted(random, _max_messages(geometry)))
    writer = Writer(((0, driver.release),), geometry)
    index = IndexWriter(writer.index_geometry, make_rules((0, release)))
    queues: dict[QueueName, ConsumeQueue] = {}
    for message in crafted:
        index.dispatch(_as_record(message))
        name = QueueName(QueueKind.PLAIN, message.topic, message.queue_id)
        queue = queues.setdefault(name, ConsumeQueue(geometry.queue_file_size()))
        places = (message.queue_offset, message.physical_offset, message.size)
        queue.append(ExpectedUnit(name, *places, message.tags_code, message.store_timestamp), release)
    files = [file.encode(release.empty_index_count) for file in index.files]
    with open_store(driver, store, geometry) as opened:
        opened.dispatch_each("index", crafted)
        opened.dispatch_each("queue", crafted)
        found = _fuzz_lookups(random, opened, crafted, files, writer)
    built = {
        f"{name.path}/{file_name_of_offset(at)}": data for name, queue in queues.items() for at, data in queue.files()
    }
    return len(crafted), found + _describe(
        "scalar", find_differences(read_derived_files(store), DerivedFiles(built, files))
    )


def _crafted(random: Random, count: int) -> Iterator[CraftedMessage]:
    clock = _Clock(random)
    offset = random.choice((0, 0, 1 << 40))
    next_offsets = {(topic, queue): random.choice((0, 0, 3, 25)) for topic in _TOPICS[:3] for queue in (0, 5)}
    for number in range(count):
        queue = random.choice(list(next_offsets))
        size = random.choice((1, 91, 100, 5000))
        queue_offset = next_offsets[queue]
        if random.random() < 0.02:
            queue_offset = random.choice((0, queue_offset + 1, queue_offset + 40, max(queue_offset - 2, 0)))
        next_offsets[queue] = queue_offset + 1
        time_of_day = clock.tick()
        yield CraftedMessage(
            queue[0],
            offset if random.random() < 0.93 else max(offset - random.choice((1, 50, 150, 10_000)), 0),
            time_of_day if random.random() < 0.99 else random.randrange(-_LONG, _LONG),
            queue_id=queue[1],
            queue_offset=queue_offset,
            size=size,
            tags_code=random.randrange(-(1 << 31), 1 << 31),
            keys=_remove_surrogates(_keys(random)) if random.random() < 0.8 else "",
            unique_key=f"{number:032X}" if random.random() < 0.9 else None,
            tags=_remove_surrogates(random.choice(_WORDS)) if random.random() < 0.3 else None,
            sys_flag=random.choice((0, 0, 0, 4, 8, 12)),
        )
        offset += random.choice((0, 1, size, size, size, size, size, 10**6))


def _as_record(message: CraftedMessage) -> MessageRecord:
    properties = {"UNIQ_KEY": message.unique_key, "KEYS": message.keys, "TAGS": message.tags}
    return new_record(
        topic=message.topic.encode(),
        magic_code=MAGIC_V1,
        properties="".join(f"{name}\1{value}\2" for name, value in properties.items() if value).encode(),
        physical_offset=message.physical_offset,
        sys_flag=message.sys_flag,
        store_timestamp=message.store_timestamp,
    )


def _fuzz_lookups(
    random: Random, opened: RealStore, crafted: list[CraftedMessage], index_data: list[bytes], writer: Writer
) -> list[str]:
    found = []
    files = [IndexReader(make_reader(data), writer.index_geometry) for data in reversed(index_data)]
    for _ in range(_LOOKUPS):
        message = random.choice(crafted)
        key = random.choice(message.keys.split() or [message.unique_key or "absent"])
        begin, end = sorted(message.store_timestamp + random.choice((-1, 1)) * 10 ** random.randrange(15) for _ in "be")
        begin, end = max(begin, -_LONG), min(end, _LONG - 1)
        limit = random.choice((1, 2, 32, 64))
        theirs = opened.find_offsets(message.topic, key, begin=begin, end=end, limit=limit)
        ours = select(files, f"{message.topic}#{key}", begin, end, limit)
        if theirs != ours:
            found.append(f"lookup: {message.topic}#{key} {begin}..{end} limit {limit}: {theirs} and ours {ours}")
    return found


# --- rounds ----------------------------------------------------------------------------------------------------------

DOORS: Final = {"store": fuzz_store, "dispatch": fuzz_dispatch}


def _geometry(random: Random, commit_log_file_size: int) -> Geometry:
    return Geometry(
        commit_log_file_size, random.choice(_UNITS), random.choice(_HASH_SLOTS), random.choice(_INDEX_ENTRIES)
    )


def _max_messages(geometry: Geometry) -> int:
    """Limit the messages of a round, because each file stays open and mapped, and a process may have few mappings."""
    by_index = _FILES * (geometry.index_entries - 1) // _KEYS_A_MESSAGE
    by_log = _FILES * geometry.commit_log_file_size // _BYTES_A_MESSAGE
    return max(min(_MESSAGES_A_ROUND, by_index, by_log, _FILES * geometry.consume_queue_units), 2)


def _describe(by: str, found: list[Difference]) -> list[str]:
    return [f"{by}: {difference}" for difference in found]


def _remove_surrogates(text: str) -> str:
    """Remove lone surrogates, which UTF-8 cannot encode."""
    return "".join(character for character in text if not "\ud800" <= character <= "\udfff")


_SECONDS = float(os.environ.get("ORACLE_FUZZ_SECONDS", "1"))
_SEED = int(os.environ.get("ORACLE_FUZZ_SEED", "1"))


@pytest.mark.timeout(_SECONDS * 3 + 300)
def test_files_are_equal_for_random_messages(verdict: Callable[[str, str, str], None], release: str) -> None:
    """At least one round per interface, until ORACLE_FUZZ_SECONDS have passed; ORACLE_FUZZ_SEED is the first seed."""
    deadline = time.monotonic() + _SECONDS
    messages = 0
    rounds = ((seed, door) for seed in count(_SEED) for door in DOORS)
    for number, (seed, door) in enumerate(rounds, 1):
        # A process keeps the files of a round open until its end.
        with tempfile.TemporaryDirectory(prefix="oracle-fuzz-") as store, run_driver(release) as driver:
            some, found = DOORS[door](driver, Path(store) / "store", seed)
        assert found == [], f"seed {seed}, door {door}"
        messages += some
        if number >= len(DOORS) and time.monotonic() >= deadline:
            break
    verdict(release, "random messages", f"{messages} messages, all files equal")


# Bytes of each class of UTF-8, and the limits of the classes.
_KINDS = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def _short_sequences() -> Iterator[bytes]:
    for size in range(3):
        yield from map(bytes, product(range(256), repeat=size))
    for size in (3, 4):
        yield from map(bytes, product(_KINDS, repeat=size))


def _random_sequences(count: int) -> Iterator[bytes]:
    source = Random(20261120)
    for _ in range(count):
        text = bytearray("".join(chr(source.choice((65, 0xE9, 0x4E2D, 0x1F600))) for _ in range(8)).encode())
        for _ in range(source.randrange(4)):
            text[source.randrange(len(text))] = source.choice(_KINDS)
        yield bytes(text)
        yield bytes(source.choice(_KINDS) for _ in range(source.randrange(5, 12)))


@pytest.mark.oracle
def test_malformed_utf8_is_decoded_and_hashed_as_by_a_jvm() -> None:
    sequences = [*_short_sequences(), *_random_sequences(100_000)]
    asked = struct.pack(">i", len(sequences)) + b"".join(struct.pack(">i", len(raw)) + raw for raw in sequences)
    command = ["java", str(Path(__file__).with_name("JavaText.java"))]
    answer = subprocess.run(command, input=asked, stdout=subprocess.PIPE, check=True, timeout=300).stdout
    differing, position = [], 0
    for raw in sequences:
        value, units = struct.unpack_from(">ii", answer, position)
        start, position = position + 8, position + 8 + 2 * units
        if (java_hash(decode_java_text(raw)), decode_java_text(raw).encode("utf-16-be")) != (
            value,
            answer[start:position],
        ):
            differing.append(raw.hex())

    assert differing[:20] == []
