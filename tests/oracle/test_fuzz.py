"""Random messages in real stores and in our modules: equal files and lookups, and equal decoding of malformed texts."""

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Final

import pytest

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.dispatch import SCHEDULE_TOPIC
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.properties import decode_java_text, java_hash, parse_properties
from tests.oracle.judge import (
    Writer,
    build_with_commands,
    build_with_scalar_modules,
    find_differences,
    find_unfaithful_pieces,
    read_derived_files,
    read_log,
)
from tests.oracle.process import DriverProcess, run_driver
from tests.oracle.releases import Geometry, on_releases, version_of
from tests.oracle.sessions import ClientMessage, DirectMessage, RealStore, open_store
from tests.oracle.verdicts import verdict
from tests.rmq_formats.builders import make_reader
from tests.rmq_formats.reference import select

_NOW: Final = 1_795_000_000_000
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


# --- random messages -------------------------------------------------------------------------------------------------


def fuzz_store(driver: DriverProcess, store: Path, seed: int) -> tuple[int, list[str]]:
    """
    Put random messages and batches with some restarts, rebuild queues and index files from the log, and look up keys.

    Return the number of messages, and the differences.
    """
    random = Random(seed)
    geometry = Geometry(*(random.choice(sizes) for sizes in (_FILE_SIZES, _UNITS, _HASH_SLOTS, _INDEX_ENTRIES)))
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
    made = build_with_scalar_modules(log, writer)
    found += [f"scalar: {difference}" for difference in find_differences(disk, made)]
    found += [f"commands: {difference}" for difference in find_differences(disk, build_with_commands(store, writer))]
    with open_store(driver, store, geometry) as opened:
        found += _find_different_lookups(random, opened, log, made.index_files, writer)
    if len(log) < stored:
        found.append(f"log: {len(log)} records of {stored} messages")
    return len(log), found


class _MessageStream:
    def __init__(self, random: Random, release: str, geometry: Geometry) -> None:
        self._random = random
        self._has_ipv6 = version_of(release) >= (4, 6, 0)
        self._bodies = [size for size in _BODIES if size * 2 < geometry.commit_log_file_size]
        self._times = _store_times(random)
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
            store_timestamp=next(self._times),
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


def _store_times(random: Random) -> Iterator[int]:
    """Yield store times that mostly advance and sometimes jump."""
    now = _NOW
    while True:
        if random.random() < 0.98:
            now += random.choice((0, 0, 0, 1, 7, 400))
        else:
            jump = random.choice((-1, -999, -1000, -86_400_000, 1000, 3_600_000, 10**13))
            now = random.choice((now + jump, _NOW, 0, 1, -1, 1000 * ((1 << 31) + 5)))
        yield now


def _keys(random: Random) -> str:
    count = random.choice((1, 1, 1, 2, 3, 5, 40)) if random.random() < 0.2 else random.choice((1, 2))
    return random.choice(("", "", " ")) + random.choice((" ", " ", "  ")).join(
        random.choice(_WORDS) if random.random() < 0.5 else f"k{random.randrange(10**6)}" for _ in range(count)
    )


def _find_different_lookups(
    random: Random, opened: RealStore, log: list[MessageRecord], index_data: list[bytes], writer: Writer
) -> Iterator[str]:
    _, release = writer.rules[-1]
    files = [IndexReader(make_reader(data), writer.index_geometry) for data in reversed(index_data)]
    for record in random.choices(log, k=_LOOKUPS):
        properties = parse_properties(record.properties_raw, release.property_parser)
        key = random.choice(properties.get("KEYS", "").split() or [properties.get("UNIQ_KEY", "absent")])
        begin, end = sorted(record.store_timestamp + random.choice((-1, 1)) * 10 ** random.randrange(15) for _ in "be")
        limit = random.choice((1, 2, 32, 64))
        theirs = opened.find_offsets(record.topic, key, begin=begin, end=end, limit=limit)
        ours = select(files, f"{record.topic}#{key}", begin, end, limit)
        if theirs != ours:
            yield f"lookup: {record.topic}#{key} {begin}..{end} limit {limit}: {theirs} and ours {ours}"


# --- rounds ----------------------------------------------------------------------------------------------------------


def _max_messages(geometry: Geometry) -> int:
    """Limit the messages of a round, because each file stays open and mapped, and a process may have few mappings."""
    by_index = _FILES * (geometry.index_entries - 1) // _KEYS_A_MESSAGE
    by_log = _FILES * geometry.commit_log_file_size // _BYTES_A_MESSAGE
    return max(min(_MESSAGES_A_ROUND, by_index, by_log, _FILES * geometry.consume_queue_units), 2)


_SECONDS = float(os.environ.get("ORACLE_FUZZ_SECONDS", "1"))
_SEED = int(os.environ.get("ORACLE_FUZZ_SEED", "1"))


@on_releases(in_every_run="4.9.8")
@pytest.mark.timeout(_SECONDS * 3 + 300)
def test_files_are_equal_for_random_messages(release: str) -> None:
    """Repeat rounds until ORACLE_FUZZ_SECONDS have passed; ORACLE_FUZZ_SEED is the first seed."""
    deadline = time.monotonic() + _SECONDS
    messages = 0
    for seed in count(_SEED):
        # A process keeps the files of a round open until its end.
        with tempfile.TemporaryDirectory(prefix="oracle-fuzz-") as store, run_driver(release) as driver:
            some, found = fuzz_store(driver, Path(store) / "store", seed)

        assert found == [], f"seed {seed}"
        messages += some
        if time.monotonic() >= deadline:
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
