"""
Check that each command that reads a damaged store returns all of its messages, or reports a loss by its exit code.

For faults, the expected messages are those that any command returns. For wrong clocks, they are those of the log as the
broker wrote it. There, only the store times are changed: they step back, jump ahead and return, stand still, walk at
random, or are wrong in single records; in some draws a record is also zeroed. These stores have no index files, because
an index file with the right times would contradict the log.
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
from tests.support.fault_draws import DamagedStore, Violation
from tests.support.fault_kinds import records_in
from tests.support.lakes import ingest_store, rows_of
from tests.support.pages import render_page
from tests.support.stores import find_newest_segment

_TOPICS = 3  # of a store, each of which is queried
_MESSAGES = 4
_REPORTED = {ExitCode.DAMAGE, ExitCode.NOT_FOUND, ExitCode.MISMATCH}


class CommandResult(NamedTuple):
    """The exit code of a command, and its messages by offset."""

    code: int
    messages: Mapping[int, Mapping[str, Any]]


def run(*words: str | Path) -> CommandResult:
    """Run a command line in this process, and return its exit code and messages."""
    code, out, _ = run_in_process(*words)
    rows = [json.loads(line) for line in out.split("\n") if line.startswith("{")]
    return CommandResult(code, {row["physical_offset"]: row for row in rows if row.get("type") == "message"})


def export_messages(*words: str | Path, out: Path) -> CommandResult:
    out.unlink(missing_ok=True)
    code = run("export", *words, "--engine", "here", "--out", out, "--quiet").code
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return CommandResult(code, {row["physical_offset"]: row for row in rows})


def browse_messages(option: str, place: str | Path) -> CommandResult:
    """Return the messages on all pages; if a page reports that messages may be missing, the exit code is DAMAGE."""
    shown_place = Place(**{option.removeprefix("--"): str(place)})  # type: ignore[arg-type]  # text fields
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
    folder, release = case.root.parent, release_of(case.draw.store)
    places: list[tuple[str | Path, ...]] = [("--store", case.root)]
    table: dict[int, Any] = {}
    with suppress(UndecidedError, NotAStore):
        summary = ingest_store(case.root, folder / "lake", "b0", release=release)
        table = {row["physical_offset"]: row for row in rows_of(folder / "lake")}
        places += [("--lake", folder / "lake")] if table else []
        lake = CommandResult(summary.exit_code, table)
    listed = {place: run("query", "list", "-m", "100000", "--json", *place) for place in places}
    exports = {place: export_messages(*place, out=folder / "out.ndjson") for place in places}
    results = {f"list {place[0]}": result for place, result in listed.items()}
    results |= {f"export {place[0]}": result for place, result in exports.items()}
    known = {offset: row for result in results.values() for offset, row in result.messages.items()}
    results |= {"ingest": lake} if table else {}
    results |= {f"browse {place[0]}": browse_messages(str(place[0]), place[1]) for place in places}
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
    topics = random.sample(sorted(by_topic), min(_TOPICS, len(by_topic)))
    keys = random.sample(sorted(by_key), min(_MESSAGES, len(by_key)))
    messages = random.sample(sorted(known), min(_MESSAGES, len(known)))
    for place in places:
        options = (*place, "--json")
        for topic in topics:
            result = run("query", "list", "-t", topic, "-m", "100000", *options)
            yield from _report_missing(f"list -t {place[0]}", result, by_topic[topic])
            result = run("query", "mqadmin", *options, "printMsg", "-t", topic)
            yield from _report_missing(f"printMsg {place[0]}", result, in_queues[topic])
        for topic, key in keys:
            result = run("query", "by-key", "-t", topic, "-k", key, "-m", "0", *options)
            yield from _report_missing(f"by-key {place[0]}", result, by_key[topic, key])
            every = {offset for (_, other), found in by_key.items() if other == key for offset in found}
            result = run("query", "list", "-k", key, "-m", "1000", *options)
            yield from _report_missing(f"list -k {place[0]}", result, every)
        for offset in messages:
            row = known[offset]
            number = ("-t", row["topic"], "-i", str(row["queue_id"]), "-o", str(row["queue_offset"]))
            if offset in in_queues[row["topic"]]:
                result = run("query", "by-offset", *number, *options)
                # A foreign segment may contain a second message with this queue offset; the queue has only one of them.
                has_another = any(_number(other) == _number(row) for other in result.messages.values())
                yield from _report_missing(f"by-offset {place[0]}", result, set() if has_another else {offset})
            result = run("query", "by-id", "-i", row["offset_id"], *options)
            yield from _report_missing(f"by-id {place[0]}", result, {offset})


def _number(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["topic"], row["queue_id"], row["queue_offset"]


# --- wrong clocks ---


def set_store_times(store: Path, time_of: Callable[[int, MessageRecord], int]) -> list[int]:
    """Change the store time of each record, which no CRC covers, and return the new times."""
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


class WrongClockStore(NamedTuple):
    """A store with wrong store times, and the expected results."""

    root: Path
    description: str
    intact: Mapping[int, int]  # store times, by physical offset, of the records that are as the broker wrote them
    newest: Path  # the last segment that was written to
    has_damage: bool
    may_lack: bool  # whether a command may leave out messages if its exit code reports it


def _make_wrong_clock_store(seed: int, folder: Path) -> WrongClockStore:
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
        in_newest = [case for case in records if case.path == newest]
        some = in_newest if in_newest and random.random() < 0.7 else records
        without_unit = [case for case in some if transaction_type(case.record.sys_flag) in _WITHOUT_UNIT]
        damaged = random.choice(without_unit if without_unit and random.random() < 0.5 else some)
        overwrite(damaged.path, damaged.position, bytes(damaged.record.total_size))
    pairs = zip(records, times, strict=True)
    intact = {case.record.physical_offset: time for case, time in pairs if case is not damaged}
    damage_text = f", zeroed record at {damaged.record.physical_offset}" if damaged else ""
    # A zeroed record without a unit may look like the end of the log, so the records after it may be left out.
    may_lack = damaged is not None and transaction_type(damaged.record.sys_flag) in _WITHOUT_UNIT
    return WrongClockStore(root, f"{name}: {kind}{damage_text}", intact, newest, damaged is not None, may_lack)


def _stepping_back(random: Random, count: int) -> Clock:
    at, shift = random.randrange(count), random.choice(_SHIFTS)
    return lambda number, record: max(record.store_timestamp - shift * (number >= at), 1)


def _returning(random: Random, count: int) -> Clock:
    begin, end = sorted((random.randrange(count), random.randrange(count + 1)))
    shift = random.choice(_SHIFTS)
    return lambda number, record: record.store_timestamp + shift * (begin <= number < end)


def _standing_still(random: Random, count: int) -> Clock:
    begin, still = random.randrange(count), 1_795_160_458_000
    return lambda number, record: still if number >= begin else min(record.store_timestamp, still)


def _walking_randomly(random: Random, count: int) -> Clock:
    steps = [random.choice(_SHIFTS[:5]) * random.choice([-1, 1]) for _ in range(count)]
    return lambda number, record: max(record.store_timestamp + sum(steps[:number]), 1)


def _wrong_in_one_record(random: Random, count: int) -> Clock:
    at, bit = random.randrange(count), random.randrange(62)
    return lambda number, record: record.store_timestamp ^ ((1 << bit) * (number == at))


_CLOCKS: dict[str, Callable[[Random, int], Clock]] = {
    "steps back": _stepping_back,
    "jumps ahead and returns": _returning,
    "stands still": _standing_still,
    "walks": _walking_randomly,
    "is wrong in one record": _wrong_in_one_record,
}


def find_losses_by_wrong_clocks(seed: int, folder: Path) -> Iterator[str]:
    """Yield the messages that a command lost, repeated, or left out without reporting it."""
    case = _make_wrong_clock_store(seed, folder / "store")
    release = release_of(case.root.name)
    half_written = _half_written_copy(case, folder)
    for lake, stores in (("once", [case.root]), ("twice", [half_written, case.root])):
        summary = [ingest_store(store, folder / lake, "b0", release=release) for store in stores][-1]
        offsets = [row["physical_offset"] for row in rows_of(folder / lake)]
        repeated = [offset for offset, times in Counter(offsets).items() if times > 1]
        if repeated:
            yield f"{case.description}: ingest {lake}: repeated {repeated[:3]}"
        ingested = CommandResult(summary.exit_code, {offset: {} for offset in offsets})
        yield from _report_losses(case, f"ingest {lake}", ingested)
    for place in (("--store", case.root), ("--lake", folder / "once")):
        listed = run("query", "list", "-m", "100000", "--json", *place)
        yield from _report_losses(case, f"query list {place[0]}", listed, may_lack=True)
        since = sorted(case.intact.values())[len(case.intact) // 2]
        late = run("query", "list", "-m", "100000", "--json", "--since", str(since), *place)
        yield from _report_losses(case, f"query list --since {since} {place[0]}", late, may_lack=True, since=since)
        exports = export_messages(*place, out=folder / "out.ndjson")
        yield from _report_losses(case, f"export {place[0]}", exports)
    verified = run("verify", case.root, "--engine", "here", "--quiet").code
    if verified not in (_REPORTED if case.has_damage and not case.may_lack else {ExitCode.CLEAN, *_REPORTED}):
        yield f"{case.description}: verify: exit {int(verified)}"


def _half_written_copy(case: WrongClockStore, folder: Path) -> Path:
    """Copy the store as it was when a running broker had written half of its newest segment."""
    store = Path(shutil.copytree(case.root, folder / "half" / case.root.name))
    (store / "abort").touch()
    segment = case.newest
    inside = sorted(
        offset for offset in case.intact if int(segment.name) <= offset < int(segment.name) + segment.stat().st_size
    )
    if inside:
        at = inside[len(inside) // 2] - int(segment.name)
        path = store / segment.relative_to(case.root)
        overwrite(path, at, bytes(path.stat().st_size - at))
    return store


def _report_losses(
    case: WrongClockStore, verb: str, result: CommandResult, *, may_lack: bool = False, since: int = 0
) -> Iterator[str]:
    earlier = [offset for offset in result.messages if case.intact.get(offset, since) < since]
    if earlier:
        yield f"{case.description}: {verb}: gave {earlier[:3]}, which were stored before"
    missing = sorted(offset for offset, time in case.intact.items() if time >= since and offset not in result.messages)
    if missing and not ((may_lack or case.may_lack) and result.code in _REPORTED - {ExitCode.NOT_FOUND}):
        lacks = f"lacks {len(missing)} of {len(case.intact)} from {missing[0]}"
        yield f"{case.description}: {verb}: exit {int(result.code)}, {lacks}"
