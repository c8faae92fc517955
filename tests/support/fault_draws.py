"""
Random combinations of one to four faults in stores of many releases, each checked against the planted faults.

    python -m tests.support.fault_draws WHAT SEED COUNT [FAULTS]          draw, check, and shrink what fails
    python -m tests.support.fault_draws WHAT OPTIONS STORE KIND:SEED …    one again; OPTIONS such as lake,bridge or -

WHAT is `faults`, `repairs` or `agreement`. The truth is the store before anything was planted: which files are right,
and what the others were. Every verb runs in this process, without Spark.
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
from functools import cache
from itertools import combinations, pairwise, zip_longest
from pathlib import Path
from random import Random
from time import process_time
from typing import NamedTuple, NoReturn

from jobs.console.result import ExitCode, Severity
from jobs.diagnosis.findings import DAMAGED_RANGE, MISSING_INDEX_ENTRIES, Finding
from jobs.inspect import Problems
from jobs.inspect.inspection import inspect_store
from jobs.lake.lake import Lake
from jobs.products.queues import DifferenceKind
from jobs.query.source import do_nothing
from jobs.repair import NotRepairableError
from jobs.repair.run import RepairRequest, RepairSummary, repair, undo
from jobs.store.release import UndecidedError
from jobs.store.running_broker import NotInstalledError
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.record import decode_record, has_right_body_crc
from rmq_formats.consumequeue.dispatch import PRE_BLANK
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import FormatError, NotAStore
from rmq_formats.indexfile.layout import ENTRY, HEADER
from tests.golden import SITUATIONS, release_of
from tests.support.fault_kinds import GEOMETRY, KINDS, NO_PLACE, SEGMENT, Target, golden, records_in, units
from tests.support.lakes import ingest_store
from tests.support.stores import make_process_folder, read_files_except_replaced

STORES = (
    "b420-direct", "b420-expired", "b470-base", "b470-crash-after", "b498-types", "b498-crash-before", "b498-cqext",
    "b514-timer", "b514-expired", "b533-base", "b533-crash-before", "b533-types-crc", "b551-crash-later",
    "b551-types-crc", "b551-cqdouble",
)  # fmt: skip
_DONORS = ("b514-base", "b470-base")  # whose files are foreign elsewhere
OPTIONS = ("lake", "bridge", "accept")  # of repairs
BLANK_UNIT = UNIT.pack(*PRE_BLANK)[8:]  # but for the offset
_MOST = 4
_MEMORY = "/dev/shm"
_LONGEST = 120  # seconds of CPU a draw: the first one compiles
Files = dict[str, bytes]


class Draw(NamedTuple):
    """A store, the faults to plant in it, each with its own seed, and the options of its repair."""

    store: str
    faults: tuple[tuple[str, int], ...]
    options: frozenset[str] = frozenset()

    def __str__(self) -> str:
        options = ",".join(sorted(self.options)) or "-"
        return " ".join((options, self.store, *(f"{kind}:{seed}" for kind, seed in self.faults)))

    @classmethod
    def parsed(cls, text: str) -> "Draw":
        options, store, *faults = text.split()
        planted = tuple((kind, int(seed)) for kind, _, seed in (fault.partition(":") for fault in faults))
        return cls(store, planted, frozenset(options.split(",")) & {*OPTIONS})

    def smaller(self) -> Iterator["Draw"]:
        """Yield the same with fewer faults, the fewest first."""
        for size in range(1, len(self.faults)):
            yield from (self._replace(faults=some) for some in combinations(self.faults, size))


def drawn(seed: int, most: int = _MOST) -> Draw:
    random, choices = Random(seed), Random(-seed)
    kinds = random.choices(sorted(KINDS), k=random.randint(1, most))
    store = random.choice(STORES)
    faults = tuple((kind, random.randrange(10**6)) for kind in kinds)
    return Draw(store, faults, frozenset(option for option in OPTIONS if choices.random() < 0.5))


class HangError(BaseException):
    """A verb took so long that it must be caught in something."""


class Violation(NamedTuple):
    """What a verb did that it must not do."""

    rule: str
    text: str


# Faults that nothing in the store contradicts where they are planted: a free field without a checksum, bytes after the
# log's end, a name that sorts where the old one did, newest records that no queue names.
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


# --- the checks ------------------------------------------------------------------------------------------------------


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


def planted(draw: Draw, folder: Path) -> Planted:
    root = Path(shutil.copytree(golden(draw.store), folder / "store"))
    pristine = read_files_except_replaced(root)
    donor = golden(next(name for name in _DONORS if name[:4] != draw.store[:4]))
    done: list[tuple[str, int]] = []
    states = [pristine]
    for kind, seed in draw.faults:
        try:
            KINDS[kind](Target(root, Random(seed), donor))
        except NO_PLACE:
            continue
        states.append(read_files_except_replaced(root))
        done.append((kind, seed))
        before = states.index(states[-1])  # a fault that does nothing, or takes the last ones back
        del states[before + 1 :], done[before:]
    return Planted(root, pristine, states[-1], draw._replace(faults=tuple(done)))


Check = Callable[[Planted], Iterator[Violation]]


def find_violations(draw: Draw, check: Check) -> list[Violation]:
    """Return the violations that *check* finds in a draw; a timeout or a traceback is also a violation."""
    signal.signal(signal.SIGVTALRM, _is_in_its_chain)
    with tempfile.TemporaryDirectory() as name:
        one = planted(draw, Path(name))
        signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST)
        try:
            return list(check(one)) if one.draw.faults else []
        except HangError:
            return [Violation("hang", f"{_LONGEST} s")]
        except Exception as error:  # noqa: BLE001 - any traceback is a violation
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.name}"
            return [Violation("traceback", f"{type(error).__name__} in {place}: {error}")]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _is_in_its_chain(_number: int, _frame: object) -> NoReturn:
    raise HangError


def of_faults(one: Planted) -> Iterator[Violation]:
    store = str(one.root)
    report = inspect_store(store, (), BrokerConf(), deep=False, progress=do_nothing)
    yield from _of_problems(one, report.problems)
    inspected = report.health
    found = verify(VerifyRequest(store), SerialWorkers())
    yield from _of_verdict(one, found)
    if inspected.is_alarm and not found.severity.is_alarm:
        yield Violation("inspect is red and verify green", inspected.value)
    with suppress(UndecidedError, NotAStore):  # of a log that is gone nothing is taken, and it says so
        taken = ingest_store(store, one.root.parent / "lake").severity
        if taken.is_alarm and not found.severity.is_alarm:
            yield Violation("ingest is red and verify green", taken.value)
    yield from of_repairs(one._replace(draw=one.draw._replace(options=frozenset())), found)


def _undone(one: Planted) -> Iterator[Violation]:
    undo(str(one.root), one.root.parent / "repair")
    now = read_files_except_replaced(one.root)
    if different := sorted(name for name in {*now, *one.damaged} if now.get(name) != one.damaged.get(name)):
        yield Violation("undo does not restore", ", ".join(different))


def _of_problems(one: Planted, problems: Problems) -> Iterator[Violation]:
    for problem in problems:
        name = os.path.relpath(problem.file, one.root)
        if problem.severity is Severity.DAMAGE and name in one.pristine and not one.is_changed(name):
            yield Violation("inspect reports an undamaged file", f"{name}: {problem.text}")


def _unseen(one: Planted) -> frozenset[str]:
    """Return the kinds of faults that nothing in this store proves."""
    unseen = _MAY_BE_UNSEEN - (_CRC_COVERS if one.draw.store.endswith("-crc") else set())
    if sum(name.startswith("commitlog/") for name in one.pristine) == 1:
        unseen |= {"lengthen-segment"}  # nothing says how long the only one was
    if one.is_killed and _are_newest_changed(one, 5):
        unseen |= {"zero-page"}  # as a power cut leaves the newest records
    if _are_newest_changed(one, 0) or _is_filler_changed(one):
        unseen |= _IN_RECORDS  # after the log's end, or after the last record of a segment
    unseen |= _unseen_of_newest_index(one) if one.is_killed else set()
    if one.is_killed and _are_newest_units_lost(one):
        unseen |= {"older-queue"}  # as if the killed broker had not dispatched their records
    if not _is_newest_named(one):
        unseen |= {"zero-newest", "random-newest", "older-segment"}
    if not any(any(was) for name, was in one.pristine.items() if not one.damaged.get(name)):
        unseen |= {"delete-segment", "empty-segment"}  # the one that was made ahead of need
    if _are_changes_of_expiredunits(one):
        unseen |= {"unit-bit"}  # tags, size of a message that retention deleted: other units are not compared
    if _are_changes_of_expired_seconds(one):
        unseen |= {"index-bit"}  # the seconds of such a message: a clock may have been set back
    if any(kind == "zero-newest" for kind, _ in one.draw.faults):
        unseen |= {"index-bit"}  # an entry of a message that no record and no unit knows any more
    return unseen


def _are_newest_units_lost(one: Planted) -> bool:
    """Return whether queues have only lost units, all of records after those of all other units."""
    names = [name for name in {*one.pristine, *one.damaged} if name.startswith("consumequeue/")]
    before, after = (
        {unit for name in names for unit in units(files.get(name, b"")) if any(unit)}
        for files in (one.pristine, one.damaged)
    )
    return after < before and min(unit[:8] for unit in before - after) > max((unit[:8] for unit in after), default=b"")


def _unseen_of_newest_index(one: Planted) -> frozenset[str]:
    """Return the kinds that a killed broker's next start repairs: it rebuilds the newest index file."""
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
    for cause, _ in found.findings_by_cause:
        is_named = any(name == cause.file or name.startswith(f"{cause.file}/") for name in changed)
        if cause.severity.is_alarm and not cause.is_undecided and not is_named and cause.part not in parts:
            yield Violation("a cause that was not planted", cause.text)
        is_right = cause.file in one.pristine and not one.is_changed(cause.file)
        if cause.kind in {DAMAGED_RANGE, DifferenceKind.HOLE} and is_right and not cause.is_undecided:
            yield Violation("a right file is called damaged", cause.text)


def _part(name: str) -> str:
    folder = name.partition("/")[0]
    return {"commitlog": "log", "index": "index", "checkpoint": "index"}.get(folder, "queues")


def _wrong_files(one: Planted, after: Files) -> Iterator[Violation]:
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
    """Yield the errors in the replacement of a wrong file that differs from the original."""
    was, damaged = one.pristine[name], one.damaged.get(name, b"")
    if now is None:
        if not name.startswith("index/"):  # the right bytes may have come under the clock's name
            yield Violation("a wrong file was deleted", name)
    elif name == "checkpoint":
        newest = max((record.store_timestamp for _, _, record in records_in(one.root)), default=0)
        times: tuple[int, ...] = struct.unpack_from(">qqq", now)
        if max(times) > max(newest, *struct.unpack_from(">qqq", was)):
            yield Violation("a checkpoint after the log", name)
    elif name.startswith("commitlog/"):
        right = [at for at in range(min(len(damaged), len(was))) if damaged[at] == was[at]]
        if len(now) < len(was) or any(now[at] != was[at] for at in right):
            yield Violation("right bytes of the log were changed", name)
    elif name.startswith("consumequeue/") and (not _is_log_whole(one) or "expired" in one.draw.store):
        left, changed = [*units(damaged), *[b""] * len(was)], _changed_records(one)
        wrong = [
            number
            for number, (old, new, there) in enumerate(zip(units(was), units(now), left, strict=False))
            for known in [12 if old[:8] in changed and there != old else UNIT.size]
            if new[:known] != old[:known] and any(new) and new[8:] != BLANK_UNIT and (any(old) or not one.is_killed)
        ]  # tags are only in a record and its unit; a killed broker had not dispatched every record
        if wrong or len(now) != len(was):
            yield Violation("a queue file is not what it was", f"{name}: units {wrong[:4]}")
    elif not (name.startswith("index/") and _is_part(one, now, [was])):
        yield Violation("a replacement is not what was there", name)


def _are_newest_changed(one: Planted, newest: int) -> bool:
    """Return whether only that many of the *newest* records of the log have changed, or bytes after them."""
    offsets = _changed_offsets(one)
    return bool(offsets) and min(offsets) >= _ends(one)[-1 - newest]


def _is_filler_changed(one: Planted) -> bool:
    """Return whether only unused bytes of the log have changed: those of blanks after their heads."""
    offsets, ends = _changed_offsets(one), _ends(one)
    starts = [after for after, following in pairwise(ends) if following // SEGMENT > after // SEGMENT]
    return bool(offsets) and all(
        any(start + BLANK.size <= at < (start // SEGMENT + 1) * SEGMENT for start in starts) for at in offsets
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
    return [record.end_offset for _, _, record in records_in(golden(one.draw.store))]


def _is_newest_named(one: Planted) -> bool:
    """Return whether a unit in a correct queue file names the newest record, which no longer exists."""
    _, _, newest = records_in(golden(one.draw.store))[-1]
    address = UNIT.pack(newest.physical_offset, newest.total_size, 0)[:12]
    return any(
        unit.startswith(address)
        for name, data in one.damaged.items() if name.startswith("consumequeue/") and not one.is_changed(name)
        for unit in units(data)
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


def _are_changes_of_expiredunits(one: Planted) -> bool:
    """Return whether queues differ in sizes and tags codes alone, of units whose records may lie before the log."""
    start = _log_start(one)
    changed = [
        (was, now)
        for name in one.changed & set(one.pristine) & set(one.damaged) if name.startswith("consumequeue/")
        for was, now in zip(units(one.pristine[name]), units(one.damaged[name]), strict=False) if was != now
    ]  # fmt: skip
    ends = (int.from_bytes(now[:8]) + int.from_bytes(now[8:12]) for _, now in changed)
    return all(was[:8] == now[:8] for was, now in changed) and all(end <= start for end in ends)


def _is_log_whole(one: Planted) -> bool:
    return not any(name.startswith("commitlog/") for name in one.changed)


def _is_dispatched(one: Planted, name: str, now: bytes | None) -> bool:
    """Return whether a queue file has besides only units that the killed broker had not come to."""
    was = one.pristine[name].rstrip(b"\0")
    return one.is_killed and name.startswith("consumequeue/") and (now or b"").startswith(was)


def _is_part(one: Planted, data: bytes, lost: Sequence[bytes]) -> bool:
    """
    Return whether an index file says nothing but what lost ones said; only where the log has lost messages.

    Nothing proves the keys of a changed record whose index file is lost. Where retention has deleted segments,
    files of the remaining log begin elsewhere than the lost ones, so each later file is cut elsewhere.
    """
    new = _entries(data) - {entry for was in lost for entry in _entries(was)}
    if one.is_killed:  # the killed broker may have come to none of them
        known = {entry for name, was in one.pristine.items() if name.startswith("index/") for entry in _entries(was)}
        if not new & known:
            return True
    if _is_log_whole(one) and "expired" not in one.draw.store:
        return False
    return {entry[4:] for entry in new} <= _changed_records(one)


def _changed_records(one: Planted) -> set[bytes]:
    """Return the offsets, as an index entry has them, of records that are framed soundly and not what they were."""
    found = set()
    for path, at, record in records_in(one.root):
        was = one.pristine.get(str(path.relative_to(one.root)), b"")[at : at + record.total_size]
        if was != path.read_bytes()[at : at + record.total_size]:
            found.add(struct.pack(">q", record.physical_offset))
    return found


def _entries(data: bytes) -> set[bytes]:
    count = struct.unpack_from(">i", data, HEADER.size - 4)[0] if len(data) >= HEADER.size else 0
    starts = (GEOMETRY.entry_position(number) for number in range(1, max(min(count, GEOMETRY.index_num), 1)))
    return {data[at : at + 12] for at in starts}


# --- repairs ---

# Kinds that a checksum, a size or a name proves: with a lake, every byte is restored.
_DECIDED = frozenset({
    "zero-page", "bit-body", "delete-segment", "rename-segment", "cut-segment", "lengthen-segment", "delete-queue",
    "cut-queue", "lengthen-queue", "unit-high-bit", "cut-index", "swap-index", "foreign-segment", "zero-properties",
})  # fmt: skip


@cache
def lake_of(name: str) -> Lake:
    folder = make_process_folder("repair-draws-lake-")
    release = None if name in SITUATIONS else release_of(name)
    ingest_store(golden(name), folder / "lake", release=release)
    return Lake(str(folder / "lake"))


def of_repairs(one: Planted, verified: Verdict | None = None) -> Iterator[Violation]:
    """Repair with a lake, with bridges, with accepted files; repair again, and undo both; compare with a verdict."""
    try:
        plan = _repaired(one, "plan", apply=False)
        if read_files_except_replaced(one.root) != one.damaged:
            yield Violation("a plan changes the store", "")
        accepted = frozenset(plan.undecided) if "accept" in one.draw.options else frozenset[str]()
        done = _repaired(one, "repair", accepted)
    except UndecidedError:
        return
    except (NotRepairableError, NotInstalledError) as error:
        yield Violation("refused", f"{type(error).__name__}: {error}")
        return
    if verified is not None and plan.found.severity is not verified.severity:
        yield Violation("repair finds something else", f"{plan.found.severity.value}, not {verified.severity.value}")
    after = read_files_except_replaced(one.root)
    yield from _of_files(one, after, accepted)
    yield from _of_harm(plan.found.start, done.start)
    left = [] if done.left is None else [cause for cause, _ in done.left.findings_by_cause]
    new = any(cause.severity.exit_code > plan.found.exit_code and not _was_hidden(one, cause) for cause in left)
    if new if verified is None else done.exit_code > verified.exit_code:
        yield Violation("worse than before", f"{done.severity.value}, not {plan.found.severity.value}")
    again = _repaired(one, "repair")  # files that were undecided before may be decided now
    yield from _of_files(one, read_files_except_replaced(one.root), accepted)
    if done.files or again.files:
        yield from _undone(one)


def _was_hidden(one: Planted, cause: Finding) -> bool:
    """Return whether a cause was there before, behind another one; what lost index files had, the next one names."""
    lost = (name for name in {*one.pristine} - {*one.damaged} if name.startswith("index/"))
    is_of_lost = cause.kind == MISSING_INDEX_ENTRIES and any(name < cause.file for name in lost)
    return is_of_lost or cause.file in one.changed


def _repaired(one: Planted, out: str, accepted: frozenset[str] = frozenset(), *, apply: bool = True) -> RepairSummary:
    request = RepairRequest(
        str(one.root), one.root.parent / out, lake_of(one.draw.store) if "lake" in one.draw.options else None,
        apply=apply, bridge="bridge" in one.draw.options, accepted=accepted,
    )  # fmt: skip
    return repair(request, SerialWorkers())


def _of_files(one: Planted, after: Files, accepted: frozenset[str]) -> Iterator[Violation]:
    repaired = after
    if "bridge" in one.draw.options:
        yield from _of_bridged(one, after)
        repaired = {name: _without_bridges(one, name, data) for name, data in after.items()}
    if _is_advanced_to_accepted(one, after, accepted):
        repaired = repaired | {"checkpoint": one.damaged["checkpoint"]}
    for violation in _wrong_files(one, repaired):
        if not any(name in violation.text for name in accepted):
            yield violation
    kinds = {kind for kind, _ in one.draw.faults}
    is_known = any(name.startswith("commitlog/") for name in {*one.pristine} - one.changed)  # to the lake, by its bytes
    if "lake" in one.draw.options and kinds <= _DECIDED and is_known:
        for name in sorted(one.changed & {*one.pristine}):
            if _is_undecided(one, name):
                continue
            was = one.pristine[name]
            was = was.rstrip(b"\0") if name.startswith("commitlog/") else was  # what follows the log's end is its own
            if not after.get(name, b"").startswith(was):
                yield Violation("the lake has it, and it was not restored", name)


def _is_advanced_to_accepted(one: Planted, after: Files, accepted: frozenset[str]) -> bool:
    """
    Return whether the checkpoint differs only in its index time, which is now the end of an accepted index file.

    A start after a crash deletes index files that end later, so a repair that installs such a file advances the time.
    """
    if not {"checkpoint"} <= {*one.damaged} & {*after} or len(one.damaged["checkpoint"]) < 24:
        return False
    before, now = (files["checkpoint"] for files in (one.damaged, after))
    ends = [after[name][8:16] for name in accepted if name.startswith("index/") and name in after]
    return before[:16] == now[:16] and before[24:] == now[24:] and before[16:24] < now[16:24] and now[16:24] in ends


def _is_undecided(one: Planted, name: str) -> bool:
    """
    Return whether a repair restores only part of a file, or nothing, although its fault is proven in other stores.

    Blanks stand for units of messages that retention deleted; other sound records at their own offsets may be those of
    a log that was rewritten.
    """
    if not name.startswith("commitlog/"):
        return "expired" in one.draw.store
    is_foreign = any(kind == "foreign-segment" for kind, _ in one.draw.faults)
    with suppress(FormatError):
        first, other = (decode_record(files.get(name, b"")) for files in (one.pristine, one.damaged))
        is_at_own_offset = first.physical_offset == other.physical_offset and has_right_body_crc(other)
        return is_foreign and is_at_own_offset and first != other
    return False


def _without_bridges(one: Planted, name: str, data: bytes) -> bytes:
    """Return a file with the former bytes in place of bridges, and of the blanks in place of units that led to them."""
    before = one.damaged.get(name, one.pristine.get(name, data))
    if name.startswith("commitlog/"):
        return before
    if not name.startswith("consumequeue/"):
        return data
    pairs = zip_longest(units(data), units(before)[: len(units(data))], fillvalue=b"")
    return b"".join(was if now == UNIT.pack(*PRE_BLANK) and _leads_to_lost(one, was) else now for now, was in pairs)


def _leads_to_lost(one: Planted, unit: bytes) -> bool:
    if len(unit) < UNIT.size:
        return False
    offset, size = int.from_bytes(unit[:8]), int.from_bytes(unit[8:12])
    at = offset % SEGMENT
    name = f"commitlog/{offset - at:020d}"
    was, now = (files.get(name, b"")[at : at + size] for files in (one.pristine, one.damaged))
    return was != now


def _of_bridged(one: Planted, after: Files) -> Iterator[Violation]:
    """Yield records that were whole before bridges were written, and are not now."""
    for path, at, record in records_in(golden(one.draw.store)):
        name = str(path.relative_to(golden(one.draw.store)))
        was, now = (files.get(name, b"")[at : at + record.total_size] for files in (one.damaged, after))
        if was == one.pristine[name][at : at + record.total_size] != now:
            yield Violation("a bridge over a whole record", f"{name} at {at}")


def _of_harm(before: StartOutcome | None, after: StartOutcome | None) -> Iterator[Violation]:
    """Yield what a start deletes that it would not have deleted before."""
    if before is None or after is None or after.starts is False:
        return
    allowed = 0 if before.starts is False else before.deletes_messages
    if allowed is not None and after.deletes_messages is not None and after.deletes_messages > allowed:
        yield Violation("a start deletes more", f"{after.deletes_messages}, not {allowed}")


def failure(draw: Draw, check: Check) -> str | None:
    """Return the smallest draw that breaks the same rules, as a line that repeats it; None where none is broken."""
    found = find_violations(draw, check)
    rules = {violation.rule for violation in found}
    for smaller in draw.smaller() if rules else ():
        if same := [violation for violation in find_violations(smaller, check) if violation.rule in rules]:
            draw, found = smaller, same
            break
    return f"{draw} # {'; '.join(sorted({f'{one.rule}: {one.text}' for one in found}))}" if found else None


def main(what: str, *arguments: str) -> None:
    """Check one draw, or SEED COUNT [FAULTS] of them."""
    from tests.support.agreeing_verbs import of_agreement

    if "TMPDIR" not in os.environ and Path(_MEMORY).is_dir():
        tempfile.tempdir = _MEMORY  # half of a draw's time on a disk is spent waiting until files are flushed
    check = {"faults": of_faults, "repairs": of_repairs, "agreement": of_agreement}[what]
    if not arguments[0].isdigit():
        print(*find_violations(Draw.parsed(" ".join(arguments)), check), sep="\n")
        return
    first, count, most = (int(number) for number in (*arguments, str(_MOST))[:3])
    failed = 0
    for seed in range(first, first + count):
        if found := failure(drawn(seed, most), check):
            failed += 1
            print(f"python -m tests.support.fault_draws {what} {found}", flush=True)
    print(f"{count} draws, {failed} with violations, {process_time() / max(count, 1):.2f} CPU seconds each")


if __name__ == "__main__":
    main(*sys.argv[1:])
