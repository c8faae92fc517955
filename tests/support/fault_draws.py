"""
Random faults in company: one to four at once in stores of many releases, each draw judged against its truth.

    python -m tests.support.fault_draws SEED COUNT [FAULTS]     draw, judge, and shrink what fails
    python -m tests.support.fault_draws STORE KIND:SEED …       one draw again

The truth is the store before anything was planted: which files are right, and what the others were. Every verb runs in
this process, without Spark.
"""

import os
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Generic, NamedTuple, NoReturn, Protocol, Self, TypeVar

from jobs.console.exit_codes import ExitCode
from jobs.console.severity import Severity
from jobs.inspect.inspection import inspect_store
from jobs.inspect.problems import Problems
from jobs.lake.findings import DAMAGED_RANGE
from jobs.products.queues.differences import DifferenceKind
from jobs.query.source import silent
from jobs.repair.run import NotRepairableError, RefusedError, RepairRequest, repair, undo
from jobs.store.release import UndecidedError
from jobs.store.workers import OneByOne
from jobs.verify.run import Verdict, VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import FormatError, NotAStore
from rmq_formats.indexfile.layout import ENTRY, HEADER
from rmq_formats.properties import CRC_SIZE
from tests.golden import SITUATIONS, unpack, unpack_situation
from tests.support.faults import GEOMETRY
from tests.support.in_memory import folder_of_process
from tests.support.lakes import ingest_store
from tests.support.stores import content_of

STORES = (
    "b420-direct", "b420-expired", "b470-base", "b470-crash-after", "b498-types", "b498-crash-before", "b498-cqext",
    "b514-timer", "b514-expired", "b533-base", "b533-crash-before", "b533-types-crc", "b551-crash-later",
    "b551-types-crc", "b551-cqdouble",
)  # fmt: skip
_DONORS = ("b514-base", "b470-base")  # whose files are foreign elsewhere
_TIMER_DONOR = "b551-timer"
NO_PLACE = (IndexError, KeyError, ValueError, struct.error, FileNotFoundError)  # raised by a fault that has none
_MOST = 4
_SEGMENT = 16384  # bytes of a segment in the golden stores
_LONGEST = 120  # seconds of CPU a draw: the first one compiles
Files = dict[str, bytes]


class Draw(NamedTuple):
    """A store, and what is planted in it: each fault by its kind and its own seed, so that each can be left out."""

    store: str
    faults: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join((self.store, *(f"{kind}:{seed}" for kind, seed in self.faults)))

    @classmethod
    def parsed(cls, text: str) -> "Draw":
        store, *faults = text.split()
        return cls(store, tuple((kind, int(seed)) for kind, _, seed in (fault.partition(":") for fault in faults)))

    def smaller(self) -> Iterator["Draw"]:
        """Yield the same with fewer faults, the fewest first."""
        for size in range(1, len(self.faults)):
            yield from (self._replace(faults=some) for some in combinations(self.faults, size))


class HangError(BaseException):
    """A verb took so long that it must be caught in something."""


class Violation(NamedTuple):
    """What a verb did that it must not do."""

    rule: str
    text: str


# --- faults ----------------------------------------------------------------------------------------------------------


class Target:
    """A store that is about to be damaged."""

    def __init__(self, root: Path, random: Random, donor: Path) -> None:
        self.root, self.random, self.donor = root, random, donor

    def files(self, pattern: str, root: Path | None = None) -> list[Path]:
        return sorted(path for path in (root or self.root).glob(pattern) if path.is_file())

    def one(self, pattern: str) -> Path:
        """Return a file; `IndexError` where there is none: then the fault has no place."""
        return self.random.choice(self.files(pattern))

    def flip(self, path: Path, at: int, bit: int | None = None) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << (self.random.randrange(8) if bit is None else bit)
        path.write_bytes(data)

    def write(self, path: Path, at: int, new: bytes) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:at] + new + data[at + len(new) :])

    def records(self) -> list[tuple[Path, int, MessageRecord]]:
        found = []
        for path in self.files(LOG):
            data, at = path.read_bytes(), 0
            while at + 8 <= len(data):
                size, magic = struct.unpack_from(">ii", data, at)
                if magic not in {MAGIC_V1, MAGIC_V2} or not MIN_RECORD_SIZE <= size <= len(data) - at:
                    break
                try:
                    found.append((path, at, decode_record(data, at)))
                except FormatError:
                    break
                at += size
        return found

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


LOG, QUEUE, INDEX = "commitlog/*", "consumequeue/*/*/*", "index/*"
_TIMER = "timerlog/*"

Plant = Callable[[Target], object]
Change = Callable[[Target, Path], object]


def _in(pattern: str, change: Change) -> Plant:
    """Return the fault that changes one file of a kind."""
    return lambda target: change(target, target.one(pattern))


# --- faults of any file


def _cut(target: Target, path: Path) -> None:
    os.truncate(path, target.random.randrange(path.stat().st_size))


def _lengthen(target: Target, path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(target.random.choice((1, 20, 4096))))


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
    target.write(path, place, data[source : source + page][: len(data) - place])


def _zero_page_of(target: Target, path: Path) -> None:
    """Zero one page, none that is all zeros already."""
    page, data = target.random.choice((512, 4096)), path.read_bytes()
    at = target.random.choice([at for at in range(0, len(data), page) if any(data[at : at + page])])
    target.write(path, at, bytes(min(page, len(data) - at)))


def _random_page_of(target: Target, path: Path) -> None:
    page, size = target.random.choice((512, 4096)), path.stat().st_size
    at = target.random.randrange(0, size, page)
    target.write(path, at, target.random.randbytes(min(page, size - at)))


def _free_name(target: Target, path: Path, steps: Sequence[int]) -> Path:
    """Return a path beside a file, some steps after it in its kind; there is no place where that file exists."""
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
    "cut": _cut, "lengthen": _lengthen, "break-off": _break_off, "shift": _shift, "empty": _empty, "copy": _copy,
    "delete": lambda _, path: path.unlink(),
}  # fmt: skip


def _swap(pattern: str) -> Plant:
    return lambda target: target.swap(*target.random.sample(target.files(pattern), 2))


def _foreign(pattern: str) -> Plant:
    return _in(pattern, lambda target, path: target.foreign(path, pattern))


def _other_timer(target: Target, path: Path) -> None:
    target.foreign(path, _TIMER, golden(_TIMER_DONOR))


def _delete_folder(pattern: str) -> Plant:
    """Return the fault that deletes one folder; a database lies among those of queues."""
    return lambda target: shutil.rmtree(
        target.random.choice(sorted(path for path in target.root.glob(pattern) if path.is_dir()))
    )


# --- faults of records


def _part_of(name: str) -> Plant:
    """Return what flips a bit in one part of a record."""

    def plant(target: Target) -> None:
        path, at, record = target.random.choice(target.records())
        start, size = _places(record)[name]
        target.flip(path, at + start + target.random.randrange(size))

    return plant


def _places(record: MessageRecord) -> dict[str, tuple[int, int]]:
    """Return where parts of a record are, and how long; only those that it has."""
    properties_at = record.total_size - len(record.properties_raw)
    topic_at = properties_at - 2 - len(record.topic_raw)
    body_at = topic_at - (1 if record.magic_code & 0xFFFFFFFF == MAGIC_V1 & 0xFFFFFFFF else 2) - len(record.body)
    places = {
        "head": (0, 48), "queue_id": (12, 4), "queue_offset": (20, 8), "topic": (topic_at, len(record.topic_raw)),
        "body": (body_at, len(record.body)), "properties": (properties_at, len(record.properties_raw)),
    }  # fmt: skip
    for name in (b"KEYS", b"UNIQ_KEY", b"TAGS"):
        start = (b"\x02" + record.properties_raw).find(b"\x02" + name + b"\x01")
        if start >= 0:
            value = start + len(name) + 1
            end = record.properties_raw.find(b"\x02", value)
            places[name.decode()] = (properties_at + value, (end if end >= 0 else len(record.properties_raw)) - value)
    return {name: place for name, place in places.items() if place[1] > 0}


def _zero_page(target: Target) -> None:
    path, at, _ = target.random.choice(target.records())
    page = target.random.choice((512, 4096))
    target.write(path, at // page * page, bytes(page))


def _zero_properties(target: Target) -> None:
    path, at, record = target.random.choice(target.records())
    zeros = target.random.randrange(1, len(record.properties_raw))
    target.write(path, at + record.total_size - zeros, bytes(zeros))


def _lose_property_crc(target: Target) -> None:
    path, at, record = target.random.choice(target.records())
    if b"__CRC32#" not in record.properties_raw:
        raise IndexError
    target.write(path, at + record.total_size - CRC_SIZE, bytes(CRC_SIZE))


def _random_tail(target: Target) -> None:
    path, at, record = target.records()[-1]
    room = path.stat().st_size - at - record.total_size - 8
    stale = path.read_bytes()[: max(room, 0)] if target.random.random() < 0.5 else target.random.randbytes(max(room, 0))
    target.write(path, at + record.total_size, stale)


def _zero_newest(target: Target) -> None:
    path, at, _ = target.records()[-target.random.randrange(1, 6)]
    target.write(path, at, bytes(path.stat().st_size - at))


def _random_newest(target: Target) -> None:
    path, at, _ = target.records()[-target.random.randrange(1, 6)]
    target.write(path, at, target.random.randbytes(path.stat().st_size - at))


def _older_segment(target: Target) -> None:
    """Bring a segment back as it was when fewer records were in it."""
    path, at, _ = target.random.choice(target.records())
    target.write(path, at, bytes(path.stat().st_size - at))


# --- faults of units and of index entries


def _swap_queues(target: Target) -> None:
    first = target.one(QUEUE)
    others = [one for one in target.files(f"consumequeue/*/*/{first.name}") if one.read_bytes() != first.read_bytes()]
    target.swap(first, target.random.choice(others))


def _older_queue(target: Target, path: Path) -> None:
    """Bring a queue file back as it was when fewer units were in it."""
    data = path.read_bytes()
    count = len(data.rstrip(b"\0")) // UNIT.size + 1
    target.write(path, (at := target.random.randrange(count) * UNIT.size), bytes(len(data) - at))


def _unit_bit(target: Target, path: Path) -> None:
    units = [number for number, unit in enumerate(_units(path.read_bytes())) if any(unit)]
    target.flip(path, target.random.choice(units) * UNIT.size + target.random.randrange(UNIT.size))


def _double_unit(target: Target, path: Path) -> None:
    data = path.read_bytes()
    end = -(-len(data.rstrip(b"\0")) // UNIT.size) * UNIT.size
    if not UNIT.size <= end < len(data):
        raise IndexError
    target.write(path, end, data[end - UNIT.size : end])


def _index_bit(target: Target, path: Path) -> None:
    count = struct.unpack_from(">i", path.read_bytes(), HEADER.size - 4)[0]
    if count < 2 or target.random.random() < 0.3:
        target.flip(path, target.random.randrange(HEADER.size))
    else:
        entry = GEOMETRY.entry_position(target.random.randrange(1, count))
        target.flip(path, entry + target.random.randrange(ENTRY.size))


def _slot_bit(target: Target, path: Path) -> None:
    target.flip(path, HEADER.size + target.random.randrange(GEOMETRY.hash_slots * 4))


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
    "lose-property-crc": _lose_property_crc, "random-tail": _random_tail, "zero-newest": _zero_newest,
    "random-newest": _random_newest, "older-segment": _older_segment, "foreign-segment": _foreign(LOG),
    "foreign-queue": _foreign(QUEUE), "foreign-index": _foreign(INDEX), "swap-segments": _swap(LOG),
    "swap-queues": _swap_queues, "swap-index": _swap(INDEX), "older-queue": _in(QUEUE, _older_queue),
    "rename-segment": _in(LOG, _rename(_SEGMENT, 7 * _SEGMENT, 10**9 * _SEGMENT)),
    "rename-queue": _in(QUEUE, _rename(100, 200, 600)), "rename-index": _in(INDEX, _rename(10, 20, 60)),
    "unit-bit": _in(QUEUE, _unit_bit), "double-unit": _in(QUEUE, _double_unit),
    "unit-high-bit": _in(QUEUE, lambda target, path: target.flip(path, 0, 7)), "index-bit": _in(INDEX, _index_bit),
    "slot-bit": _in(INDEX, _slot_bit), "zero-queue-page": _in(QUEUE, _zero_page_of),
    "zero-index-page": _in(INDEX, _zero_page_of), "random-page": _in(LOG, _random_page_of),
    "random-queue-page": _in(QUEUE, _random_page_of), "random-index-page": _in(INDEX, _random_page_of),
    "misdirected-log": _in(LOG, _misdirect), "misdirected-queue": _in(QUEUE, _misdirect),
    "misdirected-index": _in(INDEX, _misdirect), "cut-checkpoint": _in("checkpoint", _cut),
    "bit-checkpoint": _in("checkpoint", lambda target, path: target.flip(path, target.random.randrange(24))),
    "foreign-checkpoint": _foreign("checkpoint"), "break-positions": _break_positions,
    "timer-bit": _in(_TIMER, lambda target, path: target.flip(path, target.random.randrange(52))),
    "foreign-timer": _in(_TIMER, _other_timer),
    "abort": lambda target: (target.root / "abort").touch(), "delete-queues": _delete_folder("consumequeue"),
    "delete-queue-folder": _delete_folder("consumequeue/*/*"), "delete-topic": _delete_folder("consumequeue/*"),
    "delete-indexes": _delete_folder("index"),
}  # fmt: skip

# What no witness contradicts where it is planted: a free field without a checksum, bytes after the log's end, a name
# that sorts where the old one did, newest records that no queue names.
_MAY_BE_UNSEEN = frozenset({
    "bit-properties", "bit-head", "bit-unique-key", "bit-keys", "bit-tags", "random-tail",
    "bit-checkpoint", "foreign-checkpoint", "abort", "rename-index",
})  # fmt: skip
_IN_RECORDS = frozenset(
    kind for kind in KINDS if kind.startswith(("bit-", "zero-", "random-", "lose-", "shift-", "misdirected-"))
) - {
    "bit-checkpoint", "zero-queue-page", "zero-index-page", "random-queue-page", "random-index-page", "shift-queue",
    "shift-index", "misdirected-queue", "misdirected-index",
}  # fmt: skip
_CRC_COVERS = frozenset({"bit-properties", "bit-head", "bit-unique-key", "bit-keys", "bit-tags"})


def drawn(seed: int, most: int = _MOST) -> Draw:
    random = Random(seed)
    kinds = random.choices(sorted(KINDS), k=random.randint(1, most))
    return Draw(random.choice(STORES), tuple((kind, random.randrange(10**6)) for kind in kinds))


# --- the judge -------------------------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A damaged copy, and its truth."""

    root: Path
    pristine: Files
    damaged: Files
    draw: Draw  # without the faults that found no place

    @property
    def is_killed(self) -> bool:
        return "crash" in self.draw.store or "abort" in self.damaged

    @property
    def changed(self) -> set[str]:
        return {name for name in {*self.pristine, *self.damaged} if self.is_changed(name)}

    def is_changed(self, name: str) -> bool:
        return self.pristine.get(name) != self.damaged.get(name)


@cache
def _unpacked() -> Path:
    """Return this process's own folder of unpacked golden stores."""
    return folder_of_process("fault-draws-")


@cache
def golden(name: str) -> Path:
    return unpack_situation(name, _unpacked()) / "store" if name in SITUATIONS else unpack(name, _unpacked())


def planted(draw: Draw, folder: Path) -> Planted:
    root = Path(shutil.copytree(golden(draw.store), folder / "store"))
    pristine = content_of(root)
    donor = golden(next(name for name in _DONORS if name[:4] != draw.store[:4]))
    done: list[tuple[str, int]] = []
    states = [pristine]
    for kind, seed in draw.faults:
        try:
            KINDS[kind](Target(root, Random(seed), donor))
        except NO_PLACE:
            continue
        states.append(content_of(root))
        done.append((kind, seed))
        before = states.index(states[-1])  # a fault that does nothing, or takes the last ones back
        del states[before + 1 :], done[before:]
    return Planted(root, pristine, states[-1], Draw(draw.store, tuple(done)))


def judged(draw: Draw) -> list[Violation]:
    with tempfile.TemporaryDirectory() as name:
        one = planted(draw, Path(name))
        return guarded(lambda: _violations(one)) if one.draw.faults else []


def guarded(judge: Callable[[], Iterator[Violation]]) -> list[Violation]:
    """Return the violations that *judge* yields; a timeout or a traceback is one more."""
    signal.signal(signal.SIGVTALRM, _hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST)
    try:
        return list(judge())
    except HangError:
        return [Violation("hang", f"{_LONGEST} s")]
    except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.name}"
        return [Violation("traceback", f"{type(error).__name__} in {place}: {error}")]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _hangs(_number: int, _frame: object) -> NoReturn:
    raise HangError


def _violations(one: Planted) -> Iterator[Violation]:
    store = str(one.root)
    problems = inspect_store(store, (), BrokerConf(), deep=False, progress=silent).problems
    yield from _of_problems(one, problems)
    inspected = problems.severity
    found = verify(VerifyRequest(store), OneByOne())
    yield from _of_verdict(one, found)
    if inspected.is_alarm and not found.severity.is_alarm:
        yield Violation("inspect is red and verify green", inspected.value)
    with suppress(UndecidedError, NotAStore):  # of a log that is gone nothing is taken, and it says so
        taken = ingest_store(store, one.root.parent / "lake").severity
        if taken.is_alarm and not found.severity.is_alarm:
            yield Violation("ingest is red and verify green", taken.value)
    try:
        plan = repair(RepairRequest(store, one.root.parent / "plan"), OneByOne())
        if content_of(one.root) != one.damaged:
            yield Violation("a plan changes the store", "")
        done = repair(RepairRequest(store, one.root.parent / "repair", apply=True), OneByOne())
    except UndecidedError:
        return
    except (NotRepairableError, RefusedError) as error:
        yield Violation("refused", f"{type(error).__name__}: {error}")
        return
    if plan.found.severity is not found.severity:
        yield Violation("repair finds something else", f"{plan.found.severity.value}, not {found.severity.value}")
    after = content_of(one.root)
    yield from wrong_files(one, after)
    if done.exit_code > found.exit_code:
        yield Violation("worse than before", f"{done.severity.value}, not {found.severity.value}")
    if done.files:
        yield from undone(one)


def undone(one: Planted) -> Iterator[Violation]:
    undo(str(one.root), one.root.parent / "repair")
    now = content_of(one.root)
    if different := sorted(name for name in {*now, *one.damaged} if now.get(name) != one.damaged.get(name)):
        yield Violation("undo does not bring back", ", ".join(different))


def _of_problems(one: Planted, problems: Problems) -> Iterator[Violation]:
    for problem in problems:
        name = os.path.relpath(problem.file, one.root)
        if problem.severity is Severity.DAMAGE and name in one.pristine and not one.is_changed(name):
            yield Violation("inspect accuses a right file", f"{name}: {problem.text}")


def _unseen(one: Planted) -> frozenset[str]:
    """Return the kinds of faults that no witness in this store convicts."""
    unseen = _MAY_BE_UNSEEN - (_CRC_COVERS if one.draw.store.endswith("-crc") else set())
    if sum(name.startswith("commitlog/") for name in one.pristine) == 1:
        unseen |= {"lengthen-segment"}  # nothing says how long the only one was
    if one.is_killed and _are_newest_changed(one, 5):
        unseen |= {"zero-page"}  # as a power cut leaves the newest records
    if _are_newest_changed(one, 0) or _is_filler_changed(one):
        unseen |= _IN_RECORDS  # of what lies after the log's end, or after the last record of a segment
    unseen |= _unseen_of_newest_index(one) if one.is_killed else set()
    if not _is_newest_named(one):
        unseen |= {"zero-newest", "random-newest", "older-segment"}
    if not any(any(was) for name, was in one.pristine.items() if name not in one.damaged):
        unseen |= {"delete-segment"}  # the one that was made ahead of need
    if _are_changes_of_expired_units(one):
        unseen |= {"unit-bit"}  # tags, size of a message that retention deleted: other units are not compared
    if _are_changes_of_expired_seconds(one):
        unseen |= {"index-bit"}  # the seconds of such a message: a clock may have been set back
    if any(kind == "zero-newest" for kind, _ in one.draw.faults):
        unseen |= {"index-bit"}  # an entry of a message that no record and no unit knows any more
    return unseen


def _unseen_of_newest_index(one: Planted) -> frozenset[str]:
    """Return the kinds that a killed broker's next start mends: it indexes again what was lost with a newest file."""
    changed = sorted(name for name in one.changed & set(one.pristine) if name.startswith("index/"))
    newest = max(name for name in one.pristine if name.startswith("index/"))
    if newest not in changed:
        return frozenset()
    is_all = changed == [newest] and not any(one.damaged.get(newest, b""))
    return frozenset(kind for kind in KINDS if is_all and "index" in kind) | {"delete-index", "break-off-index"}


def _of_verdict(one: Planted, found: Verdict) -> Iterator[Violation]:
    seen = sorted({kind for kind, _ in one.draw.faults} - _unseen(one))
    if seen and found.exit_code is ExitCode.CLEAN and not any(part.doubts for part in found.parts.values()):
        yield Violation("green on damage", f"{found.severity.value}: {', '.join(seen)}")
    changed = one.changed
    parts = {_part(name) for name in changed}
    for group in found.groups:
        cause = group.cause
        is_named = any(name == cause.file or name.startswith(f"{cause.file}/") for name in changed)
        if cause.severity.is_alarm and "undecided" not in cause.text and not is_named and cause.part not in parts:
            yield Violation("a cause that was not planted", cause.text)
        is_right = cause.file in one.pristine and not one.is_changed(cause.file)
        if cause.kind in {DAMAGED_RANGE, DifferenceKind.HOLE} and is_right and "undecided" not in cause.text:
            yield Violation("a right file is called damaged", cause.text)


def _part(name: str) -> str:
    folder = name.partition("/")[0]
    return {"commitlog": "log", "index": "index", "checkpoint": "index"}.get(folder, "queues")


def wrong_files(one: Planted, after: Files) -> Iterator[Violation]:
    for name, was in sorted(one.pristine.items()):
        now = after.get(name)
        if not one.is_changed(name):
            if now != was:
                yield Violation("a right file was changed", name)
        elif now not in {one.damaged.get(name), was} and not _is_dispatched(one, name, now):
            yield from _of_wrong_file(one, name, now)
    lost = [one.pristine[name] for name in one.changed & set(one.pristine) if name.startswith("index/")]
    for name in sorted(set(after) - set(one.pristine) - set(one.damaged)):
        if after[name] not in lost and not _is_part(one, after[name], lost):
            yield Violation("a file that no broker wrote", name)


def _of_wrong_file(one: Planted, name: str, now: bytes | None) -> Iterator[Violation]:
    """Yield what is wrong with the replacement of a wrong file that is not what it once was."""
    was, damaged = one.pristine[name], one.damaged.get(name, b"")
    kinds = {kind for kind, _ in one.draw.faults}
    if now is None:
        if not name.startswith("index/"):  # the right bytes may have come under the clock's name
            yield Violation("a wrong file was deleted", name)
    elif name == "checkpoint":
        newest = max(
            (record.store_timestamp for _, _, record in Target(one.root, Random(0), one.root).records()), default=0
        )
        times: tuple[int, ...] = struct.unpack_from(">qqq", now)
        if max(times) > max(newest, *struct.unpack_from(">qqq", was)):
            yield Violation("a checkpoint after the log", name)
    elif name.startswith("commitlog/"):
        right = [at for at in range(min(len(damaged), len(was))) if damaged[at] == was[at]]
        if len(now) < len(was) or any(now[at] != was[at] for at in right):
            yield Violation("right bytes of the log were changed", name)
    elif name.startswith("consumequeue/") and (not _is_log_whole(one) or "expired" in one.draw.store):
        left = [*_units(damaged), *[b""] * len(was)]
        wrong = [
            number
            for number, (old, new, there) in enumerate(zip(_units(was), _units(now), left, strict=False))
            for known in [12 if kinds & {"bit-tags", "bit-properties"} and there != old else UNIT.size]
            if new[:known] != old[:known] and not _is_blank(new) and (any(old) or not one.is_killed)
        ]  # no witness of a record's tags is left with its unit; a killed broker had not come to every record
        if wrong or len(now) != len(was):
            yield Violation("a queue file is not what it was", f"{name}: units {wrong[:4]}")
    elif not (name.startswith("index/") and _is_part(one, now, [was])):
        yield Violation("a replacement is not what was there", name)


def _are_newest_changed(one: Planted, newest: int) -> bool:
    """Return whether of the log only so many of the *newest* records have changed, or what comes after them."""
    offsets = _changed_offsets(one)
    return bool(offsets) and min(offsets) >= _ends(one)[-1 - newest]


def _is_filler_changed(one: Planted) -> bool:
    """Return whether of the log only bytes have changed that nobody reads: those of blanks, but for their heads."""
    offsets, ends = _changed_offsets(one), _ends(one)
    starts = [after for after, following in pairwise(ends) if following // _SEGMENT > after // _SEGMENT]
    return bool(offsets) and all(
        any(start + BLANK.size <= at < (start // _SEGMENT + 1) * _SEGMENT for start in starts) for at in offsets
    )


def _changed_offsets(one: Planted) -> list[int]:
    return [
        int(Path(name).name) + at
        for name in one.changed if name.startswith("commitlog/")
        for at, (was, now) in enumerate(zip(one.pristine.get(name, b""), one.damaged.get(name, b""), strict=False))
        if was != now
    ]  # fmt: skip


def _ends(one: Planted) -> list[int]:
    """Return the offset after each record of the healthy log."""
    records = (record for _, _, record in Target(golden(one.draw.store), Random(0), one.root).records())
    return [record.physical_offset + record.total_size for record in records]


def _is_newest_named(one: Planted) -> bool:
    """Return whether a unit, in a queue file that is right, names the newest record, which is no longer there."""
    _, _, newest = Target(golden(one.draw.store), Random(0), one.root).records()[-1]
    address = UNIT.pack(newest.physical_offset, newest.total_size, 0)[:12]
    return any(
        unit.startswith(address)
        for name, data in one.damaged.items() if name.startswith("consumequeue/") and not one.is_changed(name)
        for unit in _units(data)
    )  # fmt: skip


def _log_start(one: Planted) -> int:
    return min((int(Path(name).name) for name in one.pristine if name.startswith("commitlog/")), default=0)


def _are_changes_of_expired_seconds(one: Planted) -> bool:
    """Return whether index files differ in seconds alone, of entries that lead before the log."""
    changed = [
        (was[at : at + ENTRY.size], now[at : at + ENTRY.size])
        for name, was in one.pristine.items() if name.startswith("index/") and one.is_changed(name)
        for now in [one.damaged.get(name, b"")]
        for at in [0, *map(GEOMETRY.entry_position, range(GEOMETRY.index_num))]
    ]  # fmt: skip
    return all(
        was == now or (was[:12] + was[16:] == now[:12] + now[16:] and int.from_bytes(was[4:12]) < _log_start(one))
        for was, now in changed
    )


def _are_changes_of_expired_units(one: Planted) -> bool:
    """Return whether queues differ in sizes and tags codes alone, of units whose records may lie before the log."""
    start = _log_start(one)
    changed = [
        (was, now)
        for name in one.changed & set(one.pristine) & set(one.damaged) if name.startswith("consumequeue/")
        for was, now in zip(_units(one.pristine[name]), _units(one.damaged[name]), strict=False) if was != now
    ]  # fmt: skip
    ends = (int.from_bytes(now[:8]) + int.from_bytes(now[8:12]) for _, now in changed)
    return all(was[:8] == now[:8] for was, now in changed) and all(end <= start for end in ends)


def _is_log_whole(one: Planted) -> bool:
    return not any(name.startswith("commitlog/") for name in one.changed)


def _units(data: bytes) -> list[bytes]:
    return [data[at : at + UNIT.size] for at in range(0, len(data), UNIT.size)]


def _is_dispatched(one: Planted, name: str, now: bytes | None) -> bool:
    """Return whether a queue file has besides only units that the killed broker had not come to."""
    was = one.pristine[name].rstrip(b"\0")
    return one.is_killed and name.startswith("consumequeue/") and (now or b"").startswith(was)


def _is_blank(unit: bytes) -> bool:
    return not any(unit) or unit[8:] == b"\x7f\xff\xff\xff" + bytes(8)


def _is_part(one: Planted, data: bytes, lost: Sequence[bytes]) -> bool:
    """
    Return whether an index file says nothing but what lost ones said; only where the log has lost messages.

    No witness is left of the keys of a changed record whose index file is lost.
    """
    new = _entries(data) - {entry for was in lost for entry in _entries(was)}
    if one.is_killed:  # the killed broker may have come to none of them
        known = {entry for name, was in one.pristine.items() if name.startswith("index/") for entry in _entries(was)}
        if not new & known:
            return True
    if _is_log_whole(one):
        return False
    return {entry[4:] for entry in new} <= _changed_records(one)


def _changed_records(one: Planted) -> set[bytes]:
    """Return the offsets, as an index entry has them, of records that are framed soundly and not what they were."""
    found = set()
    for path, at, record in Target(one.root, Random(0), one.root).records():
        was = one.pristine.get(str(path.relative_to(one.root)), b"")[at : at + record.total_size]
        if was != path.read_bytes()[at : at + record.total_size]:
            found.add(struct.pack(">q", record.physical_offset))
    return found


def _entries(data: bytes) -> set[bytes]:
    count = struct.unpack_from(">i", data, HEADER.size - 4)[0] if len(data) >= HEADER.size else 0
    starts = (GEOMETRY.entry_position(number) for number in range(1, max(min(count, GEOMETRY.index_num), 1)))
    return {data[at : at + 12] for at in starts}


class _Shrinkable(Protocol):
    def smaller(self) -> Iterator[Self]: ...


One = TypeVar("One", bound=_Shrinkable)


@dataclass(frozen=True)
class Campaign(Generic[One]):
    """Draws of one kind: how they are made, read and judged, and the module that does so on a command line."""

    module: str
    drawn: Callable[[int, int], One]
    parsed: Callable[[str], One]
    judged: Callable[[One], list[Violation]]

    def failure(self, one: One) -> str | None:
        """Return the line that repeats the smallest draw that breaks the same rules; None where none is broken."""
        found = self.judged(one)
        rules = {violation.rule for violation in found}
        for smaller in one.smaller() if rules else ():
            if same := [violation for violation in self.judged(smaller) if violation.rule in rules]:
                one, found = smaller, same
                break
        texts = sorted({f"{violation.rule}: {violation.text}" for violation in found})
        return f"python -m {self.module} {one} # {'; '.join(texts)}" if found else None

    def run(self, arguments: Sequence[str]) -> None:
        """Judge one draw, or SEED COUNT [FAULTS] of them."""
        if not arguments[0].isdigit():
            print(*self.judged(self.parsed(" ".join(arguments))), sep="\n")
            return
        first, count, most = (int(number) for number in (*arguments, str(_MOST))[:3])
        failed = 0
        for seed in range(first, first + count):
            if failure := self.failure(self.drawn(seed, most)):
                print(f"{seed}: {failure}", flush=True)
                failed += 1
        print(f"{count} draws, {failed} with violations")


FAULTS = Campaign("tests.support.fault_draws", drawn, Draw.parsed, judged)

if __name__ == "__main__":
    FAULTS.run(sys.argv[1:])
