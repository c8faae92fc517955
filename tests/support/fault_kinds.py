"""
The table of all faults that tests can plant in a store.

`KINDS` are drawn: each chooses its own place at random. `faults` are those of the page of faults, each in a fixed place
of one store, and `STARTS` those on which real brokers were started.
"""

import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache, partial
from operator import attrgetter, itemgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

from jobs.products.index.settings import GivenSettings
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import HOST_BITS, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, RECORD
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import ENTRY, HEADER, Geometry
from rmq_formats.layout import Layout
from rmq_formats.properties import CRC_SIZE
from rmq_formats.store import CHECKPOINT, decode_checkpoint, encode_checkpoint, file_name_of_offset
from tests.golden import SITUATIONS, unpack, unpack_situation
from tests.support.commands import overwrite
from tests.support.stores import flip, make_process_folder

STORE = "b533-base"  # in which the faults of the page are planted
GEOMETRY = Geometry(100, 20)
SEGMENT, QUEUE_FILE = 16384, 200  # bytes of a file in the golden stores
WANTED = GivenSettings(*GEOMETRY, "5.3.3", conf=BrokerConf(consume_queue_size=QUEUE_FILE))
NO_PLACE = (IndexError, KeyError, ValueError, struct.error, FileNotFoundError)  # raised by a fault that has none
LOG, QUEUE, INDEX, _TIMER = "commitlog/*", "consumequeue/*/*/*", "index/*", "timerlog/*"
_TIMER_DONOR = "b551-timer"


@cache
def _unpacked() -> Path:
    """Return this process's own folder of unpacked golden stores."""
    return make_process_folder("faults-")


@cache
def golden(name: str) -> Path:
    return unpack_situation(name, _unpacked()) / "store" if name in SITUATIONS else unpack(name, _unpacked())


# --- drawn: the table is `KINDS` ---


class Placed(NamedTuple):
    """A record of a store, and its place."""

    path: Path
    position: int
    record: MessageRecord


def records_in(store: Path) -> list[Placed]:
    """Return the records of each segment, up to the first one that is not sound."""
    found = []
    for path in sorted(store.glob(LOG)):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">ii", data, at)
            if magic not in {MAGIC_V1, MAGIC_V2} or not MIN_RECORD_SIZE <= size <= len(data) - at:
                break
            try:
                found.append(Placed(path, at, decode_record(data, at)))
            except FormatError:
                break
            at += size
    return found


class Target:
    """A store that is about to be damaged."""

    def __init__(self, root: Path, random: Random, donor: Path) -> None:
        self.root, self.random, self.donor = root, random, donor

    def files(self, pattern: str, root: Path | None = None) -> list[Path]:
        return sorted(path for path in (root or self.root).glob(pattern) if path.is_file())

    def one(self, pattern: str) -> Path:
        """Return a file; `IndexError` where there is none: then the fault has no place."""
        return self.random.choice(self.files(pattern))

    def flip(self, path: Path, at: int) -> None:
        flip(path, at, 1 << self.random.randrange(8))

    def swap(self, first: Path, second: Path) -> None:
        one, other = first.read_bytes(), second.read_bytes()
        first.write_bytes(other)
        second.write_bytes(one)

    def foreign(self, path: Path, pattern: str, donor: Path | None = None) -> None:
        """Give *path* the content of a file of another store."""
        same = [
            other for other in self.files(pattern, donor or self.donor) if other.stat().st_size == path.stat().st_size
        ]
        path.write_bytes(self.random.choice([one for one in same if any(one.read_bytes())]).read_bytes())


Plant = Callable[[Target], object]
Change = Callable[[Target, Path], object]


def _in(pattern: str, change: Change) -> Plant:
    """Return the fault that changes one file of a kind."""
    return lambda target: change(target, target.one(pattern))


# --- faults of any file


def _cut(target: Target, path: Path) -> None:
    os.truncate(path, target.random.randrange(path.stat().st_size))


def _break_off(target: Target, path: Path) -> None:
    """Cut a file short and give it the name of an unfinished copy of rsync."""
    _cut(target, path)
    path.rename(path.with_name(f".{path.name}.Xq3fZa"))


def _shift(target: Target, path: Path) -> None:
    """Put some bytes into a file, whose length stays."""
    data, at = path.read_bytes(), target.random.randrange(path.stat().st_size)
    new = target.random.randbytes(target.random.choice((1, 4, 20)))
    path.write_bytes((data[:at] + new + data[at:])[: len(data)])


def _empty(target: Target, path: Path) -> None:
    """Leave nothing of a file but its name, or its name and its length."""
    path.write_bytes(bytes(target.random.choice((0, path.stat().st_size))))


def _misdirect(target: Target, path: Path) -> None:
    """Write a page of a file over another one, as a disk does that misses the place."""
    page, data = target.random.choice((512, 4096)), path.read_bytes()
    source, place = target.random.sample(range(0, len(data), page), 2)
    overwrite(path, place, data[source : source + page][: len(data) - place])


def _zero_page_of(target: Target, path: Path) -> None:
    """Zero one page, none that is all zeros already."""
    page, data = target.random.choice((512, 4096)), path.read_bytes()
    at = target.random.choice([at for at in range(0, len(data), page) if any(data[at : at + page])])
    overwrite(path, at, bytes(min(page, len(data) - at)))


def _random_page_of(target: Target, path: Path) -> None:
    page, size = target.random.choice((512, 4096)), path.stat().st_size
    at = target.random.randrange(0, size, page)
    overwrite(path, at, target.random.randbytes(min(page, size - at)))


def _free_name(target: Target, path: Path, steps: Sequence[int]) -> Path:
    """Return a free path some steps after a file of its kind; if it exists, the fault has no place."""
    free = path.with_name(str(int(path.name) + target.random.choice(steps)).zfill(len(path.name)))
    if free.exists():
        raise IndexError
    return free


def _rename(*steps: int) -> Change:
    return lambda target, path: path.rename(_free_name(target, path, steps))


def _copy(target: Target, path: Path) -> None:
    """Leave a second copy of a file, under another name of its kind."""
    if not any(path.read_bytes()):
        raise IndexError
    size = 1 if path.parent.name == "index" else path.stat().st_size
    shutil.copyfile(path, _free_name(target, path, (size, 2 * size)))


_OF_ANY_FILE: dict[str, Change] = {
    "cut": _cut,
    "lengthen": lambda target, path: os.truncate(path, path.stat().st_size + target.random.choice((1, 20, 4096))),
    "break-off": _break_off, "shift": _shift, "empty": _empty, "copy": _copy,
    "delete": lambda _, path: path.unlink(),
}  # fmt: skip


def _swap(pattern: str) -> Plant:
    return lambda target: target.swap(*target.random.sample(target.files(pattern), 2))


def _foreign(pattern: str) -> Plant:
    return _in(pattern, lambda target, path: target.foreign(path, pattern))


def _delete_folder(pattern: str) -> Plant:
    """Return the fault that deletes one folder; a database lies among those of queues."""
    return lambda target: shutil.rmtree(
        target.random.choice(sorted(path for path in target.root.glob(pattern) if path.is_dir()))
    )


# --- faults of records


def units(data: bytes) -> list[bytes]:
    return [data[at : at + UNIT.size] for at in range(0, len(data), UNIT.size)]


def _part_of(name: str) -> Plant:
    """Return what flips a bit in one part of a record."""

    def plant(target: Target) -> None:
        path, at, record = target.random.choice(records_in(target.root))
        start, size = _places(record)[name]
        target.flip(path, at + start + target.random.randrange(size))

    return plant


def _places(record: MessageRecord) -> dict[str, tuple[int, int]]:
    """Return where the parts of a record are, and how long; only those that it has."""
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


def _from_newest_on(content: Callable[[Random, int], bytes]) -> Plant:
    """Return what overwrites the newest records, to the end of their file."""

    def plant(target: Target) -> None:
        path, at, _ = records_in(target.root)[-target.random.randrange(1, 6)]
        overwrite(path, at, content(target.random, path.stat().st_size - at))

    return plant


def _older_segment(target: Target) -> None:
    """Bring a segment back as it was when fewer records were in it."""
    path, at, _ = target.random.choice(records_in(target.root))
    overwrite(path, at, bytes(path.stat().st_size - at))


# --- faults of units and of index entries


def _swap_queues(target: Target) -> None:
    first = target.one(QUEUE)
    others = [one for one in target.files(f"consumequeue/*/*/{first.name}") if one.read_bytes() != first.read_bytes()]
    target.swap(first, target.random.choice(others))


def _older_queue(target: Target, path: Path) -> None:
    """Bring a queue file back as it was when fewer units were in it."""
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
    path = target.one(target.random.choice(("config/consumerOffset.json", "config/topics.json")))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


KINDS: dict[str, Plant] = {
    **{
        f"{name}-{part}": _in(pattern, change)
        for name, change in _OF_ANY_FILE.items()
        for part, pattern in (("segment", LOG), ("queue", QUEUE), ("index", INDEX))
    },
    **{f"bit-{name.lower().replace('_', '-')}": _part_of(name) for name in
       ("body", "topic", "KEYS", "TAGS", "properties", "queue_offset", "queue_id", "head")},
    "bit-unique-key": _part_of("UNIQ_KEY"), "zero-page": _zero_page, "zero-properties": _zero_properties,
    "lose-property-crc": _lose_property_crc, "random-tail": _random_tail, "older-segment": _older_segment,
    "zero-newest": _from_newest_on(lambda _, size: bytes(size)), "random-newest": _from_newest_on(Random.randbytes),
    "foreign-segment": _foreign(LOG), "foreign-queue": _foreign(QUEUE), "foreign-index": _foreign(INDEX),
    "swap-segments": _swap(LOG), "swap-queues": _swap_queues, "swap-index": _swap(INDEX),
    "older-queue": _in(QUEUE, _older_queue),
    "rename-segment": _in(LOG, _rename(SEGMENT, 7 * SEGMENT, 10**9 * SEGMENT)),
    "rename-queue": _in(QUEUE, _rename(100, 200, 600)), "rename-index": _in(INDEX, _rename(10, 20, 60)),
    "unit-bit": _in(QUEUE, _unit_bit), "double-unit": _in(QUEUE, _double_unit),
    "unit-high-bit": _in(QUEUE, lambda _, path: flip(path, 0, 1 << 7)), "index-bit": _in(INDEX, _index_bit),
    "slot-bit": _in(
        INDEX, lambda target, path: target.flip(path, HEADER.size + target.random.randrange(GEOMETRY.hash_slots * 4))
    ), "zero-queue-page": _in(QUEUE, _zero_page_of),
    "zero-index-page": _in(INDEX, _zero_page_of), "random-page": _in(LOG, _random_page_of),
    "random-queue-page": _in(QUEUE, _random_page_of), "random-index-page": _in(INDEX, _random_page_of),
    "misdirected-log": _in(LOG, _misdirect), "misdirected-queue": _in(QUEUE, _misdirect),
    "misdirected-index": _in(INDEX, _misdirect), "cut-checkpoint": _in("checkpoint", _cut),
    "bit-checkpoint": _in("checkpoint", lambda target, path: target.flip(path, target.random.randrange(24))),
    "foreign-checkpoint": _foreign("checkpoint"), "break-positions": _break_positions,
    "timer-bit": _in(_TIMER, lambda target, path: target.flip(path, target.random.randrange(52))),
    "foreign-timer": _in(_TIMER, lambda target, path: target.foreign(path, _TIMER, golden(_TIMER_DONOR))),
    "abort": lambda target: (target.root / "abort").touch(), "delete-queues": _delete_folder("consumequeue"),
    "delete-queue-folder": _delete_folder("consumequeue/*/*"), "delete-topic": _delete_folder("consumequeue/*"),
    "delete-indexes": _delete_folder("index"),
}  # fmt: skip


# --- the page's: `faults` ---


NOBODY = 65534


class Part(Enum):
    """What a fault is in."""

    LOG = "log"
    QUEUES = "queues"
    INDEX = "index"
    CHECKPOINT = "checkpoint"


MESSAGE_HIT = 17  # the message of T1's first queue that faults of the log hit: in the second of four segments
UNIT_HIT = 12
_ENTRY_HIT = 7


class Fault(NamedTuple):
    """One fault: the file that it is in, and what happens to that."""

    part: Part
    name: str
    damage: Callable[[Path], object]
    file: str  # relative to the store
    unseen: str = ""  # that it is not reported as damage, and why

    def plant(self, store: Path) -> None:
        self.damage(store / self.file)


NO_FAULT = Fault(Part.LOG, "no fault", Path.exists, f"commitlog/{SEGMENT:020d}", "this store is undamaged")
NO_CHECKSUM = (
    "Not detectable, because no checksum covers the changed bit, and neither queues nor index files depend on it"
)
_NEW_CHECKPOINT = "Not reported as damage, because a broker creates a new checkpoint at its next start"

# What a broker stores once, without a checksum.
_FREE_FIELDS = frozenset({"flag", "sys_flag", "born_timestamp", "born_host", "store_host", "reconsume_times"}) | {
    "prepared_transaction_offset",
    "properties",
}


def faults(healthy: Path) -> Iterator[Fault]:
    segments = [f"commitlog/{number * SEGMENT:020d}" for number in range(4)]
    yield from _of_files(Part.LOG, "segment", (segments[0], segments[1], segments[3]), 5000)
    record = hit_record(healthy)
    base = record.physical_offset % SEGMENT
    for name, at in _places_of(record).items():
        unseen = NO_CHECKSUM if name in _FREE_FIELDS else ""
        yield Fault(Part.LOG, f"record: {name}", partial(flip, at=base + at), segments[1], unseen)
    queues = [f"consumequeue/T1/0/{number * QUEUE_FILE:020d}" for number in range(3)]
    yield from _of_files(Part.QUEUES, "file", queues, 90)
    yield Fault(Part.QUEUES, "folder of a topic missing", lambda path: shutil.rmtree(path.parents[1]), queues[1])
    yield Fault(Part.QUEUES, "all folders missing", lambda path: shutil.rmtree(path.parents[2]), queues[1])
    yield from _of_fields(Part.QUEUES, "unit", UNIT, UNIT_HIT * UNIT.size - QUEUE_FILE, queues[1])
    indexes = [f"index/{path.name}" for path in sorted((healthy / "index").iterdir())]
    yield from _of_files(Part.INDEX, "file", (indexes[0], indexes[6], indexes[-1]), 500)
    yield Fault(Part.INDEX, "all files missing", lambda path: shutil.rmtree(path.parent), indexes[6])
    yield from _of_fields(Part.INDEX, "header", HEADER, 0, indexes[6])
    data = (healthy / indexes[6]).read_bytes()
    slot = next(n for n in range(GEOMETRY.hash_slots) if data[GEOMETRY.slot_position(n) + 3])
    yield Fault(Part.INDEX, "slot", partial(flip, at=GEOMETRY.slot_position(slot) + 3), indexes[6])
    yield from _of_fields(Part.INDEX, "entry", ENTRY, GEOMETRY.entry_position(_ENTRY_HIT), indexes[6])
    yield Fault(Part.CHECKPOINT, "missing", Path.unlink, "checkpoint", _NEW_CHECKPOINT)
    yield Fault(Part.CHECKPOINT, "cut short", partial(os.truncate, length=10), "checkpoint")
    for name, at in (("log", 1), ("queue", 9), ("index", 23)):
        yield Fault(Part.CHECKPOINT, f"{name} time", partial(flip, at=at), "checkpoint")
    for part, file in zip(Part, (segments[1], queues[1], indexes[6], "checkpoint"), strict=True):
        yield Fault(part, "access denied", lambda path: path.chmod(0), file)


def _of_files(part: Part, kind: str, files: Sequence[str], size: int) -> Iterator[Fault]:
    for place, file in zip(("first", "middle", "last"), files, strict=True):
        yield Fault(part, f"{place} {kind} missing", Path.unlink, file)
        yield Fault(part, f"{place} {kind} cut short", partial(os.truncate, length=size), file)


def _of_fields(part: Part, kind: str, layout: Layout, base: int, file: str) -> Iterator[Fault]:
    for field in layout.describe_fields():
        at = base + layout.offset(field.name) + field.size - 1
        yield Fault(part, f"{kind}: {field.name}", partial(flip, at=at), file)


def hit_record(store: Path) -> MessageRecord:
    in_queue = (record for _, _, record in records_in(store) if (record.topic, record.queue_id) == ("T1", 0))
    return next(record for record in in_queue if record.queue_offset == MESSAGE_HIT)


def _places_of(record: MessageRecord) -> dict[str, int]:
    """Return the position of the bit to change in each part of a record: a number's last byte, others' first one."""
    found = {}
    for name, (start, size) in sorted(_places(record).items(), key=itemgetter(1)):
        if name.endswith("_host_address") or name in {"body", "topic", "properties"}:
            found[name.removesuffix("_address")] = start
        elif name.islower() and name != "head" and not name.endswith("_host_port"):
            found[name] = start + size - 1
    return found


@contextmanager
def without_rights(work: Path, *, denied: bool) -> Iterator[None]:
    """Act as another user where access is *denied*: root may read everything."""
    if not denied or os.geteuid() != 0:
        yield
        return
    for path in [work, *work.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
        if path.is_file() and stat.S_IMODE(path.stat().st_mode):
            path.chmod(0o644)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# --- those of starts: `STARTS`, whose places are those of the healthy store -------------------------------------------

MESSAGES, FIRST_TIME, STEP_MS = 160, 1_795_000_000_000, 1000  # of a store that a broker wrote to be started on
_PAGE = 4096
_BODY_AT = 88


class Wounded(NamedTuple):
    """A copy that is about to be damaged, and the files and records of the healthy store."""

    target: Target
    records: Sequence[Placed]
    segments: Sequence[Path]

    def segment(self, which: int) -> Path:
        return self.target.root / "commitlog" / self.segments[which].name

    def queue(self, number: int = 0, name: str = "T1/0") -> Path:
        return self.target.files(f"consumequeue/{name}/*")[number]


Wound = Callable[[Wounded], object]


def planted_start(name: str, healthy: Path, store: Path, donor: Path) -> Path:
    """Return a copy with the wounds that a name has, one after the other; KIND:SEED is a fault that is drawn."""
    shutil.copytree(healthy, store)
    for part in name.split(" + ") if name != NO_DAMAGE else ():
        kind, _, seed = part.partition(":")
        if seed.isdigit():
            with suppress(*NO_PLACE):
                KINDS[kind](Target(store, Random(int(seed)), donor))
        else:
            STARTS[part](Wounded(Target(store, Random(1), donor), records_in(healthy), sorted(healthy.glob(LOG))))
    return store


def _change(
    which: int,
    place: Callable[[MessageRecord], int] | int,
    content: Callable[[MessageRecord], bytes] | int,
    number: int = 1,
) -> Wound:
    """Change bytes at a place in a segment's record of that number, its second one: a bit, or as many as there are."""

    def wound(one: Wounded) -> None:
        at, record = [(at, record) for path, at, record in one.records if path == one.segments[which]][number]
        at += place if isinstance(place, int) else place(record)
        if isinstance(content, int):
            flip(one.segment(which), at, 1 << content)
        else:
            overwrite(one.segment(which), at, content(record))

    return wound


def _zeros_to_the_end(record: MessageRecord) -> bytes:
    return bytes(SEGMENT - record.physical_offset % SEGMENT)


def _ahead(size: int) -> Wound:
    return lambda one: (
        one.segment(-1).with_name(file_name_of_offset(int(one.segments[-1].name) + SEGMENT)).write_bytes(bytes(size))
    )


def _resize(file: Callable[[Wounded], Path], by: int) -> Wound:
    def wound(one: Wounded) -> None:
        data = file(one).read_bytes()
        file(one).write_bytes(data[:by] if by < 0 else data + bytes(by))

    return wound


def _killed(part: float | None) -> Wound:
    """Have the store look killed, its checkpoint as it was after this part of its messages; None: as it is."""

    def wound(one: Wounded) -> None:
        path = one.target.root / "checkpoint"
        (one.target.root / "abort").write_bytes(b"1")
        if part is not None and path.exists():
            time = FIRST_TIME + int(part * MESSAGES) * STEP_MS
            known = decode_checkpoint(path.read_bytes()[: CHECKPOINT.size])
            path.write_bytes(encode_checkpoint(known._replace(
                physical_timestamp=time, logic_timestamp=time, index_timestamp=time, dispatched_offset=0
            )))  # fmt: skip

    return wound


NO_DAMAGE, KILLED, STALE = "no damage", "killed", "killed, stale checkpoint"
_OF_RECORDS = {  # the position of a byte, and the bit; a gigabyte may be more than the broker has memory
    "body": (_BODY_AT + 20, 0), "magic": (7, 0), "total size, low": (3, 0), "total size, high": (1, 4),
    "physical offset": (33, 0), "queue offset": (25, 0), "body length": (87, 2),
}  # fmt: skip
OF_LOG: dict[str, Wound] = {
    **{f"page of zeros in the {words} segment": _change(which, 0, lambda _: bytes(_PAGE)) for which, words in
       ((0, "first"), (3, "early"), (-3, "third-to-last"), (-2, "second-to-last"), (-1, "last"))},
    **{f"bit in a record: {words}": _change(-1, *place) for words, place in _OF_RECORDS.items()},
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
    "middle segment missing": lambda one: one.segment(3).unlink(),
    "first segment missing": lambda one: one.segment(0).unlink(),
    "last segment missing": lambda one: one.segment(-1).unlink(),
    "preallocated segment": _ahead(SEGMENT),
    "empty last segment": _ahead(0),
    "segment cut": _resize(lambda one: one.segment(2), -4000),
    "last segment cut": _resize(lambda one: one.segment(-1), -12_000),
    "segment longer": _resize(lambda one: one.segment(2), 12),
    "stray file in the log": lambda one: one.segment(0).with_name("copy.bak").write_bytes(b"x"),
}  # fmt: skip
OF_OTHERS: dict[str, Wound] = {
    "queue file cut": _resize(Wounded.queue, -40),
    "queue file longer": _resize(Wounded.queue, 20),
    "empty last queue file": lambda one: one.queue(-1).with_name(
        file_name_of_offset(int(one.queue(-1).name) + 20 * UNIT.size)
    ).write_bytes(b""),
    "one queue gone": lambda one: shutil.rmtree(one.target.root / "consumequeue/T1/0"),
    "all queues gone": lambda one: shutil.rmtree(one.target.root / "consumequeue"),
    "queue files swapped": lambda one: one.target.swap(one.queue(), one.queue(0, "T2/1")),
    "stray file in a queue": lambda one: one.queue().with_name("copy").write_bytes(b"x"),
    "one index file gone": lambda one: one.target.files(INDEX)[1].unlink(),
    "checkpoint gone": lambda one: (one.target.root / "checkpoint").unlink(missing_ok=True),
    "checkpoint of zeros": lambda one: (one.target.root / "checkpoint").write_bytes(bytes(_PAGE)),
}  # fmt: skip
STARTS = {**OF_LOG, **OF_OTHERS, KILLED: _killed(None), STALE: _killed(0.4)}
