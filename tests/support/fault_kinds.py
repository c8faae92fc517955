"""
All faults that tests can plant in a store.

Each of the `KINDS` chooses a random place. `faults.txt` has those of the page of faults, each at a fixed place of one
store. `STARTS` are the faults on which real brokers were started.
"""

import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

from jobs.store.request import GivenSettings
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import HOST_BITS, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, RECORD
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import ENTRY, HEADER, Geometry
from rmq_formats.properties import CRC_SIZE
from rmq_formats.store import CHECKPOINT, decode_checkpoint, encode_checkpoint, file_name_of_offset
from tests.golden import SITUATIONS, unpack, unpack_situation
from tests.support.commands import overwrite
from tests.support.stores import flip, make_process_directory

STORE = "b533-base"  # of the page of faults
GEOMETRY = Geometry(100, 20)
SEGMENT, QUEUE_FILE = 16384, 200  # bytes of a file in the golden stores
SETTINGS = GivenSettings(*GEOMETRY, "5.3.3", conf=BrokerConf(consume_queue_size=QUEUE_FILE))
NO_PLACE = (IndexError, KeyError, ValueError, struct.error, FileNotFoundError)  # raised by a fault that finds no place
LOG, QUEUE, INDEX, _TIMER = "commitlog/*", "consumequeue/*/*/*", "index/*", "timerlog/*"
_TIMER_DONOR = "b551-timer"


@cache
def _unpacked() -> Path:
    return make_process_directory("faults-")


@cache
def golden(name: str) -> Path:
    return unpack_situation(name, _unpacked()) / "store" if name in SITUATIONS else unpack(name, _unpacked())


# --- random faults: `KINDS` ---


class LocatedRecord(NamedTuple):
    """A record of a store, and its location."""

    path: Path
    position: int
    record: MessageRecord


def records_in(store: Path) -> list[LocatedRecord]:
    """Return the records of each segment, up to the first invalid one."""
    found = []
    for path in sorted(store.glob(LOG)):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">ii", data, at)
            if magic not in {MAGIC_V1, MAGIC_V2} or not MIN_RECORD_SIZE <= size <= len(data) - at:
                break
            try:
                found.append(LocatedRecord(path, at, decode_record(data, at)))
            except FormatError:
                break
            at += size
    return found


class Target:
    """A store to damage."""

    def __init__(self, root: Path, random: Random, donor: Path) -> None:
        self.root, self.random, self.donor = root, random, donor

    def files(self, pattern: str, root: Path | None = None) -> list[Path]:
        return sorted(path for path in (root or self.root).glob(pattern) if path.is_file())

    def choose_file(self, pattern: str) -> Path:
        """Return a random file; if there is none, raise IndexError, because the fault finds no place."""
        return self.random.choice(self.files(pattern))

    def flip(self, path: Path, at: int) -> None:
        flip(path, at, 1 << self.random.randrange(8))

    def swap(self, first: Path, second: Path) -> None:
        first_data, second_data = first.read_bytes(), second.read_bytes()
        first.write_bytes(second_data)
        second.write_bytes(first_data)

    def foreign(self, path: Path, pattern: str, donor: Path | None = None) -> None:
        """Overwrite *path* with a file of another store."""
        same = [
            other for other in self.files(pattern, donor or self.donor) if other.stat().st_size == path.stat().st_size
        ]
        path.write_bytes(self.random.choice([other for other in same if any(other.read_bytes())]).read_bytes())


PlantFault = Callable[[Target], object]
Change = Callable[[Target, Path], object]


def _in(pattern: str, change: Change) -> PlantFault:
    return lambda target: change(target, target.choose_file(pattern))


# --- faults of any file


def cut(target: Target, path: Path) -> None:
    os.truncate(path, target.random.randrange(path.stat().st_size))


def _break_off(target: Target, path: Path) -> None:
    """Truncate a file, and rename it like an unfinished copy of rsync."""
    cut(target, path)
    path.rename(path.with_name(f".{path.name}.Xq3fZa"))


def shift(target: Target, path: Path) -> None:
    """Insert some bytes into a file without changing its length."""
    data, at = path.read_bytes(), target.random.randrange(path.stat().st_size)
    new = target.random.randbytes(target.random.choice((1, 4, 20)))
    path.write_bytes((data[:at] + new + data[at:])[: len(data)])


def _misdirect(target: Target, path: Path) -> None:
    """Overwrite a page of a file with another page of it, like a misdirected write of a disk."""
    page, data = target.random.choice((512, 4096)), path.read_bytes()
    source, place = target.random.sample(range(0, len(data), page), 2)
    overwrite(path, place, data[source : source + page][: len(data) - place])


def zero_page_of(target: Target, path: Path) -> None:
    page, data = target.random.choice((512, 4096)), path.read_bytes()
    at = target.random.choice([at for at in range(0, len(data), page) if any(data[at : at + page])])
    overwrite(path, at, bytes(min(page, len(data) - at)))


def _random_page_of(target: Target, path: Path) -> None:
    page, size = target.random.choice((512, 4096)), path.stat().st_size
    at = target.random.randrange(0, size, page)
    overwrite(path, at, target.random.randbytes(min(page, size - at)))


def _free_name(target: Target, path: Path, steps: Sequence[int]) -> Path:
    """Return the path some steps after a file; if it exists, raise IndexError."""
    free = path.with_name(str(int(path.name) + target.random.choice(steps)).zfill(len(path.name)))
    if free.exists():
        raise IndexError
    return free


def _rename(*steps: int) -> Change:
    return lambda target, path: path.rename(_free_name(target, path, steps))


def _copy(target: Target, path: Path) -> None:
    if not any(path.read_bytes()):
        raise IndexError
    size = 1 if path.parent.name == "index" else path.stat().st_size
    shutil.copyfile(path, _free_name(target, path, (size, 2 * size)))


_OF_ANY_FILE: dict[str, Change] = {
    "cut": cut,
    "lengthen": lambda target, path: os.truncate(path, path.stat().st_size + target.random.choice((1, 20, 4096))),
    "break-off": _break_off, "shift": shift, "copy": _copy,
    "empty": lambda target, path: path.write_bytes(bytes(target.random.choice((0, path.stat().st_size)))),  # or zeroed
    "delete": lambda _, path: path.unlink(),
}  # fmt: skip


def _swap(pattern: str) -> PlantFault:
    return lambda target: target.swap(*target.random.sample(target.files(pattern), 2))


def _foreign(pattern: str) -> PlantFault:
    return _in(pattern, lambda target, path: target.foreign(path, pattern))


def _delete_directory(pattern: str) -> PlantFault:
    """Return a fault that deletes one directory; the directories of queues may include a database."""
    return lambda target: shutil.rmtree(
        target.random.choice(sorted(path for path in target.root.glob(pattern) if path.is_dir()))
    )


# --- faults of records


def units(data: bytes) -> list[bytes]:
    return [data[at : at + UNIT.size] for at in range(0, len(data), UNIT.size)]


def _flip_in_part(name: str) -> PlantFault:
    def plant(target: Target) -> None:
        path, at, record = target.random.choice(records_in(target.root))
        start, size = _part_ranges(record)[name]
        target.flip(path, at + start + target.random.randrange(size))

    return plant


def _part_ranges(record: MessageRecord) -> dict[str, tuple[int, int]]:
    layout = RECORD[record.sys_flag & HOST_BITS]
    places = {field.name: (layout.offset(field.name), field.size) for field in layout.describe_fields()}
    lengths = {
        "body": len(record.body), "topic_length": 1 if record.magic_code & 0xFFFFFFFF == MAGIC_V1 & 0xFFFFFFFF else 2,
        "topic": len(record.topic_raw), "properties_length": 2, "properties": len(record.properties_raw),
    }  # fmt: skip
    at = layout.size
    for name, size in lengths.items():
        places[name] = (at, size)
        at += size
    properties_at, _ = places["properties"]
    for name in ("KEYS", "UNIQ_KEY", "TAGS"):
        start = (b"\x02" + record.properties_raw).find(f"\x02{name}\x01".encode())
        if start >= 0:
            value = start + len(name) + 1
            end = record.properties_raw.find(b"\x02", value)
            places[name] = (properties_at + value, (end if end >= 0 else len(record.properties_raw)) - value)
    return {name: place for name, place in places.items() if place[1] > 0} | {"head": (0, 48)}


def _zero_page(target: Target) -> None:
    path, at, _ = target.random.choice(records_in(target.root))
    page = target.random.choice((512, 4096))
    overwrite(path, at // page * page, bytes(page))


def _zero_properties(target: Target) -> None:
    path, at, record = target.random.choice(records_in(target.root))
    zeros = target.random.randrange(1, len(record.properties_raw))
    overwrite(path, at + record.total_size - zeros, bytes(zeros))


def _lose_property_crc(target: Target) -> None:
    path, at, record = target.random.choice(records_in(target.root))
    if b"__CRC32#" not in record.properties_raw:
        raise IndexError
    overwrite(path, at + record.total_size - CRC_SIZE, bytes(CRC_SIZE))


def _random_tail(target: Target) -> None:
    path, at, record = records_in(target.root)[-1]
    room = path.stat().st_size - at - record.total_size - 8
    stale = path.read_bytes()[: max(room, 0)] if target.random.random() < 0.5 else target.random.randbytes(max(room, 0))
    overwrite(path, at + record.total_size, stale)


def _overwrite_newest(content: Callable[[Random, int], bytes]) -> PlantFault:
    """Return a fault that overwrites the newest records, up to the end of their file."""

    def plant(target: Target) -> None:
        path, at, _ = records_in(target.root)[-target.random.randrange(1, 6)]
        overwrite(path, at, content(target.random, path.stat().st_size - at))

    return plant


def _older_segment(target: Target) -> None:
    """Restore a segment to an earlier state with fewer records."""
    path, at, _ = target.random.choice(records_in(target.root))
    overwrite(path, at, bytes(path.stat().st_size - at))


# --- faults of units and of index entries


def _swap_queues(target: Target) -> None:
    first = target.choose_file(QUEUE)
    files = target.files(f"consumequeue/*/*/{first.name}")
    others = [path for path in files if path.read_bytes() != first.read_bytes()]
    target.swap(first, target.random.choice(others))


def _older_queue(target: Target, path: Path) -> None:
    """Restore a queue file to an earlier state with fewer units."""
    data = path.read_bytes()
    count = len(data.rstrip(b"\0")) // UNIT.size + 1
    overwrite(path, (at := target.random.randrange(count) * UNIT.size), bytes(len(data) - at))


def _unit_bit(target: Target, path: Path) -> None:
    written = [number for number, unit in enumerate(units(path.read_bytes())) if any(unit)]
    target.flip(path, target.random.choice(written) * UNIT.size + target.random.randrange(UNIT.size))


def _double_unit(_: Target, path: Path) -> None:
    data = path.read_bytes()
    end = -(-len(data.rstrip(b"\0")) // UNIT.size) * UNIT.size
    if not UNIT.size <= end < len(data):
        raise IndexError
    overwrite(path, end, data[end - UNIT.size : end])


def _index_bit(target: Target, path: Path) -> None:
    count = struct.unpack_from(">i", path.read_bytes(), HEADER.size - 4)[0]
    if count < 2 or target.random.random() < 0.3:
        target.flip(path, target.random.randrange(HEADER.size))
    else:
        entry = GEOMETRY.entry_position(target.random.randrange(1, count))
        target.flip(path, entry + target.random.randrange(ENTRY.size))


def _break_positions(target: Target) -> None:
    path = target.choose_file(target.random.choice(("config/consumerOffset.json", "config/topics.json")))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


KINDS: dict[str, PlantFault] = {
    **{
        f"{name}-{part}": _in(pattern, change)
        for name, change in _OF_ANY_FILE.items()
        for part, pattern in (("segment", LOG), ("queue", QUEUE), ("index", INDEX))
    },
    **{f"bit-{name.lower().replace('_', '-')}": _flip_in_part(name) for name in
       ("body", "topic", "KEYS", "TAGS", "properties", "queue_offset", "queue_id", "head")},
    "bit-unique-key": _flip_in_part("UNIQ_KEY"), "zero-page": _zero_page, "zero-properties": _zero_properties,
    "lose-property-crc": _lose_property_crc, "random-tail": _random_tail, "older-segment": _older_segment,
    "zero-newest": _overwrite_newest(lambda _, size: bytes(size)), "random-newest": _overwrite_newest(Random.randbytes),
    "foreign-segment": _foreign(LOG), "foreign-queue": _foreign(QUEUE), "foreign-index": _foreign(INDEX),
    "swap-segments": _swap(LOG), "swap-queues": _swap_queues, "swap-index": _swap(INDEX),
    "older-queue": _in(QUEUE, _older_queue),
    "rename-segment": _in(LOG, _rename(SEGMENT, 7 * SEGMENT, 10**9 * SEGMENT)),
    "rename-queue": _in(QUEUE, _rename(100, 200, 600)), "rename-index": _in(INDEX, _rename(10, 20, 60)),
    "unit-bit": _in(QUEUE, _unit_bit), "double-unit": _in(QUEUE, _double_unit),
    "unit-high-bit": _in(QUEUE, lambda _, path: flip(path, 0, 1 << 7)), "index-bit": _in(INDEX, _index_bit),
    "slot-bit": _in(
        INDEX, lambda target, path: target.flip(path, HEADER.size + target.random.randrange(GEOMETRY.hash_slots * 4))
    ), "zero-queue-page": _in(QUEUE, zero_page_of),
    "zero-index-page": _in(INDEX, zero_page_of), "random-page": _in(LOG, _random_page_of),
    "random-queue-page": _in(QUEUE, _random_page_of), "random-index-page": _in(INDEX, _random_page_of),
    "misdirected-log": _in(LOG, _misdirect), "misdirected-queue": _in(QUEUE, _misdirect),
    "misdirected-index": _in(INDEX, _misdirect), "cut-checkpoint": _in("checkpoint", cut),
    "bit-checkpoint": _in("checkpoint", lambda target, path: target.flip(path, target.random.randrange(24))),
    "foreign-checkpoint": _foreign("checkpoint"), "break-positions": _break_positions,
    "timer-bit": _in(_TIMER, lambda target, path: target.flip(path, target.random.randrange(52))),
    "foreign-timer": _in(_TIMER, lambda target, path: target.foreign(path, _TIMER, golden(_TIMER_DONOR))),
    "abort": lambda target: (target.root / "abort").touch(), "delete-queues": _delete_directory("consumequeue"),
    "delete-queue-folder": _delete_directory("consumequeue/*/*"), "delete-topic": _delete_directory("consumequeue/*"),
    "delete-indexes": _delete_directory("index"),
}  # fmt: skip


# --- faults of the page: `faults.txt` ---


OTHER_USER = 65534


class Part(Enum):
    """The part of a store that a fault damages."""

    LOG = "log"
    QUEUES = "queues"
    INDEX = "index"
    CHECKPOINT = "checkpoint"


DAMAGED_MESSAGE = 17  # its queue offset in the first queue of T1; it is in the second of four segments
DAMAGED_UNIT = 12


class Fault(NamedTuple):
    """One fault: the damaged part, and the change of a file or directory."""

    part: Part
    name: str
    change: str  # a name of `_CHANGES`, the path, and the size or position
    unseen: str = ""  # why it is not reported as damage

    @property
    def file(self) -> str:
        return self.change.split()[1]

    def plant(self, store: Path) -> None:
        change, file, *numbers = self.change.split()
        _CHANGES[change](store / file, *map(int, numbers))


_CHANGES: dict[str, Callable[..., object]] = {
    "cut": os.truncate,
    "deny": lambda path: path.chmod(0),
    "flip": flip,
    "keep": Path.exists,
    "rm": lambda path: shutil.rmtree(path) if path.is_dir() else path.unlink(),
}
NO_FAULT = Fault(Part.LOG, "no fault", f"keep commitlog/{SEGMENT:020d}", "this store is undamaged")
NO_CHECKSUM = (
    "Not detectable, because no checksum covers the changed bit, and neither queues nor index files depend on it"
)
_REASONS = {
    "no checksum": NO_CHECKSUM,
    "new checkpoint": "Not reported as damage, because a broker creates a new checkpoint at its next start",
}


def read_faults() -> list[Fault]:
    """Return the faults of the page; each change of a field inverts the lowest bit of its last or first byte."""
    lines = Path(__file__).with_name("faults.txt").read_text(encoding="utf-8").splitlines()
    cells = ([*line.split(" | "), ""] for line in lines)
    return [Fault(Part(part), name, change, _REASONS.get(reason, "")) for part, name, change, reason, *_ in cells]


def find_damaged_record(store: Path) -> MessageRecord:
    in_queue = (record for _, _, record in records_in(store) if (record.topic, record.queue_id) == ("T1", 0))
    return next(record for record in in_queue if record.queue_offset == DAMAGED_MESSAGE)


@contextmanager
def as_other_user(work: Path, *, denied: bool) -> Iterator[None]:
    """Act as another user if access is *denied*, because root may read everything."""
    if not denied or os.geteuid() != 0:
        yield
        return
    for path in [work, *work.rglob("*")]:
        os.chown(path, OTHER_USER, OTHER_USER)
        if path.is_file() and stat.S_IMODE(path.stat().st_mode):
            path.chmod(0o644)
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


# --- faults of starts: `STARTS`, at positions of records of the healthy store ----------------------------------------

MESSAGES, FIRST_TIME, STEP_MS = 160, 1_795_000_000_000, 1000  # of the stores on which brokers are started
_PAGE = 4096
_BODY_AT = 88


class StartTarget(NamedTuple):
    """A copy to damage, and the records and segments of the healthy store."""

    target: Target
    records: Sequence[LocatedRecord]
    segments: Sequence[Path]

    def segment(self, index: int) -> Path:
        return self.target.root / "commitlog" / self.segments[index].name

    def queue(self, number: int = 0, name: str = "T1/0") -> Path:
        return self.target.files(f"consumequeue/{name}/*")[number]


StartDamage = Callable[[StartTarget], object]


def plant_start_faults(name: str, healthy: Path, store: Path, donor: Path) -> Path:
    """Damage a copy of a store with the faults of a name, in order; KIND:SEED is a random fault."""
    shutil.copytree(healthy, store)
    for part in name.split(" + ") if name != NO_DAMAGE else ():
        kind, _, seed = part.partition(":")
        if seed.isdigit():
            with suppress(*NO_PLACE):
                KINDS[kind](Target(store, Random(int(seed)), donor))
        else:
            STARTS[part](StartTarget(Target(store, Random(1), donor), records_in(healthy), sorted(healthy.glob(LOG))))
    return store


def _change(
    index: int,
    place: Callable[[MessageRecord], int] | int,
    content: Callable[[MessageRecord], bytes] | int,
    number: int = 1,
) -> StartDamage:
    """Flip a bit, or overwrite bytes, at a place in the record of that *number* of a segment."""

    def damage(start: StartTarget) -> None:
        at, record = [(at, record) for path, at, record in start.records if path == start.segments[index]][number]
        at += place if isinstance(place, int) else place(record)
        if isinstance(content, int):
            flip(start.segment(index), at, 1 << content)
        else:
            overwrite(start.segment(index), at, content(record))

    return damage


def _zeros_to_the_end(record: MessageRecord) -> bytes:
    return bytes(SEGMENT - record.physical_offset % SEGMENT)


def _preallocate(size: int) -> StartDamage:
    return lambda start: (
        start.segment(-1)
        .with_name(file_name_of_offset(int(start.segments[-1].name) + SEGMENT))
        .write_bytes(bytes(size))
    )


def _resize(file: Callable[[StartTarget], Path], by: int) -> StartDamage:
    def damage(start: StartTarget) -> None:
        data = file(start).read_bytes()
        file(start).write_bytes(data[:by] if by < 0 else data + bytes(by))

    return damage


def _killed(part: float | None) -> StartDamage:
    """Make the store look like that of a killed broker, with the checkpoint of an earlier *part* of its messages."""

    def damage(start: StartTarget) -> None:
        path = start.target.root / "checkpoint"
        (start.target.root / "abort").write_bytes(b"1")
        if part is not None and path.exists():
            time = FIRST_TIME + int(part * MESSAGES) * STEP_MS
            known = decode_checkpoint(path.read_bytes()[: CHECKPOINT.size])
            path.write_bytes(encode_checkpoint(known._replace(
                physical_timestamp=time, logic_timestamp=time, index_timestamp=time, dispatched_offset=0
            )))  # fmt: skip

    return damage


NO_DAMAGE, KILLED, STALE = "no damage", "killed", "killed, stale checkpoint"
_RECORD_BITS = {  # the position of a byte, and the bit; not the highest of a size, which may exceed memory
    "body": (_BODY_AT + 20, 0), "magic": (7, 0), "total size, low": (3, 0), "total size, high": (1, 4),
    "physical offset": (33, 0), "queue offset": (25, 0), "body length": (87, 2),
}  # fmt: skip
LOG_DAMAGE: dict[str, StartDamage] = {
    **{f"page of zeros in the {words} segment": _change(index, 0, lambda _: bytes(_PAGE)) for index, words in
       ((0, "first"), (3, "early"), (-3, "third-to-last"), (-2, "second-to-last"), (-1, "last"))},
    **{f"bit in a record: {words}": _change(-1, *place) for words, place in _RECORD_BITS.items()},
    "bit in a body, third-to-last segment": _change(-3, _BODY_AT + 3, 0),
    "bit in properties": _change(-1, lambda record: record.total_size - 3, 0),
    "zeros at the end of properties": _change(-1, lambda record: record.total_size - 12, lambda _: bytes(12)),
    "zeros to the end of the second-to-last segment": _change(-2, 0, _zeros_to_the_end),
    "zeros to the end of the last segment": _change(-1, 0, _zeros_to_the_end),
    "bit in a blank: size": _change(-2, attrgetter("total_size"), 4, number=-1),
    "bit in a blank: magic": _change(-2, lambda record: record.total_size + 4, 0, number=-1),
    "last record: properties zeroed": _change(-1, lambda record: record.total_size - 20, lambda _: bytes(20), -1),
    "last record: zeroed from its body on": _change(
        -1, _BODY_AT + 100, lambda record: bytes(record.total_size - _BODY_AT - 100), -1
    ),
    "random bytes after the end": _change(-1, attrgetter("total_size"), lambda _: Random(1).randbytes(900), -1),
    "middle segment missing": lambda start: start.segment(3).unlink(),
    "first segment missing": lambda start: start.segment(0).unlink(),
    "last segment missing": lambda start: start.segment(-1).unlink(),
    "preallocated segment": _preallocate(SEGMENT),
    "empty last segment": _preallocate(0),
    "segment cut": _resize(lambda start: start.segment(2), -4000),
    "last segment cut": _resize(lambda start: start.segment(-1), -12_000),
    "segment longer": _resize(lambda start: start.segment(2), 12),
    "stray file in the log": lambda start: start.segment(0).with_name("copy.bak").write_bytes(b"x"),
}  # fmt: skip
OTHER_DAMAGE: dict[str, StartDamage] = {
    "queue file cut": _resize(StartTarget.queue, -40),
    "queue file longer": _resize(StartTarget.queue, 20),
    "empty last queue file": lambda start: start.queue(-1).with_name(
        file_name_of_offset(int(start.queue(-1).name) + 20 * UNIT.size)
    ).write_bytes(b""),
    "one queue gone": lambda start: shutil.rmtree(start.target.root / "consumequeue/T1/0"),
    "all queues gone": lambda start: shutil.rmtree(start.target.root / "consumequeue"),
    "queue files swapped": lambda start: start.target.swap(start.queue(), start.queue(0, "T2/1")),
    "stray file in a queue": lambda start: start.queue().with_name("copy").write_bytes(b"x"),
    "one index file gone": lambda start: start.target.files(INDEX)[1].unlink(),
    "checkpoint gone": lambda start: (start.target.root / "checkpoint").unlink(missing_ok=True),
    "checkpoint of zeros": lambda start: (start.target.root / "checkpoint").write_bytes(bytes(_PAGE)),
}  # fmt: skip
STARTS = {**LOG_DAMAGE, **OTHER_DAMAGE, KILLED: _killed(None), STALE: _killed(0.4)}
