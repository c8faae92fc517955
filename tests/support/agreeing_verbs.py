"""
Check that each command that reads a damaged store returns all of its messages, or reports a loss by its exit code.

The expected messages are those that any command returns.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from jobs.console.result import ExitCode
from jobs.query.place import Place
from jobs.store.release import UndecidedError
from rmq_formats.errors import NotAStore
from tests.golden import release_of
from tests.support.commands import run_in_process
from tests.support.fault_draws import DamagedStore, Violation
from tests.support.lakes import ingest_store, rows_of
from tests.support.pages import render_page

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
