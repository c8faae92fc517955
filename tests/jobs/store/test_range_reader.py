"""Reading a range of a log while a broker writes to it, with damage in it, or with a wrong clock."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Event
from unittest.mock import patch

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.command_line.engine import make_workers
from jobs.console.process import raise_if_stopped
from jobs.launch.engine import LOCAL, count_worker_processes
from jobs.requests.verify import VerifyRequest
from jobs.storage import AnyStorage
from jobs.storage.local import LocalReader, LocalStorage, ReadLimits
from jobs.store import record_places as walking
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import InProcessWorkers
from jobs.verify.run import verify
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Framing, Piece, PieceKind, SegmentBytes
from tests.golden import StoreOf
from tests.rmq_formats.builders import make_log, make_record, make_segment, place_records
from tests.rmq_formats.strategies import FRAMINGS, mutations
from tests.support.meanwhile import DisturbedWorkers
from tests.support.stores import hold_lock

_PAGE = 4096
_SIZE = 1 << 20


@pytest.fixture
def abort(tmp_path: Path) -> None:
    (tmp_path / "abort").touch()


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    raw = make_log([make_record(bytes([65 + number]) * 900) for number in range(20)], 0).ljust(_SIZE, b"\0")
    (tmp_path / f"{0:020d}").write_bytes(raw)
    return raw


@contextmanager
def show_zeros_first(start: int, end: int) -> Iterator[None]:
    """Let the first read of a file return zeros where the broker is about to write."""
    read_into = LocalReader.read_into
    looks = 0

    def read_torn(self: LocalReader, position: int, buffer: memoryview) -> int:
        nonlocal looks
        count = read_into(self, position, buffer)
        if position <= start and end <= position + len(buffer):
            looks += 1
            if looks == 1:
                buffer[start - position : end - position] = bytes(end - start)
        return count

    with patch.object(LocalReader, "read_into", read_torn):
        yield
    assert looks > 0


def reader_of(store: Path) -> RangeReader:
    segment = str(store / f"{0:020d}")
    return RangeReader(Range(segment, 0, _SIZE, 0, _SIZE, starts_anywhere=False, final=False, store_in_use=str(store)))


def read(tmp_path: Path) -> tuple[int, list[PieceKind]]:
    reader = reader_of(tmp_path)
    others = [item.kind for item in reader.pieces() if isinstance(item, Piece)]
    return reader.facts.records, others


@pytest.mark.usefixtures("abort")
@pytest.mark.parametrize("start", [2 * _PAGE - 700, 2 * _PAGE - 1100, 2 * _PAGE - 30])
def test_a_page_that_was_read_before_the_broker_filled_it_is_read_again(log: bytes, tmp_path: Path, start: int) -> None:
    assert any(log[start : 2 * _PAGE])
    with show_zeros_first(start, 2 * _PAGE):
        assert read(tmp_path) == (20, [PieceKind.UNWRITTEN])


@pytest.mark.usefixtures("log")
def test_a_log_is_read_twice_only_if_a_broker_may_be_writing_it(tmp_path: Path, reads: Counter[int]) -> None:
    def bytes_read() -> int:
        reads.clear()

        assert read(tmp_path) == (20, [PieceKind.UNWRITTEN])
        return reads.total()

    once = bytes_read()
    (tmp_path / "abort").touch()
    with_mark = bytes_read()
    (tmp_path / "abort").unlink()
    (tmp_path / "lock").touch()
    with hold_lock(tmp_path):
        with_lock = bytes_read()

    assert once < with_mark == with_lock
    assert bytes_read() == once


@pytest.mark.usefixtures("abort")
def test_bytes_that_remain_invalid_are_damage(log: bytes, tmp_path: Path) -> None:
    damaged = bytearray(log)
    damaged[2 * _PAGE - 1100 : 2 * _PAGE] = bytes(1100)
    (tmp_path / f"{0:020d}").write_bytes(damaged)
    records, others = read(tmp_path)

    assert records < 20
    assert others == [PieceKind.DAMAGE, PieceKind.UNWRITTEN]


@pytest.mark.usefixtures("abort")
@pytest.mark.parametrize("page", [1, 80, 150])
def test_a_page_without_a_checksum_is_also_read_again(tmp_path: Path, page: int) -> None:
    raw = make_log([make_record(properties=b"KEYS\x01" + b"k" * 16_000) for _ in range(40)], 0)
    (tmp_path / f"{0:020d}").write_bytes(raw.ljust(_SIZE, b"\0"))

    assert set(raw[page * _PAGE : (page + 1) * _PAGE]) == set(b"k")

    reader = reader_of(tmp_path)
    with show_zeros_first(page * _PAGE, (page + 1) * _PAGE):
        seen = [
            item.buffer[int(item.positions[0]) : int(item.positions[-1]) + int(item.sizes[-1])].tobytes()
            for item in reader.pieces()
            if isinstance(item, RawRecords)
        ]

    assert raw == b"".join(seen)


_BASE = 1 << 30


def _collect_pieces(raw: bytes, framing: Framing, *, final: bool) -> tuple[object, ...]:
    """Return records, topics, offsets of wrong CRCs, the newest time, other pieces and the end."""
    records = 0
    topics = Counter[str]()
    newest = None
    end = _BASE
    wrong: list[int] = []
    others = []
    for part in walking.walk_pieces(SegmentBytes.from_buffer(raw, _BASE, framing), 0, final=final):
        end = max(end, part.piece.end)  # damage inside a group is yielded before the group
        records += part.record_count
        topics.update(part.topic_counts)
        wrong += part.wrong_crc_offsets
        if part.piece.kind is PieceKind.RECORD:
            newest = part.sample_records[-1].store_timestamp
        else:
            others.append(part.piece)
    return records, topics, wrong, newest, others, end


@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=30),
    framing=FRAMINGS,
    final=st.booleans(),
    sealed=st.booleans(),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_compiled_walk_yields_the_same_pieces_as_the_scalar_one(  # noqa: PLR0913, PLR0917 - a segment and the expectation
    monkeypatch: pytest.MonkeyPatch,
    bodies: list[bytes],
    framing: Framing,
    final: bool,
    sealed: bool,
    data: st.DataObject,
) -> None:
    some = [make_record(body, topic=f"T{number % 3}") for number, body in enumerate(bodies)]
    raw = make_log(some, _BASE, framing)
    raw = (
        make_segment(place_records(some, _BASE), len(raw) + 400, _BASE, sealed=sealed)
        if framing is Framing.PLAIN
        else raw
    )
    raw = data.draw(mutations(raw))
    monkeypatch.setattr(walking, "COMPILED_WALK_MIN_BYTES", len(raw))
    expected = _collect_pieces(raw, framing, final=final)
    monkeypatch.setattr(walking, "COMPILED_WALK_MIN_BYTES", data.draw(st.integers(-1, len(raw))))

    assert _collect_pieces(raw, framing, final=final) == expected


def test_as_many_threads_as_the_width_return_results_in_the_order_of_the_items() -> None:
    together = Barrier(3, timeout=10)

    def work(number: int) -> int:
        together.wait()
        time.sleep(0.001 * (3 - number % 3))
        return number

    assert InProcessWorkers(width=3).map(range(21), work, "") == list(range(21))


def test_the_first_error_in_the_order_of_the_items_is_raised_and_stops_the_other_threads() -> None:
    """The second item fails first; the third, which would never end, stops at its next check."""
    second_failed = Event()
    third_begun = Event()
    stopped = Event()
    begun = list[int]()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            assert second_failed.wait(10)
            assert third_begun.wait(10)
            raise OSError("the first item")
        if number == 1:
            second_failed.set()
            raise OSError("the second item")
        third_begun.set()
        try:
            while True:
                raise_if_stopped()
                time.sleep(0.001)
        finally:
            stopped.set()

    with pytest.raises(OSError, match="the first item"):
        InProcessWorkers(width=3).map(range(20), work, "")

    assert stopped.is_set()
    assert len(begun) < 20


@pytest.mark.slow
@pytest.mark.timeout(100)  # reading the whole file at this rate takes 128 seconds
def test_a_thread_that_waits_for_its_rate_is_stopped_between_two_reads(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(8 << 20))
    slow = LocalStorage(ReadLimits(max_rate=1 << 16))
    begun = Event()

    def work(number: int) -> None:
        if number == 0:
            assert begun.wait(10)
            raise OSError("the first item")
        begun.set()
        with slow.open(str(tmp_path / f"{0:020d}")) as file:
            file.read(0, 8 << 20)

    with pytest.raises(OSError, match="the first item"):
        InProcessWorkers(width=2).map(range(2), work, "")


def test_threads_of_one_process_share_all_of_its_rate(golden: StoreOf) -> None:
    """With a fixed part of the rate for each thread, waiting threads would leave their part unused."""
    limits = ReadLimits(1 << 30)
    storages = list[object]()
    workers = DisturbedWorkers(width=4, before_range=lambda range_: storages.append(range_.storage))
    verify(VerifyRequest(str(golden("b551-base")), read_limits=limits), workers)

    assert {limits} == {storage.read_limits for storage in storages if isinstance(storage, AnyStorage)}


@pytest.mark.parametrize(
    ("command", "cores", "half", "expected"),
    [
        ("verify", 3, False, {"threads": 3}),
        ("ingest", 6, True, {"threads": 3}),
        ("ingest", 16, True, {"threads": 4, "processes": 8}),
        ("ingest", 16, False, {"threads": 4, "processes": 16}),
        ("export", 8, False, {"threads": 1, "processes": 8}),
        ("export", 1, False, {"threads": 1}),
    ],
)
def test_commands_use_processes_on_all_cores_that_the_broker_does_not_use_unless_four_threads_use_them(
    monkeypatch: pytest.MonkeyPatch, command: str, cores: int, half: bool, expected: dict[str, int]
) -> None:
    monkeypatch.setattr("jobs.launch.engine.count_cores", lambda: cores)
    monkeypatch.setattr("jobs.command_line.engine.count_worker_processes", count_worker_processes)
    monkeypatch.setattr("jobs.launch.engine.count_memory", lambda: 64 << 30)
    with click.Context(click.Command(command), info_name=command):
        workers = make_workers(LOCAL, ReadLimits(None) if half else None)

    if isinstance(workers, ProcessWorkers):
        assert expected == {"threads": workers.threads, "processes": workers.width}
    else:
        assert expected == {"threads": workers.width}
