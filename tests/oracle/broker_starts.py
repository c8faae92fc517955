"""Stores that are damaged on purpose, and what a real broker of their release does when it starts with one."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from rmq_formats.commitlog.record import MessageRecord, decode_record, has_right_body_crc
from rmq_formats.errors import FormatError
from rmq_formats.store import CHECKPOINT, decode_checkpoint, encode_checkpoint, name_of_offset
from tests.oracle.judge import records
from tests.oracle.process import DriverProcess
from tests.oracle.sessions import DirectMessage, StoreRefusedError, open_store
from tests.oracle.settings import Geometry

RELEASES = ("4.9.8", "5.3.3", "5.5.0")
GEOMETRY = Geometry(commit_log_file_size=16_384, consume_queue_units=20, hash_slots=100, index_entries=60)
_MESSAGES = 160
_PAGE = 4096
_BODY = 700
_FIRST_TIME = 1_795_000_000_000
_STEP_MS = 1000
_BODY_AT = 88
_QUEUES = 2


class Facts(NamedTuple):
    """A healthy store, and what is in its log."""

    root: Path
    log: tuple[MessageRecord, ...]

    def in_segment(self, base: int, number: int = 1) -> MessageRecord:
        inside = [one for one in self.log if base <= one.physical_offset < base + GEOMETRY.commit_log_file_size]
        return inside[number]

    @property
    def bases(self) -> list[int]:
        return sorted(int(path.name) for path in (self.root / "commitlog").iterdir())


Plant = Callable[[Path, Facts], object]


class Damage(NamedTuple):
    """One thing that happens to a store."""

    name: str
    plant: Plant


class Seen(NamedTuple):
    """What a broker did."""

    started: bool
    log_end: int | None = None
    deleted: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


class Row(NamedTuple):
    """One start, as docs/internals/faults.md tells of it."""

    case: str
    release: str
    started: bool
    lost: int
    deleted: int

    @property
    def is_drawn(self) -> bool:
        """Whether its faults are drawn: each has its seed in its name."""
        return bool(re.search(r":\d", self.case))


@dataclass(frozen=True, slots=True)
class Case:
    """Damages planted together."""

    damages: tuple[Damage, ...]

    @property
    def name(self) -> str:
        return " + ".join(one.name for one in self.damages) or "no damage"

    def planted(self, facts: Facts, target: Path) -> Path:
        shutil.copytree(facts.root, target)
        for damage in self.damages:
            damage.plant(target, facts)
        return target


def make_store(driver: DriverProcess, root: Path) -> Facts:
    """Have a release write a store and close it."""
    with open_store(driver, root, GEOMETRY) as opened:
        messages = (
            DirectMessage(
                f"T{number % 3}", number % _QUEUES, f"{number:05}".encode() * (_BODY // 5),
                f"UNIQ_KEY\1u{number}\2KEYS\1k{number}\2TAGS\1Tag{number % 3}\2",
                store_timestamp=_FIRST_TIME + number * _STEP_MS,
            )
            for number in range(_MESSAGES)
        )  # fmt: skip
        opened.put_all(messages)
    return Facts(root, tuple(records(root)))


def start(driver: DriverProcess, store: Path) -> Seen:
    before = files_of(store)
    try:
        with open_store(driver, store, GEOMETRY) as opened:
            log_end = opened.log_end()
            left = files_of(store)
            return Seen(started=True, log_end=log_end, deleted=before - left, left=left)
    except StoreRefusedError:
        left = files_of(store)
        return Seen(started=False, deleted=before - left, left=left)


def files_of(store: Path) -> frozenset[str]:
    return frozenset(
        path.relative_to(store).as_posix()
        for folder in ("commitlog", "consumequeue", "index")
        for path in (store / folder).rglob("*")
        if path.is_file() and (folder != "commitlog" or path.read_bytes().strip(b"\0") or not path.stat().st_size)
    )


def whole_messages(store: Path, facts: Facts) -> list[int]:
    """List the offsets of the healthy store's messages that this one has whole."""
    found = []
    for record in facts.log:
        base = record.physical_offset // GEOMETRY.commit_log_file_size * GEOMETRY.commit_log_file_size
        path = store / "commitlog" / name_of_offset(base)
        if path.exists():
            try:
                there = decode_record(path.read_bytes(), record.physical_offset - base, record.physical_offset)
            except FormatError:
                continue
            is_half = record is facts.log[-1] and there.properties_raw.endswith(b"\0")
            if has_right_body_crc(there) and not is_half:
                found.append(record.physical_offset)
    return found


# --- damages ---------------------------------------------------------------------------------------------------------


def _segment(store: Path, offset: int) -> tuple[Path, int]:
    base, position = divmod(offset, GEOMETRY.commit_log_file_size)
    return store / "commitlog" / name_of_offset(base * GEOMETRY.commit_log_file_size), position


def _write(store: Path, offset: int, data: bytes) -> None:
    path, position = _segment(store, offset)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _flip(store: Path, offset: int, bit: int = 0) -> None:
    path, position = _segment(store, offset)
    _write(store, offset, bytes([path.read_bytes()[position] ^ 1 << bit]))


def _at(which: int, change: Callable[[Path, MessageRecord], object]) -> Plant:
    return lambda store, facts: change(store, facts.in_segment(facts.bases[which]))


def _zero_tail(store: Path, record: MessageRecord) -> None:
    path, position = _segment(store, record.physical_offset)
    _write(store, record.physical_offset, bytes(path.stat().st_size - position))


def _blank_of(facts: Facts, base: int) -> int:
    inside = [one for one in facts.log if base <= one.physical_offset < base + GEOMETRY.commit_log_file_size]
    return inside[-1].end_offset


def _of_log() -> Iterator[Damage]:
    for which, words in ((0, "first"), (3, "early"), (-3, "third last"), (-2, "second last"), (-1, "last")):
        yield Damage(
            f"page of zeros in the {words} segment",
            _at(which, lambda store, record: _write(store, record.physical_offset, bytes(_PAGE))),
        )
    for words, at, bit in (
        ("body", _BODY_AT + 20, 0),
        ("magic", 7, 0),
        ("total size, low", 3, 0),
        ("total size, high", 1, 4),  # more than the file has; a gigabyte may be more than the broker has memory
        ("physical offset", 33, 0),
        ("queue offset", 25, 0),
        ("body length", 87, 2),
    ):
        yield Damage(
            f"bit in a record: {words}",
            _at(-1, lambda store, record, at=at, bit=bit: _flip(store, record.physical_offset + at, bit)),  # type: ignore[misc]
        )
    yield Damage(
        "bit in a body, third last segment",
        _at(-3, lambda store, record: _flip(store, record.physical_offset + _BODY_AT + 3)),
    )
    yield Damage(
        "bit in properties", _at(-1, lambda store, record: _flip(store, record.end_offset - 3)),
    )  # fmt: skip
    yield Damage(
        "zeros at the end of properties",
        _at(-1, lambda store, record: _write(store, record.end_offset - 12, bytes(12))),
    )
    yield Damage("zeros to the end of the second last segment", _at(-2, _zero_tail))
    yield Damage("zeros to the end of the last segment", _at(-1, _zero_tail))
    yield Damage("bit in a blank: size", lambda store, facts: _flip(store, _blank_of(facts, facts.bases[-2]), 4))
    yield Damage("bit in a blank: magic", lambda store, facts: _flip(store, _blank_of(facts, facts.bases[-2]) + 4))
    yield Damage(
        "last record: properties zeroed", lambda store, facts: _write(store, facts.log[-1].end_offset - 20, bytes(20))
    )
    yield Damage(
        "last record: zeroed from its body on",
        lambda store, facts: _write(
            store, facts.log[-1].physical_offset + _BODY_AT + 100, bytes(facts.log[-1].total_size - _BODY_AT - 100)
        ),
    )
    yield Damage(
        "random bytes after the end",
        lambda store, facts: _write(store, facts.log[-1].end_offset, Random(1).randbytes(900)),
    )
    yield Damage("middle segment missing", lambda store, facts: _segment(store, facts.bases[3])[0].unlink())
    yield Damage("first segment missing", lambda store, facts: _segment(store, facts.bases[0])[0].unlink())
    yield Damage("last segment missing", lambda store, facts: _segment(store, facts.bases[-1])[0].unlink())
    yield Damage("segment made ahead of need", lambda store, facts: _ahead(store, facts, GEOMETRY.commit_log_file_size))
    yield Damage("empty last segment", lambda store, facts: _ahead(store, facts, 0))
    yield Damage("segment cut", lambda store, facts: _resize(_segment(store, facts.bases[2])[0], -4000))
    yield Damage("last segment cut", lambda store, facts: _resize(_segment(store, facts.bases[-1])[0], -12_000))
    yield Damage("segment longer", lambda store, facts: _resize(_segment(store, facts.bases[2])[0], 12))
    yield Damage("stray file in the log", lambda store, _: (store / "commitlog/copy.bak").write_bytes(b"x"))


def _ahead(store: Path, facts: Facts, size: int) -> None:
    base = facts.bases[-1] + GEOMETRY.commit_log_file_size
    (store / "commitlog" / name_of_offset(base)).write_bytes(bytes(size))


def _resize(path: Path, by: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:by] if by < 0 else data + bytes(by))


def _queue_file(store: Path, number: int = 0, topic: str = "T1", queue: int = 0) -> Path:
    return sorted((store / "consumequeue" / topic / str(queue)).iterdir())[number]


def _of_others() -> Iterator[Damage]:
    yield Damage("queue file cut", lambda store, _: _resize(_queue_file(store), -40))
    yield Damage("queue file longer", lambda store, _: _resize(_queue_file(store), 20))
    yield Damage("empty last queue file", lambda store, _: _empty_queue_file(store))
    yield Damage("one queue gone", lambda store, _: shutil.rmtree(store / "consumequeue/T1/0"))
    yield Damage("all queues gone", lambda store, _: shutil.rmtree(store / "consumequeue"))
    yield Damage("queue files swapped", lambda store, _: _swap(_queue_file(store), _queue_file(store, 0, "T2", 1)))
    yield Damage("stray file in a queue", lambda store, _: (_queue_file(store).parent / "copy").write_bytes(b"x"))
    yield Damage("one index file gone", lambda store, _: sorted((store / "index").iterdir())[1].unlink())
    yield Damage("checkpoint gone", lambda store, _: (store / "checkpoint").unlink(missing_ok=True))
    yield Damage("checkpoint of zeros", lambda store, _: (store / "checkpoint").write_bytes(bytes(4096)))


def _empty_queue_file(store: Path) -> None:
    last = _queue_file(store, -1)
    last.with_name(name_of_offset(int(last.name) + GEOMETRY.consume_queue_file_size)).write_bytes(b"")


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _killed(part: float | None) -> Plant:
    """Have the store look killed, its checkpoint as it was after this part of its messages; None: as it is."""

    def plant(store: Path, _: Facts) -> None:
        (store / "abort").write_bytes(b"1")
        if part is not None and (store / "checkpoint").exists():
            time = _FIRST_TIME + int(part * _MESSAGES) * _STEP_MS
            known = decode_checkpoint((store / "checkpoint").read_bytes()[: CHECKPOINT.size])
            stale = known._replace(
                physical_timestamp=time, logic_timestamp=time, index_timestamp=time, dispatched_offset=0
            )
            (store / "checkpoint").write_bytes(encode_checkpoint(stale))

    return plant


KILLED = Damage("killed", _killed(None))
STALE = Damage("killed, stale checkpoint", _killed(0.4))
OF_LOG, OF_OTHERS = tuple(_of_log()), tuple(_of_others())


def single_cases() -> list[Case]:
    """Return each damage alone, in a store that was closed, and in one that was killed."""
    alone = [(), *((one,) for one in (*OF_LOG, *OF_OTHERS))]
    return [Case((KILLED,)), *(Case((*some, *state)) for some in alone for state in ((), (STALE,)))]


def case_of(name: str) -> Case:
    known = {one.name: one for one in (*OF_LOG, *OF_OTHERS, KILLED, STALE)}
    return Case(tuple(known[part] for part in name.split(" + ")))


def mixtures(seed: int, count: int) -> list[Case]:
    random = Random(seed)
    drawn = []
    for _ in range(count):
        some: Sequence[Damage] = random.sample(OF_LOG[:20], random.randrange(1, 3)) + random.sample(OF_OTHERS, 1)
        drawn.append(Case((*some, *random.choice(((), (KILLED,), (STALE,))))))
    return drawn


RECORDED = Path(__file__).with_name("recorded_starts.jsonl")


def record(rows: Sequence[Row]) -> None:
    """Write *rows* down in place of the earlier ones of their kind and release."""
    replaced = {(row.release, row.is_drawn) for row in rows}
    kept = [row for row in recorded() if (row.release, row.is_drawn) not in replaced]
    lines = [json.dumps(row._asdict()) for row in sorted({*kept, *rows})]
    RECORDED.write_text("\n".join(lines) + "\n", encoding="utf-8")


def recorded() -> list[Row]:
    text = RECORDED.read_text(encoding="utf-8") if RECORDED.exists() else ""
    return [Row(**json.loads(line)) for line in text.splitlines()]
