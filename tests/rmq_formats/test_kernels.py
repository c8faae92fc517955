"""Compiled primitives equal the standard library and the scalar modules, and stay within their buffers."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from rmq_formats.arrays import are_inside
from rmq_formats.commitlog import columns, kernels
from rmq_formats.commitlog import scan as scanning
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.layout import DLEDGER_END_MAGIC, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.commitlog.scan import RawRecords, scan
from rmq_formats.commitlog.segment import Framing, Piece
from rmq_formats.consumequeue.dispatch import UnitRules
from rmq_formats.indexfile.build import RuleTable, pack_keys
from rmq_formats.kernels import text
from rmq_formats.kernels.integers import as_bytes
from rmq_formats.properties import PropertyParser, decode_java_text, java_hash, parse_properties
from rmq_formats.release import NEWEST, make_rules
from tests.rmq_formats.builders import make_blank, make_log, make_reader
from tests.rmq_formats.reference import pack_units
from tests.rmq_formats.strategies import FRAMINGS, I32, mutations, records

# Parts of malformed UTF-8: lead bytes, continuations, surrogates, separators.
_FRAGMENTS = [
    *(b"\x61", b"\x01", b"\x02", b"\x20", b"\x80", b"\xbf", b"\xc0", b"\xc3", b"\xe0", b"\xe0\xa0"),
    *(b"\xe2", b"\xe2\x82", b"\xed", b"\xa0", b"\x9f", b"\xef", b"\xbf\xbd", b"\xf0", b"\xf0\x90"),
    *(b"\xf0\x90\x80", b"\x90", b"\xf4", b"\xf4\x8f", b"\x8f", b"\xf5", b"\xff"),
]
_TEXT_BYTES = st.lists(
    st.one_of(
        st.sampled_from(_FRAGMENTS),
        st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.binary(max_size=4),
    ),
    max_size=24,
).map(b"".join)

_ROW = 64  # the number of bytes that one instruction compares
_PARSERS = pytest.mark.parametrize("parser", list(PropertyParser))


def _machine_code(function: Any) -> Any:  # noqa: ANN401 - numba has no types
    """Return a compiled caller of *function*; without compilation, return the function itself."""

    def call(*arguments: Any) -> Any:  # noqa: ANN401
        return function(*arguments)

    return njit(call)


_NEXT_PROPERTY, _FIND_BELOW, _IS_ASCII, _IS_CLEAN, _COPY_CLEAN, _HASH, _HASH_CHARACTER = map(
    _machine_code,
    (
        text.next_property,
        text.find_byte_below,
        text.is_ascii,
        text.is_valid_utf8,
        text.copy_as_java_text,
        text.hash_text,
        text.hash_character,
    ),
)


def _text_at_an_offset(raw: bytes, around: int = 0) -> tuple[Any, int, int]:
    """Put the text between bytes that would continue it, and *around*, to show that they are not read."""
    before = b"\xe2\x82" * (around + 1)
    return as_bytes(before + raw + b"\x80\x80\x01\x02" * (around + 1)), len(before), len(before) + len(raw)


@given(_TEXT_BYTES)
@example(b"\xed\xa0\x80")
@example(b"\xed\xa0")
@example("\N{REPLACEMENT CHARACTER}".encode())
@example(b"\xc3\xc0")
@example(b"\xe2\xc0\x80\xe2\x82\xc0")
@example(b"\xed\xa0\xc0")
@example(b"\xf0\xc0\xf0\x90\xc0\xf0\x90\x80\xc0")
def test_texts_are_decoded_as_by_java(raw: bytes) -> None:
    """Malformed input is replaced as in Java, and distinguished from text that contains replacement characters."""
    buffer, start, end = _text_at_an_offset(raw)
    expected = decode_java_text(raw).encode()

    assert len(expected) <= text.MAX_TEXT_GROWTH * len(raw)
    target = np.full(len(expected) + 2, 0x5A, np.uint8)

    assert _COPY_CLEAN(buffer, start, end, target, 1) == 1 + len(expected)
    assert target.tobytes() == b"\x5a" + expected + b"\x5a"
    assert bool(_IS_CLEAN(buffer, start, end)) is (raw == expected)
    assert bool(_IS_ASCII(buffer, start, end)) is raw.isascii()


@given(_TEXT_BYTES, _TEXT_BYTES)
@example(b"topic" * _ROW, b"key" * _ROW + b"\xc3\xa9")
@example(b"topic", "\N{GRINNING FACE}".encode())
def test_a_hash_can_continue_that_of_another_text(first: bytes, second: bytes) -> None:
    """An index key is hashed as topic, separator and key, without building the text."""
    for around in (0, _ROW):
        left = _text_at_an_offset(first, around)
        right = _text_at_an_offset(second, around)
        seed = _HASH_CHARACTER(ord("#"), _HASH(*left, 0))

        assert int(_HASH(*right, seed)) == java_hash(f"{decode_java_text(first)}#{decode_java_text(second)}")


def _properties(raw: bytes, parser: PropertyParser, around: int) -> dict[str, str]:
    buffer, at, end = _text_at_an_offset(raw, around)
    found = {}
    seen, bits = at, 0
    while at < end:
        name_start, name_end, start, stop, at, seen, bits = _NEXT_PROPERTY(
            buffer, at, end, text.PROPERTY_PARSER_CODES[parser], seen, bits
        )
        if stop == start:
            assert at == end, "an empty value says that nothing is left"
        else:
            found[decode_java_text(buffer[name_start:name_end].tobytes())] = decode_java_text(
                buffer[start:stop].tobytes()
            )
    return found


@_PARSERS
@given(raw=_TEXT_BYTES)
@example(raw=b"a\x01b\x02" * _ROW + b"c\x01" + b"d" * _ROW)
@example(raw=b"a\x01\x02b\x01c")
@example(raw=b"a\x01b\x01\x01\x02\x01c\x02d\x01\x02e\x02\x02f\x01g\x01h")
def test_properties_equal_those_of_the_parser_of_the_release(parser: PropertyParser, raw: bytes) -> None:
    expected = parse_properties(raw, parser)
    for around in (0, _ROW):
        found = _properties(raw, parser, around)

        assert found == expected
        assert list(found) == list(expected)


@given(st.binary(max_size=3 * _ROW), st.integers(0, _ROW), st.integers(1, 0x7F))
@example(bytes(range(0x41, 0x41 + _ROW)) + b"\x02", 0, 3)
def test_the_next_byte_below_a_limit_is_found(raw: bytes, after: int, limit: int) -> None:
    found = _FIND_BELOW(as_bytes(raw + bytes(after)), 0, len(raw), limit)

    assert found == next((at for at, byte in enumerate(raw) if byte < limit), len(raw))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=6))
def test_a_number_is_inside_if_one_range_contains_it(ranges: list[list[int]]) -> None:
    numbers = np.arange(-1, 32)

    inside = are_inside(numbers, [(start, end) for start, end in ranges])

    assert inside.tolist() == [any(start <= one < end for start, end in ranges) for one in numbers.tolist()]


BASE = 1 << 40
JIT_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
ANY_NUMBER_OF_TIMES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def hostile_segments(draw: st.DrawFn) -> tuple[bytes, Framing]:
    """Draw records with wrong lengths, damage, and ends of any kind."""
    framing = draw(FRAMINGS)
    some = draw(st.lists(records(), max_size=4))
    raw = bytearray(make_log(some, BASE, framing) + draw(st.sampled_from([b"", bytes(64), make_blank(40, framing)])))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(raw) - 4, 0)))
        raw[at : at + 4] = draw(I32).to_bytes(4, "big", signed=True)
    return draw(mutations(bytes(raw))), framing


def _page_guarded_room(type_: type[np.generic], count: int) -> NDArray[Any]:
    return at_a_guarded_page(count * np.dtype(type_).itemsize).view(type_)


def _decode(raw: bytes, framing: Framing, size: int) -> int:
    rows = 0
    rules = RuleTable.from_rules(make_rules((0, NEWEST)))
    for parser in PropertyParser:
        items = scan(make_reader(raw), 0, len(raw), len(raw), BASE, framing, final=True, window=size)
        for item in items:
            if isinstance(item, Piece):
                continue
            batch, bad = message_batch(item, parser)
            rows += batch.num_rows + len(bad)
            pack_units(item, UnitRules(), with_tags=True)
            for _ in pack_keys(item, rules, with_texts=True):
                pass
    return rows


def _numpy_with_bytes_of(room: Callable[[int], NDArray[Any]]) -> SimpleNamespace:
    """Return a module like numpy, with arrays of bytes from *room*."""
    empty = np.empty
    return SimpleNamespace(
        **vars(np) | {"empty": lambda size, type_: room(size) if type_ is np.uint8 else empty(size, type_)}
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect by its Linux name")
@given(segment=hostile_segments(), size=st.sampled_from([100, 300, 1 << 16]))
@ANY_NUMBER_OF_TIMES
def test_no_buffer_is_read_or_written_beyond_its_end(
    monkeypatch: pytest.MonkeyPatch, segment: tuple[bytes, Framing], size: int
) -> None:
    monkeypatch.setattr(scanning, "np", _numpy_with_bytes_of(at_a_guarded_page))
    monkeypatch.setattr(columns, "_allocate", _page_guarded_room)
    raw, framing = segment

    assert _decode(raw, framing, size) >= 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect by its Linux name")
@given(some=st.lists(records(), min_size=1, max_size=4))
@ANY_NUMBER_OF_TIMES
def test_records_at_the_end_of_a_buffer_are_read(monkeypatch: pytest.MonkeyPatch, some: list[MessageRecord]) -> None:
    monkeypatch.setattr(columns, "_allocate", _page_guarded_room)
    raw = b"".join(map(encode_record, some))
    buffer = at_a_guarded_page(len(raw))
    buffer[:] = np.frombuffer(raw, np.uint8)
    sizes = np.array([record.total_size for record in some], np.int32)
    positions = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    batch, bad = message_batch(RawRecords(buffer, 0, positions, sizes), PropertyParser.SPLIT)

    assert batch.column("body").to_pylist() == [record.body for record in some]
    assert bad == []


@pytest.mark.skipif(
    not JIT_IS_OFF, reason="without the JIT only, as `make coverage` runs it; a slow test below runs this one"
)
@given(segment=hostile_segments(), size=st.sampled_from([100, 300, 1 << 16]))
@ANY_NUMBER_OF_TIMES
def test_no_index_is_negative_or_too_large(
    monkeypatch: pytest.MonkeyPatch, segment: tuple[bytes, Framing], size: int
) -> None:
    room = columns._allocate  # noqa: SLF001 - the product's allocations, with a guard
    monkeypatch.setattr(scanning, "np", _numpy_with_bytes_of(lambda size: guarded(np.empty(size, np.uint8))))
    monkeypatch.setattr(columns, "_allocate", lambda type_, count: guarded(room(type_, count)))
    raw, framing = segment

    assert _decode(raw, framing, size) >= 0


@pytest.mark.slow
def test_no_index_is_negative_or_too_large_in_a_process_without_the_jit() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    name = test_no_index_is_negative_or_too_large.__name__
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{name}"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert "1 passed" in result.stdout, result.stdout


_libc = ctypes.CDLL(None, use_errno=True)


def at_a_guarded_page(size: int) -> NDArray[np.uint8]:
    """Return memory that ends at an inaccessible page, so that reads beyond it cause a segmentation fault."""
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = start + (pages - 1) * mmap.PAGESIZE
    if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(0)):
        raise OSError(ctypes.get_errno(), "mprotect")
    end = (pages - 1) * mmap.PAGESIZE
    return np.frombuffer(memory, np.uint8)[end - size : end]


class GuardedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array that refuses negative indexes, and slices that exceed it."""

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - any index of numpy
        self._check(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401
        self._check(key)
        super().__setitem__(key, value)

    def _check(self, key: Any) -> None:  # noqa: ANN401
        if isinstance(key, slice):
            bounds = [bound for bound in (key.start, key.stop) if bound is not None]
        elif isinstance(key, tuple | np.ndarray | type(None)):
            bounds = []
        else:
            bounds = [int(key) + 1] if int(key) >= 0 else [int(key)]
        if any(not 0 <= int(bound) <= len(self) for bound in bounds):
            message = f"{key} of {len(self)}"
            raise IndexError(message)


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    return cast("NDArray[Any]", array.view(GuardedArray))


_ALTERNATIVES: list[tuple[Any, str, tuple[int, ...]]] = [
    (kernels.find_trailing_zeros, "_find_trailing_zeros_in_python", ()),
    (kernels.find_magic, "_find_magic_in_python", ()),
    (kernels.find_end_of_file, "_find_end_of_file_in_python", (40, 0)),
    (kernels.find_end_of_file, "_find_end_of_file_in_python", (40, 48)),
]
_PARTS = [MAGIC_V1, MAGIC_V2, MAGIC_BLANK, DLEDGER_END_MAGIC, 0, 40, 36, 32, 28, 24, 20]


@given(st.lists(st.sampled_from(_PARTS), max_size=12), st.integers(0, 7), st.integers(0, 7))
def test_functions_written_again_for_python_equal_the_compiled_ones(parts: list[int], skipped: int, left: int) -> None:
    data = as_bytes(b"".join(part.to_bytes(4, signed=True) for part in parts) + bytes(8))
    start, end = skipped, max(skipped, data.size - left)

    for function, name, arguments in _ALTERNATIVES:
        expected = function(data, start, end, *arguments)

        assert getattr(kernels, name)(data, start, end, *arguments) == expected
