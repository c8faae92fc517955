"""
Random combinations of one to four faults in stores of many releases, each checked against the planted faults.

    python -m tests.support.fault_draws CHECK SEED COUNT [FAULTS]          check random draws, and shrink failing ones
    python -m tests.support.fault_draws CHECK OPTIONS STORE KIND:SEED …    repeat one draw; OPTIONS: lake,bridge or -

CHECK is `faults`, `repairs` or `agreement`. The store before its damage shows which files are right, and the former
content of the others. Every command runs in this process, without Spark.
"""

import json
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from itertools import combinations, pairwise, zip_longest
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import Mock

from jobs.console.result import ExitCode, RequestError, Severity
from jobs.diagnosis.findings import Finding
from jobs.diagnosis.kinds import DAMAGED_RANGE, MISSING_INDEX_ENTRIES
from jobs.inspect.inspection import inspect_store
from jobs.inspect.report import Problems
from jobs.lake.lake import Lake
from jobs.products.queues.join_result import DifferenceKind
from jobs.query.source import do_nothing
from jobs.repair.run import RepairSummary, repair, undo
from jobs.requests.query import QueryTarget
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.release import UndecidedError
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
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
from tests.support.commands import run_in_process
from tests.support.fault_kinds import GEOMETRY, KINDS, NO_PLACE, SEGMENT, Target, golden, records_in, units
from tests.support.lakes import ingest_store, rows_of
from tests.support.pages import render_page
from tests.support.stores import make_process_directory, read_store_files

STORES = (
    "b420-direct", "b420-expired", "b470-base", "b470-crash-after", "b498-types", "b498-crash-before", "b498-cqext",
    "b514-timer", "b514-expired", "b533-base", "b533-crash-before", "b533-types-crc", "b551-crash-later",
    "b551-types-crc", "b551-cqdouble",
)  # fmt: skip
_DONORS = ("b514-base", "b470-base")  # sources of foreign files
OPTIONS = ("lake", "bridge", "accept")  # of repairs
BLANK_UNIT = UNIT.pack(*PRE_BLANK)[8:]  # without the offset
_MAX_FAULTS = 4
_MEMORY_DIRECTORY = "/dev/shm"
_TIMEOUT_S = 120  # CPU seconds of a draw; the first one compiles
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
    def parse(cls, text: str) -> "Draw":
        options, store, *faults = text.split()
        planted = tuple((kind, int(seed)) for kind, _, seed in (fault.partition(":") for fault in faults))
        return cls(store, planted, frozenset(options.split(",")) & {*OPTIONS})

    def smaller(self) -> Iterator["Draw"]:
        """Yield this draw with fewer faults, the fewest first."""
        for size in range(1, len(self.faults)):
            yield from (self._replace(faults=some) for some in combinations(self.faults, size))


def draw_case(seed: int, max_faults: int = _MAX_FAULTS) -> Draw:
    random, choices = Random(seed), Random(-seed)
    kinds = random.choices(sorted(KINDS), k=random.randint(1, max_faults))
    store = random.choice(STORES)
    faults = tuple((kind, random.randrange(10**6)) for kind in kinds)
    return Draw(store, faults, frozenset(option for option in OPTIONS if choices.random() < 0.5))


class HangError(BaseException):
    """A command exceeded the timeout."""


class Violation(NamedTuple):
    """A rule that a command broke, and the details."""

    rule: str
    text: str


# Faults that may be undetectable: a field without a checksum, bytes after the end of the log, a name that does not
# change the order of the files, newest records without units.
_MAY_BE_UNDETECTABLE = frozenset({
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


class DamagedStore(NamedTuple):
    """A damaged copy of a store, and its content before and after the damage."""

    root: Path
    pristine: Files
    damaged: Files
    draw: Draw  # without faults that could not be planted

    @property
    def is_killed(self) -> bool:
        return "crash" in self.draw.store or "abort" in self.damaged

    @property
    def changed(self) -> set[str]:
        return {name for name in {*self.pristine, *self.damaged} if self.is_changed(name)}

    def is_changed(self, name: str) -> bool:
        return self.pristine.get(name) != self.damaged.get(name)


def plant_faults(draw: Draw, directory: Path) -> DamagedStore:
    root = Path(shutil.copytree(golden(draw.store), directory / "store"))
    pristine = read_store_files(root)
    donor = golden(next(name for name in _DONORS if name[:4] != draw.store[:4]))
    done: list[tuple[str, int]] = []
    states = [pristine]
    for kind, seed in draw.faults:
        try:
            KINDS[kind](Target(root, Random(seed), donor))
        except NO_PLACE:
            continue
        states.append(read_store_files(root))
        done.append((kind, seed))
        before = states.index(states[-1])  # if a fault changes nothing, or reverts earlier faults
        del states[before + 1 :], done[before:]
    return DamagedStore(root, pristine, states[-1], draw._replace(faults=tuple(done)))


Check = Callable[[DamagedStore], Iterator[Violation]]


def find_violations(draw: Draw, check: Check) -> list[Violation]:
    """Return the violations that *check* finds in a draw; a timeout or a traceback is also a violation."""
    signal.signal(signal.SIGVTALRM, Mock(side_effect=HangError))
    with tempfile.TemporaryDirectory() as name:
        case = plant_faults(draw, Path(name))
        signal.setitimer(signal.ITIMER_VIRTUAL, _TIMEOUT_S)
        try:
            return list(check(case)) if case.draw.faults else []
        except HangError:
            return [Violation("hang", f"{_TIMEOUT_S} s")]
        except Exception as error:  # noqa: BLE001 - any traceback is a violation
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.name}"
            return [Violation("traceback", f"{type(error).__name__} in {place}: {error}")]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def check_faults(case: DamagedStore) -> Iterator[Violation]:
    store = str(case.root)
    report = inspect_store(store, (), BrokerConf(), deep=False, progress=do_nothing)
    yield from _check_problems(case, report.problems)
    inspected = report.health
    found = verify(VerifyRequest(store), SerialWorkers())
    yield from _check_verdict(case, found)
    if inspected.is_alarm and not found.severity.is_alarm:
        yield Violation("inspect reports a problem that verify does not", inspected.value)
    with suppress(UndecidedError, NotAStore):  # `ingest` refuses a store without a log
        taken = ingest_store(store, case.root.parent / "lake").severity
        if taken.is_alarm and not found.severity.is_alarm:
            yield Violation("ingest reports a problem that verify does not", taken.value)
    yield from check_repairs(case._replace(draw=case.draw._replace(options=frozenset())), found)


def _check_undo(case: DamagedStore) -> Iterator[Violation]:
    undo(str(case.root), case.root.parent / "repair")
    now = read_store_files(case.root)
    if different := sorted(name for name in {*now, *case.damaged} if now.get(name) != case.damaged.get(name)):
        yield Violation("undo does not restore", ", ".join(different))


def _check_problems(case: DamagedStore, problems: Problems) -> Iterator[Violation]:
    for problem in problems:
        name = os.path.relpath(problem.file, case.root)
        if problem.severity is Severity.DAMAGE and name in case.pristine and not case.is_changed(name):
            yield Violation("inspect reports an undamaged file", f"{name}: {problem.text}")


def _undetectable_kinds(case: DamagedStore) -> frozenset[str]:
    """Return the kinds of faults that nothing in this store contradicts."""
    undetectable = _MAY_BE_UNDETECTABLE - (_CRC_COVERS if case.draw.store.endswith("-crc") else set())
    if sum(name.startswith("commitlog/") for name in case.pristine) == 1:
        undetectable |= {"lengthen-segment"}  # the size of the only segment is unknown
    if case.is_killed and _are_newest_changed(case, 5):
        undetectable |= {"zero-page"}  # a power failure may also zero the newest records
    if _are_newest_changed(case, 0) or _is_filler_changed(case):
        undetectable |= _IN_RECORDS  # after the log's end, or after the last record of a segment
    undetectable |= _undetectable_in_newest_index(case) if case.is_killed else set()
    if case.is_killed and _are_newest_units_lost(case):
        undetectable |= {"older-queue"}  # as if the killed broker had not dispatched their records
    if not _has_unit_of_newest(case):
        undetectable |= {"zero-newest", "random-newest", "older-segment"}
    if not any(any(was) for name, was in case.pristine.items() if not case.damaged.get(name)):
        undetectable |= {"delete-segment", "empty-segment"}  # the preallocated segment
    if _are_only_expired_units_changed(case):
        undetectable |= {"unit-bit"}  # tags or size of a message that retention deleted
    if _are_only_expired_seconds_changed(case):
        undetectable |= {"index-bit"}  # the time of such a message: the clock may have been set back
    if any(kind == "zero-newest" for kind, _ in case.draw.faults):
        undetectable |= {"index-bit"}  # an entry of a message without a record and a unit
    return undetectable


def _are_newest_units_lost(case: DamagedStore) -> bool:
    """Return whether the only change to queues is the loss of the units of the newest records."""
    names = [name for name in {*case.pristine, *case.damaged} if name.startswith("consumequeue/")]
    before, after = (
        {unit for name in names for unit in units(files.get(name, b"")) if any(unit)}
        for files in (case.pristine, case.damaged)
    )
    return after < before and min(unit[:8] for unit in before - after) > max((unit[:8] for unit in after), default=b"")


def _undetectable_in_newest_index(case: DamagedStore) -> frozenset[str]:
    """Return the kinds that a killed broker's next start repairs: it rebuilds the newest index file."""
    changed = sorted(name for name in case.changed & set(case.pristine) if name.startswith("index/"))
    newest = max(name for name in case.pristine if name.startswith("index/"))
    if newest not in changed:
        return frozenset()
    is_all = changed == [newest] and not any(case.damaged.get(newest, b""))
    return frozenset(kind for kind in KINDS if is_all and "index" in kind) | {"delete-index", "break-off-index"}


def _check_verdict(case: DamagedStore, found: Verdict) -> Iterator[Violation]:
    seen = sorted({kind for kind, _ in case.draw.faults} - _undetectable_kinds(case))
    if seen and found.exit_code is ExitCode.CLEAN and not any(part.doubts for part in found.parts.values()):
        yield Violation("no report of damage", f"{found.severity.value}: {', '.join(seen)}")
    changed = case.changed
    parts_by_directory = {"commitlog": "log", "index": "index", "checkpoint": "index"}
    parts = {parts_by_directory.get(name.partition("/")[0], "queues") for name in changed}
    if "queues" in parts:
        parts.add("configuration")  # positions of consumers are compared with the ends of queues
    for cause, _ in found.findings_by_cause:
        is_named = any(name == cause.file or name.startswith(f"{cause.file}/") for name in changed)
        if cause.severity.is_alarm and not cause.is_undecided and not is_named and cause.part not in parts:
            yield Violation("a cause that was not planted", cause.text)
        is_right = cause.file in case.pristine and not case.is_changed(cause.file)
        if cause.kind in {DAMAGED_RANGE, DifferenceKind.HOLE} and is_right and not cause.is_undecided:
            yield Violation("a right file is called damaged", cause.text)


def _check_files(case: DamagedStore, after: Files) -> Iterator[Violation]:
    for name, was in sorted(case.pristine.items()):
        now = after.get(name)
        if not case.is_changed(name):
            if now != was and not (name == "checkpoint" and _is_only_evidence_of_log_end(case)):
                yield Violation("a right file was changed", name)
        elif now not in {case.damaged.get(name), was} and not _has_only_new_units(case, name, now):
            yield from _check_replacement(case, name, now)
    lost = [case.pristine[name] for name in case.changed & set(case.pristine) if name.startswith("index/")]
    for name in sorted(set(after) - set(case.pristine) - set(case.damaged)):
        if after[name] not in lost and not _has_only_lost_entries(case, after[name], lost):
            yield Violation("a file that no broker wrote", name)


def _is_only_evidence_of_log_end(case: DamagedStore) -> bool:
    """
    Return whether only the checkpoint shows that the log lost its end: no queue and no index file is left.

    Once these are rebuilt from the shorter log, they agree with it, and the checkpoint looks as if it were wrong.
    """
    newest = max((record.store_timestamp for _, _, record in records_in(case.root)), default=0)
    is_late = max(struct.unpack_from(">qqq", case.damaged["checkpoint"])) > newest
    return is_late and not any(name.startswith(("consumequeue/", "index/")) for name in case.damaged)


def _check_replacement(case: DamagedStore, name: str, now: bytes | None) -> Iterator[Violation]:
    """Yield the errors in the replacement of a wrong file that differs from the original."""
    was, damaged = case.pristine[name], case.damaged.get(name, b"")
    if now is None:
        if not name.startswith("index/"):  # its bytes may be in a file named after the current time
            yield Violation("a wrong file was deleted", name)
    elif name == "checkpoint":
        newest = max((record.store_timestamp for _, _, record in records_in(case.root)), default=0)
        times: tuple[int, ...] = struct.unpack_from(">qqq", now)
        if max(times) > max(newest, *struct.unpack_from(">qqq", was)):
            yield Violation("a checkpoint after the log", name)
    elif name.startswith("commitlog/"):
        right = [at for at in range(min(len(damaged), len(was))) if damaged[at] == was[at]]
        if len(now) < len(was) or any(now[at] != was[at] for at in right):
            yield Violation("right bytes of the log were changed", name)
    elif name.startswith("consumequeue/") and (not _is_log_unchanged(case) or "expired" in case.draw.store):
        left, changed = [*units(damaged), *[b""] * len(was)], _changed_records(case)
        wrong = [
            number
            for number, (old, new, there) in enumerate(zip(units(was), units(now), left, strict=False))
            for known in [12 if old[:8] in changed and there != old else UNIT.size]
            if new[:known] != old[:known] and any(new) and new[8:] != BLANK_UNIT and (any(old) or not case.is_killed)
        ]  # tags are only in a record and its unit; a killed broker had not dispatched every record
        if wrong or len(now) != len(was):
            yield Violation("a queue file is not what it was", f"{name}: units {wrong[:4]}")
    elif not (name.startswith("index/") and _has_only_lost_entries(case, now, [was])):
        yield Violation("a replacement is not what was there", name)


def _are_newest_changed(case: DamagedStore, newest: int) -> bool:
    """Return whether at most the *newest* records of the log, of that number, or bytes after them have changed."""
    offsets = _changed_offsets(case)
    return bool(offsets) and min(offsets) >= _record_ends(case)[-1 - newest]


def _is_filler_changed(case: DamagedStore) -> bool:
    """Return whether only unused bytes of the log have changed: those after the header of a blank."""
    offsets, ends = _changed_offsets(case), _record_ends(case)
    starts = [after for after, following in pairwise(ends) if following // SEGMENT > after // SEGMENT]
    return bool(offsets) and all(
        any(start + BLANK.size <= at < (start // SEGMENT + 1) * SEGMENT for start in starts) for at in offsets
    )


def _changed_offsets(case: DamagedStore) -> list[int]:
    logs = {name: int(Path(name).name) for name in case.changed & {*case.pristine} if name.startswith("commitlog/")}
    return [
        start + at for name, start in logs.items()
        for at, (was, now) in enumerate(zip(case.pristine[name], case.damaged.get(name, b""), strict=False))
        if was != now
    ]  # fmt: skip


def _record_ends(case: DamagedStore) -> list[int]:
    return [record.end_offset for _, _, record in records_in(golden(case.draw.store))]


def _has_unit_of_newest(case: DamagedStore) -> bool:
    """Return whether an intact queue file has the unit of the newest record."""
    _, _, newest = records_in(golden(case.draw.store))[-1]
    address = UNIT.pack(newest.physical_offset, newest.total_size, 0)[:12]
    return any(
        unit.startswith(address)
        for name, data in case.damaged.items() if name.startswith("consumequeue/") and not case.is_changed(name)
        for unit in units(data)
    )  # fmt: skip


def _log_start(case: DamagedStore) -> int:
    return min((int(Path(name).name) for name in case.pristine if name.startswith("commitlog/")), default=0)


def _are_only_expired_seconds_changed(case: DamagedStore) -> bool:
    changed = [
        (was[at : at + ENTRY.size], now[at : at + ENTRY.size])
        for name, was in case.pristine.items() if name.startswith("index/") and case.is_changed(name)
        for now in [case.damaged.get(name, b"")]
        for at in [0, *map(GEOMETRY.entry_position, range(GEOMETRY.index_num))]
    ]  # fmt: skip
    return all(
        was == now or (was[:12] + was[16:] == now[:12] + now[16:] and int.from_bytes(was[4:12]) < _log_start(case))
        for was, now in changed
    )


def _are_only_expired_units_changed(case: DamagedStore) -> bool:
    start = _log_start(case)
    changed = [
        (was, now)
        for name in case.changed & set(case.pristine) & set(case.damaged) if name.startswith("consumequeue/")
        for was, now in zip(units(case.pristine[name]), units(case.damaged[name]), strict=False) if was != now
    ]  # fmt: skip
    ends = (int.from_bytes(now[:8]) + int.from_bytes(now[8:12]) for _, now in changed)
    return all(was[:8] == now[:8] for was, now in changed) and all(end <= start for end in ends)


def _is_log_unchanged(case: DamagedStore) -> bool:
    return not any(name.startswith("commitlog/") for name in case.changed)


def _has_only_new_units(case: DamagedStore, name: str, now: bytes | None) -> bool:
    """Return whether a queue file has only additional units, which the killed broker had not dispatched."""
    was = case.pristine[name].rstrip(b"\0")
    return case.is_killed and name.startswith("consumequeue/") and (now or b"").startswith(was)


def _has_only_lost_entries(case: DamagedStore, data: bytes, lost: Sequence[bytes]) -> bool:
    """
    Return whether an index file has only entries of lost files, or of changed records; only if the log is damaged.

    The keys of a changed record whose index file is lost are unknown. After retention has deleted segments, rebuilt
    files begin at other entries than the lost ones.
    """
    new = _entries(data) - {entry for was in lost for entry in _entries(was)}
    if case.is_killed:  # the killed broker may have indexed none of them
        known = {entry for name, was in case.pristine.items() if name.startswith("index/") for entry in _entries(was)}
        if not new & known:
            return True
    if _is_log_unchanged(case) and "expired" not in case.draw.store:
        return False
    return {entry[4:] for entry in new} <= _changed_records(case)


def _changed_records(case: DamagedStore) -> set[bytes]:
    """Return the offsets, packed as in an index entry, of valid records that differ from the original ones."""
    found = set()
    for path, at, record in records_in(case.root):
        was = case.pristine.get(str(path.relative_to(case.root)), b"")[at : at + record.total_size]
        if was != path.read_bytes()[at : at + record.total_size]:
            found.add(struct.pack(">q", record.physical_offset))
    return found


def _entries(data: bytes) -> set[bytes]:
    count = struct.unpack_from(">i", data, HEADER.size - 4)[0] if len(data) >= HEADER.size else 0
    starts = (GEOMETRY.entry_position(number) for number in range(1, max(min(count, GEOMETRY.index_num), 1)))
    return {data[at : at + 12] for at in starts}


# --- repairs ---

# Faults that a checksum, a size or a name proves: with a lake, every byte is restored.
_PROVABLE = frozenset({
    "zero-page", "bit-body", "delete-segment", "rename-segment", "cut-segment", "lengthen-segment", "delete-queue",
    "cut-queue", "lengthen-queue", "unit-high-bit", "cut-index", "swap-index", "foreign-segment", "zero-properties",
})  # fmt: skip


@cache
def lake_of(name: str) -> Lake:
    directory = make_process_directory("repair-draws-lake-")
    release = None if name in SITUATIONS else release_of(name)
    ingest_store(golden(name), directory / "lake", release=release)
    return Lake(str(directory / "lake"))


def check_repairs(case: DamagedStore, verified: Verdict | None = None) -> Iterator[Violation]:
    """Repair twice with the options of the draw, undo both repairs, and compare them with a verdict."""
    try:
        plan = _repair(case, "plan", apply=False)
        if read_store_files(case.root) != case.damaged:
            yield Violation("a plan changes the store", "")
        accepted = frozenset(plan.undecided_files) if "accept" in case.draw.options else frozenset[str]()
        done = _repair(case, "repair", accepted)
    except UndecidedError:
        return
    except RequestError as error:
        yield Violation("refused", f"{type(error).__name__}: {error}")
        return
    if verified is not None and plan.verdict_before.severity is not verified.severity:
        yield Violation(
            "repair differs from verify", f"{plan.verdict_before.severity.value}, not {verified.severity.value}"
        )
    after = read_store_files(case.root)
    yield from _check_repaired_files(case, after, accepted)
    yield from _check_start(plan.verdict_before.start, done.start)
    left = [] if done.verdict_after is None else [cause for cause, _ in done.verdict_after.findings_by_cause]
    new = any(
        cause.severity.exit_code > plan.verdict_before.exit_code and not _was_masked(case, cause) for cause in left
    )
    if new if verified is None else done.exit_code > verified.exit_code:
        yield Violation("worse than before", f"{done.severity.value}, not {plan.verdict_before.severity.value}")
    if done.files:
        _repair(case, "repair")  # files that were undecided before may be repaired now
        yield from _check_repaired_files(case, read_store_files(case.root), accepted)
        yield from _check_undo(case)


def _was_masked(case: DamagedStore, cause: Finding) -> bool:
    """Return whether another cause masked this one before; the loss of an index file is reported in the next file."""
    lost = (name for name in {*case.pristine} - {*case.damaged} if name.startswith("index/"))
    is_of_lost = cause.kind == MISSING_INDEX_ENTRIES and any(name < cause.file for name in lost)
    return is_of_lost or cause.file in case.changed


def _repair(
    case: DamagedStore, out: str, accepted: frozenset[str] = frozenset(), *, apply: bool = True
) -> RepairSummary:
    request = RepairRequest(
        str(case.root), case.root.parent / out, lake_of(case.draw.store) if "lake" in case.draw.options else None,
        apply=apply, bridge="bridge" in case.draw.options, accepted=accepted,
    )  # fmt: skip
    return repair(request, SerialWorkers())


def _check_repaired_files(case: DamagedStore, after: Files, accepted: frozenset[str]) -> Iterator[Violation]:
    repaired = after
    if "bridge" in case.draw.options:
        yield from _check_bridges(case, after)
        repaired = {name: _without_bridges(case, name, data) for name, data in after.items()}
    if _is_advanced_to_accepted(case, after, accepted):
        repaired = repaired | {"checkpoint": case.damaged["checkpoint"]}
    for violation in _check_files(case, repaired):
        if not any(name in violation.text for name in accepted):
            yield violation
    kinds = {kind for kind, _ in case.draw.faults}
    # The lake recognizes the store by the bytes of its log.
    is_known = any(name.startswith("commitlog/") for name in {*case.pristine} - case.changed)
    if "lake" in case.draw.options and kinds <= _PROVABLE and is_known:
        for name in sorted(case.changed & {*case.pristine}):
            if _is_undecided(case, name):
                continue
            was = case.pristine[name]
            was = was.rstrip(b"\0") if name.startswith("commitlog/") else was  # bytes after the log's end may differ
            if not after.get(name, b"").startswith(was):
                yield Violation("a file of the lake was not restored", name)


def _is_advanced_to_accepted(case: DamagedStore, after: Files, accepted: frozenset[str]) -> bool:
    """
    Return whether the checkpoint differs only in its index time, which is now the end of an accepted index file.

    A start after a crash deletes index files that end later, so a repair that installs such a file advances the time.
    """
    if not {"checkpoint"} <= {*case.damaged} & {*after} or len(case.damaged["checkpoint"]) < 24:
        return False
    before, now = (files["checkpoint"] for files in (case.damaged, after))
    ends = [after[name][8:16] for name in accepted if name.startswith("index/") and name in after]
    return before[:16] == now[:16] and before[24:] == now[24:] and before[16:24] < now[16:24] and now[16:24] in ends


def _is_undecided(case: DamagedStore, name: str) -> bool:
    """
    Return whether a repair restores only part of a file, or nothing, although its fault is proven in other stores.

    Units of messages that retention deleted are rebuilt as blanks; other valid records at their own offsets may belong
    to a log that was rewritten.
    """
    if not name.startswith("commitlog/"):
        return "expired" in case.draw.store
    is_foreign = any(kind == "foreign-segment" for kind, _ in case.draw.faults)
    with suppress(FormatError):
        first, other = (decode_record(files.get(name, b"")) for files in (case.pristine, case.damaged))
        is_at_own_offset = first.physical_offset == other.physical_offset and has_right_body_crc(other)
        return is_foreign and is_at_own_offset and first != other
    return False


def _without_bridges(case: DamagedStore, name: str, data: bytes) -> bytes:
    """Return a file with the former bytes in place of bridges, and the former units in place of their blanks."""
    before = case.damaged.get(name, case.pristine.get(name, data))
    if name.startswith("commitlog/"):
        return before
    if not name.startswith("consumequeue/"):
        return data
    pairs = zip_longest(units(data), units(before)[: len(units(data))], fillvalue=b"")
    return b"".join(
        was if now == UNIT.pack(*PRE_BLANK) and _has_changed_record(case, was) else now for now, was in pairs
    )


def _has_changed_record(case: DamagedStore, unit: bytes) -> bool:
    if len(unit) < UNIT.size:
        return False
    offset, size = int.from_bytes(unit[:8]), int.from_bytes(unit[8:12])
    at = offset % SEGMENT
    name = f"commitlog/{offset - at:020d}"
    was, now = (files.get(name, b"")[at : at + size] for files in (case.pristine, case.damaged))
    return was != now


def _check_bridges(case: DamagedStore, after: Files) -> Iterator[Violation]:
    for path, at, record in records_in(golden(case.draw.store)):
        name = str(path.relative_to(golden(case.draw.store)))
        was, now = (files.get(name, b"")[at : at + record.total_size] for files in (case.damaged, after))
        if was == case.pristine[name][at : at + record.total_size] != now:
            yield Violation("a bridge over an intact record", f"{name} at {at}")


def _check_start(before: StartOutcome | None, after: StartOutcome | None) -> Iterator[Violation]:
    """Yield a violation if a start deletes more messages than before the repair."""
    if before is None or after is None or after.starts is False:
        return
    allowed = 0 if before.starts is False else before.deletes_messages
    if allowed is not None and after.deletes_messages is not None and after.deletes_messages > allowed:
        yield Violation("a start deletes more", f"{after.deletes_messages}, not {allowed}")


# --- agreement of commands ---
# Each command that reads a damaged store returns all of its messages, or reports a loss by its exit code. The expected
# messages are those that any command returns.

_QUERIED_TOPICS = 3  # of a store, each of which is queried
_QUERIED_MESSAGES = 4
_REPORTED = {ExitCode.DAMAGE, ExitCode.NOT_FOUND, ExitCode.MISMATCH}


class CommandResult(NamedTuple):
    """The exit code of a command, and its messages by offset."""

    code: int
    messages: Mapping[int, Mapping[str, Any]]


def _run_command(*words: str | Path) -> CommandResult:
    """Run a command line in this process, and return its exit code and messages."""
    code, out, _ = run_in_process(*words)
    rows = [json.loads(line) for line in out.split("\n") if line.startswith("{")]
    return CommandResult(code, {row["physical_offset"]: row for row in rows if row.get("type") == "message"})


def _export_messages(*words: str | Path, out: Path) -> CommandResult:
    out.unlink(missing_ok=True)
    code = _run_command("export", *words, "--engine", "local", "--out", out, "--quiet").code
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return CommandResult(code, {row["physical_offset"]: row for row in rows})


def _browse_messages(option: str, place: str | Path) -> CommandResult:
    """Return the messages on all pages; if a page reports that messages may be missing, the exit code is DAMAGE."""
    shown_place = QueryTarget(**{option.removeprefix("--"): str(place)})  # type: ignore[arg-type]  # text fields
    code, found, query = ExitCode.CLEAN, set[str](), ""
    while True:
        reply = render_page(shown_place, f"/messages?{query}")
        page = reply.text
        if reply.status != HTTPStatus.OK or '<span class="severity gap">' in page:
            code = ExitCode.DAMAGE
        found.update(re.findall(r'href="/message\?at=(\d+)"', page))
        next_page = re.search(r'rel="next" href="/messages\?(.+?)"', page)
        if next_page is None:
            return CommandResult(code, {int(offset): {} for offset in found})
        query = next_page[1]


def check_agreement(case: DamagedStore) -> Iterator[Violation]:
    """Yield each command that leaves out a message without reporting it by its exit code."""
    directory, release = case.root.parent, release_of(case.draw.store)
    places: list[tuple[str | Path, ...]] = [("--store", case.root)]
    table: dict[int, Any] = {}
    with suppress(UndecidedError, NotAStore):
        summary = ingest_store(case.root, directory / "lake", "b0", release=release)
        table = {row["physical_offset"]: row for row in rows_of(directory / "lake")}
        places += [("--lake", directory / "lake")] if table else []
        lake = CommandResult(summary.exit_code, table)
    listed = {place: _run_command("query", "list", "-m", "100000", "--json", *place) for place in places}
    exports = {place: _export_messages(*place, out=directory / "out.ndjson") for place in places}
    results = {f"list {place[0]}": result for place, result in listed.items()}
    results |= {f"export {place[0]}": result for place, result in exports.items()}
    known = {offset: row for result in results.values() for offset, row in result.messages.items()}
    results |= {"ingest": lake} if table else {}
    results |= {f"browse {place[0]}": _browse_messages(str(place[0]), place[1]) for place in places}
    all_offsets = {*known, *table}
    for name, result in results.items():
        yield from _report_missing(name, result, all_offsets)
    yield from _check_filters(places, known, Random(str(case.draw)))


def _report_missing(name: str, result: CommandResult, expected: set[int]) -> Iterator[Violation]:
    missing = sorted(expected - {*result.messages})
    if missing and result.code not in _REPORTED:
        yield Violation(name, f"exit {result.code}, lacks {len(missing)} of {len(expected)}, first {missing[0]}")


def _check_filters(places: list[Any], known: Mapping[int, Mapping[str, Any]], random: Random) -> Iterator[Violation]:
    """Yield queries by topic, key, queue offset and id that leave out some of the *known* messages."""
    by_topic: dict[str, set[int]] = defaultdict(set)
    by_key: dict[tuple[str, str], set[int]] = defaultdict(set)
    in_queues: dict[str, set[int]] = defaultdict(set)
    for offset, row in known.items():
        by_topic[row["topic"]].add(offset)
        if row["transaction_type"] not in {"prepared", "rollback"}:
            in_queues[row["topic"]].add(offset)
        for key in row["keys"] if row["transaction_type"] != "rollback" else ():
            by_key[row["topic"], key].add(offset)
    topics = random.sample(sorted(by_topic), min(_QUERIED_TOPICS, len(by_topic)))
    keys = random.sample(sorted(by_key), min(_QUERIED_MESSAGES, len(by_key)))
    messages = random.sample(sorted(known), min(_QUERIED_MESSAGES, len(known)))
    for place in places:
        options = (*place, "--json")
        for topic in topics:
            result = _run_command("query", "list", "-t", topic, "-m", "100000", *options)
            yield from _report_missing(f"list -t {place[0]}", result, by_topic[topic])
            result = _run_command("query", "mqadmin", *options, "printMsg", "-t", topic)
            yield from _report_missing(f"printMsg {place[0]}", result, in_queues[topic])
        for topic, key in keys:
            result = _run_command("query", "by-key", "-t", topic, "-k", key, "-m", "0", *options)
            yield from _report_missing(f"by-key {place[0]}", result, by_key[topic, key])
            every = {offset for (_, other), found in by_key.items() if other == key for offset in found}
            result = _run_command("query", "list", "-k", key, "-m", "1000", *options)
            yield from _report_missing(f"list -k {place[0]}", result, every)
        for offset in messages:
            row = known[offset]
            number = ("-t", row["topic"], "-i", str(row["queue_id"]), "-o", str(row["queue_offset"]))
            if offset in in_queues[row["topic"]]:
                result = _run_command("query", "by-offset", *number, *options)
                # A foreign segment may contain a second message with this queue offset; the queue has only one of them.
                has_another = any(_queue_place(other) == _queue_place(row) for other in result.messages.values())
                yield from _report_missing(f"by-offset {place[0]}", result, set() if has_another else {offset})
            result = _run_command("query", "by-id", "-i", row["offset_id"], *options)
            yield from _report_missing(f"by-id {place[0]}", result, {offset})


def _queue_place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["topic"], row["queue_id"], row["queue_offset"]


# --- draws ---

CHECKS: dict[str, Check] = {"faults": check_faults, "repairs": check_repairs, "agreement": check_agreement}


def find_smallest_failure(draw: Draw, check: Check) -> str | None:
    """Return the smallest draw that breaks the same rules, as a line that repeats it; None if no rule is broken."""
    found = find_violations(draw, check)
    rules = {violation.rule for violation in found}
    for smaller in draw.smaller() if rules else ():
        if same := [violation for violation in find_violations(smaller, check) if violation.rule in rules]:
            draw, found = smaller, same
            break
    return f"{draw} # {'; '.join(sorted({f'{one.rule}: {one.text}' for one in found}))}" if found else None


def find_failures(name: str, seeds: Iterable[int], max_faults: int = _MAX_FAULTS) -> Iterator[str]:
    """Yield a command that repeats each failing draw, with as few faults as possible."""
    for seed in seeds:
        if found := find_smallest_failure(draw_case(seed, max_faults), CHECKS[name]):
            yield f"python -m tests.support.fault_draws {name} {found}"


def main(name: str, *arguments: str) -> None:
    """Check one draw, or SEED COUNT [FAULTS] of them."""
    if "TMPDIR" not in os.environ and Path(_MEMORY_DIRECTORY).is_dir():
        tempfile.tempdir = _MEMORY_DIRECTORY  # on a disk, half of the time would be spent on flushing files
    if not arguments[0].isdigit():
        print(*find_violations(Draw.parse(" ".join(arguments)), CHECKS[name]), sep="\n")
        return
    first, count, max_faults = (int(number) for number in (*arguments, str(_MAX_FAULTS))[:3])
    failed = 0
    for failed, line in enumerate(find_failures(name, range(first, first + count), max_faults), 1):  # noqa: B007
        print(line, flush=True)
    print(f"{count} draws, {failed} with violations, {process_time() / max(count, 1):.2f} CPU seconds each")


if __name__ == "__main__":
    main(*sys.argv[1:])
