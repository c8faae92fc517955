"""
Verbs agree: each way to read a damaged store gives all of its messages, or says with its exit code that it does not.

    python -m tests.support.agreeing_verbs SEED COUNT [FAULTS]     draw, judge, and shrink what fails
    python -m tests.support.agreeing_verbs STORE KIND:SEED …       one draw again

The truth is what the verbs give together: a message that one of them has, and another leaves out, is missing there.
"""

import io
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from jobs.command import cli
from jobs.console.exit_codes import ExitCode
from jobs.store.release import UndecidedError
from rmq_formats.errors import NotAStore
from tests.golden import release_of
from tests.support.fault_draws import Campaign, Draw, Planted, Violation, drawn, guarded, planted
from tests.support.lakes import ingest_store, rows_of

_TOPICS = 3  # of a store, that are asked for one by one
_MESSAGES = 4  # that are asked for one by one
_SAID = {ExitCode.DAMAGE, ExitCode.NOT_FOUND, ExitCode.MISMATCH}


class Given(NamedTuple):
    """What a command gave: its exit code, and its messages by their offsets."""

    code: int
    messages: Mapping[int, Mapping[str, Any]]


class _Bytes(io.TextIOWrapper):
    """Standard output that keeps what is written to it."""

    def __init__(self) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8", errors="surrogateescape")


def run(*words: str | Path) -> Given:
    """Run a command line in this process, and return what it gave."""
    out, err = _Bytes(), _Bytes()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(word) for word in words])
        out.flush()
    rows = [json.loads(line) for line in out.kept.getvalue().splitlines() if line.startswith(b"{")]
    return Given(code, {row["physical_offset"]: row for row in rows if row.get("type") == "message"})


def exported(*words: str | Path, out: Path) -> Given:
    """Run an export, and return what it wrote."""
    out.unlink(missing_ok=True)
    code = run("export", *words, "--engine", "here", "--out", out, "--quiet").code
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return Given(code, {row["physical_offset"]: row for row in rows})


def judged(draw: Draw) -> list[Violation]:
    with tempfile.TemporaryDirectory() as name:
        one = planted(draw, Path(name))
        return guarded(lambda: violations(one, Path(name)))


def violations(one: Planted, folder: Path) -> Iterator[Violation]:
    """Yield each command that leaves out a message and ends as if it had all."""
    release = release_of(one.draw.store) if "/" not in one.draw.store else None
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


AGREEMENTS = Campaign("tests.support.agreeing_verbs", drawn, Draw.parsed, judged)

if __name__ == "__main__":
    AGREEMENTS.run(sys.argv[1:])
