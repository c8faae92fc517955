"""The CRC of compiled code is compared with zlib's."""

import importlib
import random
import sys
import zlib
from pathlib import Path

import pytest

from rmq_formats import compiled
from rmq_formats.carryless import _factors
from rmq_formats.crc import crc32
from rmq_formats.kernels.integers import as_bytes


@pytest.mark.parametrize("lengths", [range(600), (4 << 10, (64 << 10) - 1, (64 << 10) + 17)], ids=["short", "long"])
def test_every_length_has_the_same_crc_as_in_zlib(lengths: range | tuple[int, ...]) -> None:
    data = random.Random(7).randbytes(max(lengths) + 3)
    buffer = as_bytes(data)
    for length in lengths:
        assert int(crc32(buffer, 3, 3 + length)) == zlib.crc32(data[3 : 3 + length]), length


def _multiplied(left: int, right: int) -> int:
    """Multiply polynomials over GF(2), as the processor's instruction does."""
    product = 0
    for bit in range(64):
        if right >> bit & 1:
            product ^= left << bit
    return product


def _remainder(data: bytes) -> int:
    return zlib.crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_factors_move_sixteen_bytes_over_those_after_them(steps: int) -> None:
    """What is moved leaves the CRC that the bytes leave with zeros after them; that is all that a fold does."""
    data = random.Random(steps).randbytes(16)
    halves = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
    factors = (factor.constant for factor in _factors(steps).constant)
    low, high = map(_multiplied, halves, factors)
    assert _remainder((low ^ high).to_bytes(16, "little")) == _remainder(data + bytes(16 * steps))


def test_without_numbas_internals_tables_give_the_same_crc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "_CACHE", tmp_path)  # kept code would be that with the multiplication
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "rmq_formats.carryless", None)
        without.delitem(sys.modules, "rmq_formats.crc")
        tables_alone = importlib.import_module("rmq_formats.crc")
    data = random.Random(7).randbytes(1000)

    assert not tables_alone.HAS_MULTIPLICATION
    assert int(tables_alone.crc32(as_bytes(data), 3, 999)) == zlib.crc32(data[3:999])
