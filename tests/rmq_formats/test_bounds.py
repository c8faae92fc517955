"""Compiled code never leaves its buffers: neither what it reads nor what it fills."""

import ctypes
import mmap
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats.commitlog import columns, window
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.commitlog.scan import Records, scan
from rmq_formats.commitlog.segment import Framing, Piece
from rmq_formats.consumequeue.unit import QueueRules
from rmq_formats.indexfile.build import RuleTable, pack_keys
from rmq_formats.properties import PropertyParser
from rmq_formats.release import NEWEST, rules_of
from tests.rmq_formats.builders import a_blank, log_of, reading
from tests.rmq_formats.reference import pack_units
from tests.rmq_formats.strategies import FRAMINGS, I32, mutations, records

BASE = 1 << 40
JIT_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
ANY_NUMBER_OF_TIMES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def hostile_segments(draw: st.DrawFn) -> tuple[bytes, Framing]:
    """Draw records with lengths that lie, damage, and ends of any kind."""
    framing = draw(FRAMINGS)
    some = draw(st.lists(records(), max_size=4))
    raw = bytearray(log_of(some, BASE, framing) + draw(st.sampled_from([b"", bytes(64), a_blank(40, framing)])))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(raw) - 4, 0)))
        raw[at : at + 4] = draw(I32).to_bytes(4, "big", signed=True)
    return draw(mutations(bytes(raw))), framing


def _page_guarded_room(type_: type[np.generic], count: int) -> NDArray[Any]:
    size = count * np.dtype(type_).itemsize
    return at_a_guarded_page(size).view(type_)


def _decode(raw: bytes, framing: Framing, size: int) -> int:
    rows = 0
    rules = RuleTable.of(rules_of((0, NEWEST)))
    for parser in PropertyParser:
        items = scan(reading(raw), 0, len(raw), len(raw), BASE, framing, final=True, window=size)
        for item in items:
            if isinstance(item, Piece):
                continue
            batch, bad = message_batch(item, parser)
            rows += batch.num_rows + len(bad)
            pack_units(item, QueueRules(), with_tags=True)
            for _ in pack_keys(item, rules, with_places=True):
                pass
    return rows


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect by its Linux name")
@given(segment=hostile_segments(), size=st.sampled_from([100, 300, 1 << 16]))
@ANY_NUMBER_OF_TIMES
def test_every_buffer_may_end_at_a_page_without_access(
    monkeypatch: pytest.MonkeyPatch, segment: tuple[bytes, Framing], size: int
) -> None:
    shim = SimpleNamespace(**{**vars(np), "empty": lambda count, type_: _page_guarded_room(type_, count)})
    monkeypatch.setattr(window, "np", shim)
    monkeypatch.setattr(columns, "_room", _page_guarded_room)
    raw, framing = segment
    assert _decode(raw, framing, size) >= 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect by its Linux name")
@given(some=st.lists(records(), min_size=1, max_size=4))
@ANY_NUMBER_OF_TIMES
def test_records_may_stand_at_the_very_end_of_their_buffer(
    monkeypatch: pytest.MonkeyPatch, some: list[MessageRecord]
) -> None:
    monkeypatch.setattr(columns, "_room", _page_guarded_room)
    raw = b"".join(map(encode_record, some))
    buffer = at_a_guarded_page(len(raw))
    buffer[:] = np.frombuffer(raw, np.uint8)
    sizes = np.array([record.total_size for record in some], np.int32)
    positions = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    batch, bad = message_batch(Records(buffer, 0, positions, sizes), PropertyParser.SPLIT)
    assert (batch.column("body").to_pylist(), bad) == ([record.body for record in some], [])


@pytest.mark.skipif(
    not JIT_IS_OFF, reason="without the JIT only, as `make coverage` runs it; a slow test below runs this one"
)
@given(segment=hostile_segments(), size=st.sampled_from([100, 300, 1 << 16]))
@ANY_NUMBER_OF_TIMES
def test_no_index_is_negative_or_too_large(
    monkeypatch: pytest.MonkeyPatch, segment: tuple[bytes, Framing], size: int
) -> None:
    shim = SimpleNamespace(**{**vars(np), "empty": lambda count, type_: guarded(np.empty(count, type_))})
    room = columns._room  # noqa: SLF001 - what the product allocates, with a guard around it
    monkeypatch.setattr(window, "np", shim)
    monkeypatch.setattr(columns, "_room", lambda type_, count: guarded(room(type_, count)))
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
    """Return memory whose last byte is the last one before a page that may not be touched: a segmentation fault."""
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = start + (pages - 1) * mmap.PAGESIZE
    if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(0)):
        raise OSError(ctypes.get_errno(), "mprotect")
    end = (pages - 1) * mmap.PAGESIZE
    return np.frombuffer(memory, np.uint8)[end - size : end]


class Guarded(np.ndarray[Any, np.dtype[Any]]):
    """An array that refuses every index and slice that Python would read as counted from the end, or cut."""

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - whatever numpy takes
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
    return cast("NDArray[Any]", array.view(Guarded))
