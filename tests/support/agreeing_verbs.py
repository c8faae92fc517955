"""
Verbs agree: each way to read a damaged store returns all of its messages, or reports a loss by its exit code.

The truth about faults is what the verbs give together: a message that one of them has, and another leaves out, is
missing there. The truth about clocks is the log as the broker left it, of which only the store times are changed: they
step back, jump ahead and return, stand still, walk at random, or are wrong in single records; in some draws a record is
also zeroed. Index files have the right times, so they are left out there: `verify` would contradict them.
"""

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from jobs.console.result import ExitCode
from jobs.query.place import Place
from jobs.store.release import UndecidedError
from rmq_formats.commitlog.layout import HOST_BITS, RECORD, TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import NotAStore
from tests.golden import golden_stores, release_of, unpack
from tests.support.commands import overwrite, run_in_process
from tests.support.fault_draws import Planted, Violation
from tests.support.fault_kinds import records_in
from tests.support.lakes import ingest_store, rows_of
from tests.support.pages import rendered
from tests.support.stores import find_newest_segment

_TOPICS = 3  # of a store, that are asked for one by one
_MESSAGES = 4  # that are asked for one by one
_SAID = {ExitCode.DAMAGE, ExitCode.NOT_FOUND, ExitCode.MISMATCH}


class Given(NamedTuple):
    """What a command gave: its exit code, and its messages by their offsets."""

    code: int
    messages: Mapping[int, Mapping[str, Any]]


def run(*words: str | Path) -> Given:
    """Run a command line in this process, and return its exit code and messages."""
    code, out, _ = run_in_process(*words)
    rows = [json.loads(line) for line in out.split("\n") if line.startswith("{")]
    return Given(code, {row["physical_offset"]: row for row in rows if row.get("type") == "message"})


def exported(*words: str | Path, out: Path) -> Given:
    """Run an export, and return its exit code and messages."""
    out.unlink(missing_ok=True)
    code = run("export", *words, "--engine", "here", "--out", out, "--quiet").code
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return Given(code, {row["physical_offset"]: row for row in rows})


def browsed(option: str, place: str | Path) -> Given:
    """Return what the pages of messages list; a page that says what may be missing counts as an exit code that does."""
    shown = Place(**{option.removeprefix("--"): str(place)})  # type: ignore[arg-type]  # of its texts
    code, found, query = ExitCode.CLEAN, set[str](), ""
    while True:
        reply = rendered(shown, f"/messages?{query}")
        page = reply.text
        if reply.status != HTTPStatus.OK or '<span class="severity gap">' in page:
            code = ExitCode.DAMAGE
        found.update(re.findall(r'href="/message\?at=(\d+)"', page))
        following = re.search(r'rel="next" href="/messages\?(.+?)"', page)
        if following is None:
            return Given(code, {int(offset): {} for offset in found})
        query = following[1]


def of_agreement(one: Planted) -> Iterator[Violation]:
    """Yield each command that leaves out a message and ends as if it had all."""
    folder, release = one.root.parent, release_of(one.draw.store)
    places: list[tuple[str | Path, ...]] = [("--store", one.root)]
    table: dict[int, Any] = {}
    with suppress(UndecidedError, NotAStore):
        taken = ingest_store(one.root, folder / "lake", "b0", release=release)
        table = {row["physical_offset"]: row for row in rows_of(folder / "lake")}
        places += [("--lake", folder / "lake")] if table else []
        lake = Given(taken.exit_code, table)
    listed = {place: run("query", "list", "-m", "100000", "--json", *place) for place in places}
    written = {place: exported(*place, out=folder / "out.ndjson") for place in places}
    whole = {f"list {place[0]}": given for place, given in listed.items()}
    whole |= {f"export {place[0]}": given for place, given in written.items()}
    known = {offset: row for given in whole.values() for offset, row in given.messages.items()}
    whole |= {"ingest": lake} if table else {}
    whole |= {f"browse {place[0]}": browsed(str(place[0]), place[1]) for place in places}
    known_offsets = {*known, *table}
    for name, given in whole.items():
        yield from _left_out(name, given, known_offsets)
    yield from _of_parts(places, known, Random(str(one.draw)))


def _left_out(name: str, given: Given, expected: set[int]) -> Iterator[Violation]:
    missing = sorted(expected - {*given.messages})
    if missing and given.code not in _SAID:
        yield Violation(name, f"exit {given.code}, lacks {len(missing)} of {len(expected)}, first {missing[0]}")


def _of_parts(places: list[Any], known: Mapping[int, Mapping[str, Any]], random: Random) -> Iterator[Violation]:
    """Yield what questions about topics, keys and numbers leave out of the *known* messages."""
    by_topic: dict[str, set[int]] = defaultdict(set)
    by_key: dict[tuple[str, str], set[int]] = defaultdict(set)
    in_queues: dict[str, set[int]] = defaultdict(set)
    for offset, row in known.items():
        by_topic[row["topic"]].add(offset)
        if row["transaction_type"] not in {"prepared", "rollback"}:
            in_queues[row["topic"]].add(offset)
        for key in row["keys"] if row["transaction_type"] != "rollback" else ():
            by_key[row["topic"], key].add(offset)
    topics = random.sample(sorted(by_topic), min(_TOPICS, len(by_topic)))
    keys = random.sample(sorted(by_key), min(_MESSAGES, len(by_key)))
    messages = random.sample(sorted(known), min(_MESSAGES, len(known)))
    for place in places:
        asked = (*place, "--json")
        for topic in topics:
            given = run("query", "list", "-t", topic, "-m", "100000", *asked)
            yield from _left_out(f"list -t {place[0]}", given, by_topic[topic])
            given = run("query", "mqadmin", *asked, "printMsg", "-t", topic)
            yield from _left_out(f"printMsg {place[0]}", given, in_queues[topic])
        for topic, key in keys:
            given = run("query", "by-key", "-t", topic, "-k", key, "-m", "0", *asked)
            yield from _left_out(f"by-key {place[0]}", given, by_key[topic, key])
            every = {offset for (_, one), found in by_key.items() if one == key for offset in found}
            yield from _left_out(f"list -k {place[0]}", run("query", "list", "-k", key, "-m", "1000", *asked), every)
        for offset in messages:
            row = known[offset]
            number = ("-t", row["topic"], "-i", str(row["queue_id"]), "-o", str(row["queue_offset"]))
            if offset in in_queues[row["topic"]]:
                given = run("query", "by-offset", *number, *asked)
                # A foreign segment may bring a second message of this number: a queue has one of them.
                has_another = any(_number(other) == _number(row) for other in given.messages.values())
                yield from _left_out(f"by-offset {place[0]}", given, set() if has_another else {offset})
            given = run("query", "by-id", "-i", row["offset_id"], *asked)
            yield from _left_out(f"by-id {place[0]}", given, {offset})


def _number(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["topic"], row["queue_id"], row["queue_offset"]


# --- clocks that lie ---


def set_store_times(store: Path, time_of: Callable[[int, MessageRecord], int]) -> list[int]:
    """Change the store time of each record; no CRC covers it."""
    times = []
    for number, (path, position, record) in enumerate(records_in(store)):
        times.append(time_of(number, record))
        at = position + RECORD[record.sys_flag & HOST_BITS].offset("store_timestamp")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(times[-1].to_bytes(8, "big", signed=True))
    return times


_STORES = golden_stores("base", "direct", "retry", "crash-after", "crash-later", "expired", "live")
_SHIFTS = (1, 999, 5_000, 3_600_000, 86_400_001, 31_536_000_000, 1 << 41)
_WITHOUT_UNIT = {TransactionType.PREPARED, TransactionType.ROLLBACK}

Clock = Callable[[int, MessageRecord], int]


class LyingClock(NamedTuple):
    """A store with wrong store times, and the expected results."""

    root: Path
    about: str
    intact: Mapping[int, int]  # store times, by physical offset, of the records that are as the broker wrote them
    newest: Path  # the last segment that was written to
    has_damage: bool
    may_lack: bool  # whether a verb may leave out messages if its exit code says so


def _lying(seed: int, folder: Path) -> LyingClock:
    random = Random(seed)
    name = random.choice(_STORES)
    root = unpack(name, folder)
    shutil.rmtree(root / "index", ignore_errors=True)
    shutil.rmtree(root / "EXPECT", ignore_errors=True)
    records, newest = records_in(root), find_newest_segment(root)
    kind = random.choice(sorted(_CLOCKS))
    times = set_store_times(root, _CLOCKS[kind](random, len(records)))
    damaged = None
    if random.random() < 0.6:
        in_newest = [one for one in records if one.path == newest]
        some = in_newest if in_newest and random.random() < 0.7 else records
        without_unit = [one for one in some if transaction_type(one.record.sys_flag) in _WITHOUT_UNIT]
        damaged = random.choice(without_unit if without_unit and random.random() < 0.5 else some)
        overwrite(damaged.path, damaged.position, bytes(damaged.record.total_size))
    pairs = zip(records, times, strict=True)
    intact = {one.record.physical_offset: time for one, time in pairs if one is not damaged}
    what = f", zeroed record at {damaged.record.physical_offset}" if damaged else ""
    # Of a record that no queue has no unit proves that the log went on after it: what follows may be left over.
    may_lack = damaged is not None and transaction_type(damaged.record.sys_flag) in _WITHOUT_UNIT
    return LyingClock(root, f"{name}: {kind}{what}", intact, newest, damaged is not None, may_lack)


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


def of_clocks(seed: int, folder: Path) -> Iterator[str]:
    """Yield what a verb lost, repeated, or left out without a word."""
    one = _lying(seed, folder / "store")
    release = release_of(one.root.name)
    half = _half_written(one, folder)
    for lake, stores in (("once", [one.root]), ("twice", [half, one.root])):
        taken = [ingest_store(store, folder / lake, "b0", release=release) for store in stores][-1]
        offsets = [row["physical_offset"] for row in rows_of(folder / lake)]
        repeated = [offset for offset, times in Counter(offsets).items() if times > 1]
        if repeated:
            yield f"{one.about}: ingest {lake}: repeated {repeated[:3]}"
        yield from _lost(one, f"ingest {lake}", Given(taken.exit_code, {offset: {} for offset in offsets}))
    for place in (("--store", one.root), ("--lake", folder / "once")):
        listed = run("query", "list", "-m", "100000", "--json", *place)
        yield from _lost(one, f"query list {place[0]}", listed, may_lack=True)
        since = sorted(one.intact.values())[len(one.intact) // 2]
        late = run("query", "list", "-m", "100000", "--json", "--since", str(since), *place)
        yield from _lost(one, f"query list --since {since} {place[0]}", late, may_lack=True, since=since)
        written = exported(*place, out=folder / "out.ndjson")
        yield from _lost(one, f"export {place[0]}", written)
    verified = run("verify", one.root, "--engine", "here", "--quiet").code
    if verified not in (_SAID if one.has_damage and not one.may_lack else {ExitCode.CLEAN, *_SAID}):
        yield f"{one.about}: verify: exit {int(verified)}"


def _half_written(one: LyingClock, folder: Path) -> Path:
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


def _lost(one: LyingClock, verb: str, given: Given, *, may_lack: bool = False, since: int = 0) -> Iterator[str]:
    earlier = [offset for offset in given.messages if one.intact.get(offset, since) < since]
    if earlier:
        yield f"{one.about}: {verb}: gave {earlier[:3]}, which were stored before"
    missing = sorted(offset for offset, time in one.intact.items() if time >= since and offset not in given.messages)
    if missing and not ((may_lack or one.may_lack) and given.code in _SAID - {ExitCode.NOT_FOUND}):
        lacks = f"lacks {len(missing)} of {len(one.intact)} from {missing[0]}"
        yield f"{one.about}: {verb}: exit {int(given.code)}, {lacks}"
