"""Our reading of malformed UTF-8, and our hash, against a real JVM's."""

import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from rmq_formats.hashing import java_hash, java_text

pytestmark = pytest.mark.oracle

# One byte of each kind that UTF-8 distinguishes, and the edges between them.
_KINDS = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def short_sequences() -> Iterator[bytes]:
    for size in range(3):
        yield from map(bytes, product(range(256), repeat=size))
    for size in (3, 4):
        yield from map(bytes, product(_KINDS, repeat=size))


def random_sequences(count: int) -> Iterator[bytes]:
    source = random.Random(20261120)
    for _ in range(count):
        text = bytearray("".join(chr(source.choice((65, 0xE9, 0x4E2D, 0x1F600))) for _ in range(8)).encode())
        for _ in range(source.randrange(4)):
            text[source.randrange(len(text))] = source.choice(_KINDS)
        yield bytes(text)
        yield bytes(source.choice(_KINDS) for _ in range(source.randrange(5, 12)))


def ask_java(sequences: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield hash and UTF-16 units of each sequence as a JVM sees them."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java in PATH")
    question = struct.pack(">i", len(sequences)) + b"".join(struct.pack(">i", len(raw)) + raw for raw in sequences)
    program = Path(__file__).with_name("JavaText.java")
    answer = subprocess.run(
        [java, str(program)], input=question, stdout=subprocess.PIPE, check=True, timeout=300
    ).stdout
    position = 0
    for _ in sequences:
        value, units = struct.unpack_from(">ii", answer, position)
        position += 8
        yield value, answer[position : position + 2 * units]
        position += 2 * units


def test_malformed_utf8_is_read_and_hashed_as_a_jvm_does() -> None:
    """Every short sequence of bytes, and many longer ones."""
    sequences = [*short_sequences(), *random_sequences(100_000)]

    differing = [
        raw.hex()
        for raw, (value, units) in zip(sequences, ask_java(sequences), strict=True)
        if (java_hash(java_text(raw)), java_text(raw).encode("utf-16-be")) != (value, units)
    ]

    assert differing[:20] == []
