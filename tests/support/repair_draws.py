"""
Random faults, repaired with a lake, with bridges, with what a person accepts; undone, and repaired again.

    python -m tests.support.repair_draws SEED COUNT [FAULTS]            draw, judge, and shrink what fails
    python -m tests.support.repair_draws OPTIONS STORE KIND:SEED …      one draw again; OPTIONS such as lake,bridge

The lake has what the healthy store had. Each line of an answer is a rule that a repair broke.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from jobs.lake.lake import Lake
from jobs.repair.run import NotRepairableError, RepairRequest, RepairSummary, repair
from jobs.store.release import UndecidedError
from jobs.store.workers import OneByOne
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import decode_record, has_right_body_crc
from rmq_formats.errors import FormatError
from tests.golden import SITUATIONS, release_of
from tests.support.fault_draws import (
    Campaign,
    Draw,
    Files,
    Planted,
    Target,
    Violation,
    drawn,
    golden,
    guarded,
    planted,
    undone,
    wrong_files,
)
from tests.support.in_memory import folder_of_process
from tests.support.lakes import ingest_store
from tests.support.stores import content_of

OPTIONS = ("lake", "bridge", "accept")
# Kinds that a checksum, a size or a name convicts: with a lake all of it comes back.
_DECIDED = frozenset({
    "zero-page", "bit-body", "delete-segment", "rename-segment", "cut-segment", "lengthen-segment", "delete-queue",
    "cut-queue", "lengthen-queue", "unit-high-bit", "cut-index", "swap-index", "foreign-segment", "zero-properties",
})  # fmt: skip


class RepairDraw(NamedTuple):
    """Faults of a store, and how it is repaired."""

    draw: Draw
    options: frozenset[str]

    def __str__(self) -> str:
        return f"{','.join(sorted(self.options)) or '-'} {self.draw}"

    @classmethod
    def parsed(cls, text: str) -> "RepairDraw":
        options, _, draw = text.partition(" ")
        return cls(Draw.parsed(draw), frozenset(options.split(",")) & {*OPTIONS})

    def smaller(self) -> Iterator["RepairDraw"]:
        yield from (self._replace(draw=smaller) for smaller in self.draw.smaller())


def repair_drawn(seed: int, most: int) -> RepairDraw:
    random = Random(-seed)
    return RepairDraw(drawn(seed, most), frozenset(option for option in OPTIONS if random.random() < 0.5))


@cache
def _lake_of(name: str) -> Lake:
    folder = folder_of_process("repair-draws-lake-")
    release = None if name in SITUATIONS else release_of(name)
    ingest_store(golden(name), folder / "lake", release=release)
    return Lake(str(folder / "lake"))


def repairs_judged(one: RepairDraw) -> list[Violation]:
    with tempfile.TemporaryDirectory() as name:
        store = planted(one.draw, Path(name))
        return guarded(lambda: _violations(store, one.options)) if store.draw.faults else []


def _violations(one: Planted, options: frozenset[str]) -> Iterator[Violation]:
    try:
        plan = _repaired(one, options, "plan", apply=False)
        if content_of(one.root) != one.damaged:
            yield Violation("a plan changes the store", "")
        accepted = frozenset(plan.undecided) if "accept" in options else frozenset[str]()
        done = _repaired(one, options, "repair", accepted)
    except UndecidedError:
        return
    except NotRepairableError as error:
        yield Violation("refused", str(error))
        return
    after = content_of(one.root)
    yield from _of_files(one, after, options, accepted)
    yield from _of_harm(plan.found.start, done.start)
    left = {group.cause.file for group in done.left.groups} if done.left is not None else set()
    if done.exit_code > plan.found.exit_code and not left <= one.changed:  # else what is left was hidden
        yield Violation("worse than before", f"{done.severity.value}, not {plan.found.severity.value}")
    again = _repaired(one, options, "repair")  # what was undecided beside something wrong may be decided now
    yield from _of_files(one, content_of(one.root), options, accepted)
    if done.files or again.files:
        yield from undone(one)


def _repaired(
    one: Planted, options: frozenset[str], out: str, accepted: frozenset[str] = frozenset(), *, apply: bool = True
) -> RepairSummary:
    request = RepairRequest(
        str(one.root), one.root.parent / out, _lake_of(one.draw.store) if "lake" in options else None,
        apply=apply, bridge="bridge" in options, accepted=accepted,
    )  # fmt: skip
    return repair(request, OneByOne())


def _of_files(one: Planted, after: Files, options: frozenset[str], accepted: frozenset[str]) -> Iterator[Violation]:
    judged = after
    if "bridge" in options:
        yield from _of_bridged(one, after)
        judged = {
            name: one.damaged.get(name, one.pristine.get(name, data)) if name.startswith("commitlog/") else data
            for name, data in after.items()
        }
    for violation in wrong_files(one, judged):
        if not any(name in violation.text for name in accepted):
            yield violation
    kinds = {kind for kind, _ in one.draw.faults}
    is_known = any(name.startswith("commitlog/") for name in {*one.pristine} - one.changed)  # to the lake, by its bytes
    if "lake" in options and kinds <= _DECIDED and is_known:
        for name in sorted(one.changed & {*one.pristine}):
            if _is_undecided(one, name):
                continue
            was = one.pristine[name]
            was = was.rstrip(b"\0") if name.startswith("commitlog/") else was  # what follows the log's end is its own
            if not after.get(name, b"").startswith(was):
                yield Violation("the lake has it, and it did not come back", name)


def _is_undecided(one: Planted, name: str) -> bool:
    """
    Return whether a repair brings a file back in part only, or not at all, though its fault is convicted elsewhere.

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


def _of_bridged(one: Planted, after: Files) -> Iterator[Violation]:
    """Yield records that were whole before bridges were written, and are not now."""
    for path, at, record in Target(golden(one.draw.store), Random(0), one.root).records():
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


REPAIRS = Campaign("tests.support.repair_draws", repair_drawn, RepairDraw.parsed, repairs_judged)

if __name__ == "__main__":
    REPAIRS.run(sys.argv[1:])
