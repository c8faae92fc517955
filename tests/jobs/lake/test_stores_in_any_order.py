"""
Two brokers that receive the same messages, and their copies, replicas, backups and failures, in any order in one lake.

A second decoder reads each log before it is ingested. It predicts the rows of the lake and the consumers' positions.
"""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from jobs.console.result import ExitCode, RequestError
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from tests.rmq_formats.builders import BROKER, STORED
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.lakes import ingest_store, rows_of

DRAWS = 300
STEPS = 16
DOWNTIME_MS = 10_000  # a broker takes longer to start
# total size, magic, CRC, queue, flag, queue offset, physical offset, sysFlag, born time and host, store time and host,
# reconsume times, prepared transaction, size of the body
FIXED = struct.Struct(">iIIiiqqiq4siq4siiqi")
BLANK_MAGIC = 0xCBD43194


class Row(NamedTuple):
    """A record, in the terms of the table `messages`."""

    physical_offset: int
    total_size: int
    queue_offset: int
    store_timestamp: int
    store_host: str
    topic: str
    body: bytes


def decode_log(store: Path) -> Iterator[Row]:
    """Yield the records of a log by its layout, without the code under test."""
    for path in sorted((store / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + FIXED.size <= len(data):
            size, magic, _, _, _, queue_offset, offset, _, _, _, _, stored, host, port, _, _, length = (
                FIXED.unpack_from(data, at)
            )
            if not size or magic == BLANK_MAGIC or at + size > len(data):
                break
            body = data[at + FIXED.size : at + FIXED.size + length]
            place = at + FIXED.size + length
            topic = data[place + 1 : place + 1 + data[place]].decode()
            yield Row(offset, size, queue_offset, stored, f"{'.'.join(map(str, host))}:{port}", topic, body)
            at += size


class Directory(NamedTuple):
    """A directory with a store of a broker; a restored one is another directory at the same path."""

    label: str
    path: Path
    number: int


class World:
    """The brokers, their copies, and what the lake is expected to have of them."""

    def __init__(self, root: Path, seed: int) -> None:
        self._random = Random(seed)
        self._root, self._lake = root, root / "lake"
        self._now = STORED
        self._count = 0
        self._brokers: dict[str, Broker] = {}
        self._directories: list[Directory] = []
        self._copies: list[tuple[Directory, Broker]] = []
        self._replicas: dict[str, Directory] = {}
        self._positions: dict[str, int] = {}
        self._rows: dict[str, list[Row]] = {}  # expected, by label
        self._gaps: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}  # parts that the lake lacks
        self._recorded: dict[str, tuple[int, Directory]] = {}  # expected positions, and the directory they are from
        self.done: list[str] = []
        for label in ("a", "b"):
            self._brokers[label] = Broker(root / label, dispatches=True)
            self._directories.append(self._new_directory(label, root / label))
            self._positions[label] = 1
        self._write()

    def perform(self, steps: int) -> None:
        usual = [self._ingest] * 5 + [self._write] * 3
        rare = [self._write_one, self._copy, self._sync, self._expire, self._restore, self._consume, self._mislabel]
        rare += [self._fail]
        for _ in range(steps):
            step = self._random.choice((*usual, *rare))
            step()
            self._check()
        for directory in (*self._directories, *self._directories[:2]):
            self._ingest(directory)
            self._check()

    def _new_directory(self, label: str, path: Path) -> Directory:
        self._count += 1
        return Directory(label, path, self._count)

    def _write(self) -> None:
        """Write each message to both brokers, in the same millisecond, and with the same unique key."""
        self._count += 1
        self._now += self._random.choice((1, 50, 5_000))
        messages = some_records(self._random.randrange(1, 40), seed=self._count, stored=self._now)
        self._now = messages[-1].store_timestamp
        for label, broker in self._brokers.items():
            host = BROKER._replace(port=BROKER.port + (label == "b"))
            broker.append(message._replace(store_host=host) for message in messages)
            self._move(label)
        self.done.append(f"write {len(messages)}")

    def _write_one(self) -> None:
        self._count += 1
        self._now += 1
        label = self._random.choice("ab")
        host = BROKER._replace(port=BROKER.port + (label == "b"))
        messages = some_records(3, seed=self._count, stored=self._now)
        self._now = messages[-1].store_timestamp
        self._brokers[label].append(message._replace(store_host=host) for message in messages)
        self._move(label)
        self.done.append(f"write 3 to {label}")

    def _consume(self) -> None:
        label = self._random.choice("ab")
        self._move(label)
        self.done.append(f"consume {label}")

    def _move(self, label: str) -> None:
        self._positions[label] += self._random.randrange(1, 9)
        write_position(self._brokers[label].root, self._positions[label])

    def _copy(self) -> None:
        label = self._random.choice("ab")
        path = self._root / f"copy-{label}-{self._count}"
        if path.exists():
            return
        directory = self._new_directory(label, path)
        self._copies.append((directory, self._brokers[label].copied(path)))
        self._directories.append(directory)
        self.done.append(f"copy {label} to {path.name}")

    def _sync(self) -> None:
        """Bring a replica up to date, except for some of the newest messages; its positions may lag as well."""
        label = self._random.choice("ab")
        if label not in self._replicas:
            self._replicas[label] = self._new_directory(label, self._root / f"replica-{label}")
            self._directories.append(self._replicas[label])
        replica = self._replicas[label].path
        lag = self._random.choice((0, 1, 7))
        records = list(decode_log(self._brokers[label].root))
        end = records[max(len(records) - lag, 1) - 1]
        (replica / "commitlog").mkdir(parents=True, exist_ok=True)
        for path in (replica / "commitlog").iterdir():
            path.unlink()
        for path in (self._brokers[label].root / "commitlog").iterdir():
            kept = min(max(end.physical_offset + end.total_size - int(path.name), 0), SEGMENT_SIZE)
            if kept:
                data = path.read_bytes()
                (replica / "commitlog" / path.name).write_bytes(data[:kept] + bytes(len(data) - kept))
        (replica / "abort").touch()
        write_position(replica, max(self._positions[label] - self._random.choice((0, 3)), 1))
        self.done.append(f"sync {replica.name} without {lag}")

    def _expire(self) -> None:
        label = self._random.choice("ab")
        self._brokers[label].expire()
        self.done.append(f"expire {label}")

    def _restore(self) -> None:
        """Replace the directory of a broker by a copy; the broker goes on after it."""
        if not self._copies:
            return
        directory, state = self._random.choice(self._copies)
        label, root = directory.label, self._brokers[directory.label].root
        shutil.rmtree(root)
        self._brokers[label] = state.copied(root)
        self._positions[label] = read_position(root)
        number = next(n for n, one in enumerate(self._directories) if one.path == root)
        self._directories[number] = self._new_directory(label, root)
        self._now += DOWNTIME_MS
        self.done.append(f"restore {label} from {directory.path.name}")

    def _fail(self) -> None:
        """Cut off the end of a broker's log, as a power failure does; the broker goes on there."""
        label = self._random.choice("ab")
        records, broker = list(decode_log(self._brokers[label].root)), self._brokers[label]
        end = records[max(len(records) - self._random.randrange(1, 9), 1) :][0] if len(records) > 1 else None
        if end is None:
            return
        for path in (broker.root / "commitlog").iterdir():
            kept = min(max(end.physical_offset - int(path.name), 0), SEGMENT_SIZE)
            path.write_bytes(path.read_bytes()[:kept] + bytes(SEGMENT_SIZE - kept))
        broker.truncate(end.physical_offset)
        self._now += DOWNTIME_MS
        self.done.append(f"{label} fails at {end.physical_offset}")

    def _mislabel(self) -> None:
        directory = self._random.choice(self._directories)
        other = "ab".replace(directory.label, "")
        if {directory.label, other} <= self._rows.keys():
            # If every message that the lake has of it is deleted, only the other store is known.
            with pytest.raises(RequestError, match=f"as broker {directory.label!r}, so it cannot|is another store"):
                ingest_store(directory.path, self._lake, other)
            self.done.append(f"mislabel {directory.path.name}")

    def _ingest(self, chosen: Directory | None = None) -> None:
        directory = chosen or self._random.choice(self._directories)
        if directory not in self._directories:
            return
        label, log = directory.label, list(decode_log(directory.path))
        self.done.append(f"ingest {directory.path.name}")
        expected = self._predict(directory, log)
        rows = self._rows.get(label, [])
        is_known = bool(rows) and log[0].physical_offset < end_of(rows) and rows[0].physical_offset < end_of(log)
        named = None if is_known and self._random.random() < 0.3 else label

        summary = ingest_store(directory.path, self._lake, named, acknowledge=True)

        self._rows[label] = expected.rows
        self._recorded[label] = expected.recorded
        assert summary.broker == label
        assert (summary.left_out is not None) == expected.is_older_history
        if expected.is_shorter:
            assert (summary.messages, summary.lost_end, summary.exit_code) == (0, None, ExitCode.CLEAN)
            assert any("before what the lake has" in note for note in summary.notes)

    def _predict(self, directory: Directory, log: list[Row]) -> "Prediction":
        position = read_position(directory.path)
        if directory.label not in self._rows:
            return Prediction(log, (position, directory))
        rows, (recorded, source) = self._rows[directory.label], self._recorded[directory.label]
        unchanged = Prediction(rows, (recorded, source))
        start, end = max(rows[0].physical_offset, log[0].physical_offset), min(end_of(rows), end_of(log))
        known = {row.physical_offset: row for row in rows if row.physical_offset >= start}
        gaps = self._gaps[directory.label]
        found = {
            row.physical_offset: row
            for row in log
            if row.physical_offset >= start and not any(first <= row.physical_offset < last for first, last in gaps)
        }
        differs = min((at for at in {*known, *found} if at < end and known.get(at) != found.get(at)), default=None)
        # Messages that the broker lost, and whose place expired before the lake was told, stay in the lake.
        has_newest = found.get(rows[-1].physical_offset) == rows[-1]
        if differs is not None and not has_newest:
            if log[-1].store_timestamp < rows[-1].store_timestamp:
                return unchanged._replace(is_older_history=True)
            kept = [row for row in rows if row.physical_offset < differs]
            gaps[:] = [gap for gap in gaps if gap[0] < differs]
            return Prediction([*kept, *(row for row in log if row.physical_offset >= differs)], (position, directory))
        if end_of(log) < end_of(rows):
            return unchanged._replace(is_shorter=True)
        new = [row for row in log if row.physical_offset >= end_of(rows)]
        if log[0].physical_offset > end_of(rows):
            gaps.append((end_of(rows), log[0].physical_offset))
        is_older = directory != source and position < recorded
        return Prediction([*rows, *new], (recorded, source) if is_older else (position, directory))

    def _check(self) -> None:
        columns = Row._fields
        found: dict[str, list[Row]] = {}
        for row in rows_of(self._lake):
            found.setdefault(row["broker"], []).append(Row(*(row[name] for name in columns)))
        assert found == self._rows, self.done
        positions = {row["broker"]: row["next_offset"] for row in rows_of(self._lake, "consumer_offsets", "run")}
        assert positions == {label: position for label, (position, _) in self._recorded.items()}, self.done
        if self._rows:
            assert len(list_lake_stores(Lake(str(self._lake)))) == len(self._rows), self.done


class Prediction(NamedTuple):
    """The lake of one broker after a run."""

    rows: list[Row]
    recorded: tuple[int, Directory]
    is_shorter: bool = False
    is_older_history: bool = False


def end_of(rows: list[Row]) -> int:
    return rows[-1].physical_offset + rows[-1].total_size


def write_position(store: Path, position: int) -> None:
    (store / "config").mkdir(exist_ok=True)
    content = json.dumps({"offsetTable": {"Orders@group": {"0": position}}})
    (store / "config" / "consumerOffset.json").write_text(content)


def read_position(store: Path) -> int:
    content = json.loads((store / "config" / "consumerOffset.json").read_text())
    position: int = content["offsetTable"]["Orders@group"]["0"]
    return position


@pytest.mark.sample(4, always=["draw36", "draw63", "draw96", "draw222"])
@pytest.mark.parametrize("seed", range(DRAWS), ids=lambda seed: f"draw{seed}")
def test_every_row_of_a_lake_is_right_after_any_order_of_stores(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed)
    try:
        world.perform(STEPS)
    except Exception:
        print("\n".join(world.done))
        raise
