"""
Clocks lie: no verb loses, repeats or leaves out a message without a word because of the store times in the log.

    python -m tests.support.lying_clocks SEED COUNT

The store times of a real store step back, jump ahead and return, stand still, walk at random, or are wrong in single
records; in some draws a record is zeroed, too. The truth is the log as the broker left it. Its index files have the
right times, so they are left out: `verify` would contradict them.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from jobs.console.exit_codes import ExitCode
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.flags import TransactionType, transaction_type
from tests.golden import golden_stores, release_of, unpack
from tests.rmq_formats.stores import newest_segment
from tests.support.agreeing_verbs import Given, exported, run
from tests.support.clocks import placed_records, set_store_times
from tests.support.commands import overwrite
from tests.support.lakes import ingest_store, rows_of

_STORES = golden_stores("base", "direct", "retry", "crash-after", "crash-later", "expired", "live")
_SHIFTS = (1, 999, 5_000, 3_600_000, 86_400_001, 31_536_000_000, 1 << 41)
_SAID = {ExitCode.DAMAGE, ExitCode.NOT_FOUND, ExitCode.MISMATCH}
_WITHOUT_UNIT = {TransactionType.PREPARED, TransactionType.ROLLBACK}

Clock = Callable[[int, MessageRecord], int]


class Drawn(NamedTuple):
    """A store whose clock lied, and what is true of it."""

    root: Path
    about: str
    intact: frozenset[int]  # physical offsets of the records that are as the broker wrote them
    newest: Path  # the last segment that was written to


def drawn(seed: int, folder: Path) -> Drawn:
    random = Random(seed)
    name = random.choice(_STORES)
    root = unpack(name, folder)
    shutil.rmtree(root / "index", ignore_errors=True)
    shutil.rmtree(root / "EXPECT", ignore_errors=True)
    records, newest = placed_records(root), newest_segment(root)
    kind = random.choice(sorted(_CLOCKS))
    set_store_times(root, _CLOCKS[kind](random, len(records)))
    damaged = None
    if random.random() < 0.6:
        # Of a record that no queue has no unit proves that the log went on after it: what follows may be left over.
        dispatched = [one for one in records if transaction_type(one.record.sys_flag) not in _WITHOUT_UNIT]
        in_newest = [one for one in dispatched if one.path == newest]
        damaged = random.choice(in_newest if in_newest and random.random() < 0.7 else dispatched)
        overwrite(damaged.path, damaged.position, bytes(damaged.record.total_size))
    intact = frozenset(one.record.physical_offset for one in records if one is not damaged)
    what = f", zeroed record at {damaged.record.physical_offset}" if damaged else ""
    return Drawn(root, f"{name}: {kind}{what}", intact, newest)


def _stepping_back(random: Random, count: int) -> Clock:
    at, shift = random.randrange(count), random.choice(_SHIFTS)
    return lambda number, one: max(one.store_timestamp - shift * (number >= at), 1)


def _returning(random: Random, count: int) -> Clock:
    begin, end = sorted((random.randrange(count), random.randrange(count + 1)))
    shift = random.choice(_SHIFTS)
    return lambda number, one: one.store_timestamp + shift * (begin <= number < end)


def _standing(random: Random, count: int) -> Clock:
    begin, still = random.randrange(count), 1_795_160_458_000
    return lambda number, one: still if number >= begin else min(one.store_timestamp, still)


def _walking(random: Random, count: int) -> Clock:
    steps = [random.choice(_SHIFTS[:5]) * random.choice([-1, 1]) for _ in range(count)]
    return lambda number, one: max(one.store_timestamp + sum(steps[:number]), 1)


def _wrong_in_one(random: Random, count: int) -> Clock:
    at, bit = random.randrange(count), random.randrange(62)
    return lambda number, one: one.store_timestamp ^ ((1 << bit) * (number == at))


_CLOCKS: dict[str, Callable[[Random, int], Clock]] = {
    "steps back": _stepping_back,
    "jumps ahead and returns": _returning,
    "stands still": _standing,
    "walks": _walking,
    "is wrong in one record": _wrong_in_one,
}


def violations(seed: int, folder: Path) -> Iterator[str]:
    """Yield what a verb lost, repeated, or left out without a word."""
    one = drawn(seed, folder / "store")
    release = release_of(one.root.name)
    half = _half_written(one, folder)
    for lake, stores in (("once", [one.root]), ("twice", [half, one.root])):
        taken = [ingest_store(store, folder / lake, "b0", release=release) for store in stores][-1]
        offsets = [row["physical_offset"] for row in rows_of(folder / lake)]
        repeated = [offset for offset, times in Counter(offsets).items() if times > 1]
        if repeated:
            yield f"{one.about}: ingest {lake}: repeated {repeated[:3]}"
        yield from _lost(
            one, f"ingest {lake}", Given(taken.exit_code, {offset: {} for offset in offsets}), is_said=False
        )
    for place in (("--store", one.root), ("--lake", folder / "once")):
        listed = run("query", "list", "-m", "100000", "--json", *place)
        yield from _lost(one, f"query list {place[0]}", listed, is_said=True)
        written = exported(*place, out=folder / "out.ndjson")
        yield from _lost(one, f"export {place[0]}", written, is_said=False)


def _half_written(one: Drawn, folder: Path) -> Path:
    """Return the store as it was when half of its newest segment was written, next to a broker."""
    store = Path(shutil.copytree(one.root, folder / "half" / one.root.name))
    (store / "abort").touch()
    segment = one.newest
    inside = sorted(
        offset for offset in one.intact if int(segment.name) <= offset < int(segment.name) + segment.stat().st_size
    )
    if inside:
        at = inside[len(inside) // 2] - int(segment.name)
        path = store / segment.relative_to(one.root)
        overwrite(path, at, bytes(path.stat().st_size - at))
    return store


def _lost(one: Drawn, verb: str, given: Given, *, is_said: bool) -> Iterator[str]:
    missing = sorted(one.intact - {*given.messages})
    if missing and not (is_said and given.code in _SAID):
        lacks = f"lacks {len(missing)} of {len(one.intact)} from {missing[0]}"
        yield f"{one.about}: {verb}: exit {int(given.code)}, {lacks}"


def main() -> None:
    """Try seeds, print what fails."""
    first, count = map(int, sys.argv[1:3])
    failed = 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            for text in violations(seed, Path(folder)):
                failed += 1
                print(f"{seed}: {text}", flush=True)
    print(f"{count} seeds from {first}, {failed} violations")


if __name__ == "__main__":
    main()
