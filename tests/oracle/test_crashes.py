"""Brokers killed at random moments, started again and killed again: every file they leave has an explanation."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest

from jobs.lake.findings import Finding
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.consumequeue.layout import UNIT
from tests.oracle.conftest import Kills, StoreFactory, Verdict
from tests.oracle.judge import Writer, by_scalar, explain_index, list_index_files, on_disk, records, unfaithful
from tests.oracle.sessions import DirectMessage, some_messages
from tests.oracle.settings import SMALL_GEOMETRY

_LIVES = 3
_FIRST_TIME = 1_795_000_000_000
_HALF_MADE = {"zeroed", "truncated", "half_written"}
_TOLD_LATE = "checkpoint_index_time"  # a full index file is flushed by a thread, which then tells the checkpoint


@pytest.mark.parametrize("times", ["running", "standing"])
def test_a_broker_killed_at_any_moment_leaves_nothing_unexplained(
    kills: Kills, tmp_path: Path, verdict: Verdict, release: str, times: str
) -> None:
    """
    The log has no damage; queues lack at most the newest units; index files follow one from another.

    Killed in the middle of hundreds of appends, three times in a row on one store. Where many messages have one store
    time, unfinished index files survive recovery: their end is not after that of the last full one.
    """
    random = Random(release)
    store = tmp_path / "store"
    writer = Writer(((0, release),))
    seen: set[str] = set()
    for life in range(_LIVES):
        messages = some_messages(f"life{life}") if times == "running" else _at_standing_times(life)
        kills(release, store, islice(messages, 400), after=random.randrange(20, 300))
        log = records(store)
        explained = explain_index(store, log, writer)
        seen |= set(explained)

        assert unfaithful(store) == []
        assert not {"unexplained", "lost"} & set(explained)
        assert _missing_units(by_scalar(log, writer).queues, on_disk(store).queues) <= {"behind"}
        assert _found_by_verify(store, release, explained) == []
    if times == "running":
        verdict(release, "killed at random moments", f"explained: {', '.join(sorted(seen))}")


def test_a_broker_killed_before_the_first_entry_of_a_file_indexes_all_messages_once_more(
    real_store: StoreFactory, tmp_path: Path, release: str
) -> None:
    """Its next start takes the file of zeros for an index without messages; what it makes then are no copies."""
    store = tmp_path / "store"
    for life in range(2):
        with real_store(release, store) as opened:
            opened.put_all(islice(some_messages(f"life{life}"), 120))
        if life == 0:  # as if the broker had been killed when it came to the newest file
            newest = list_index_files(store)[-1]
            newest.write_bytes(bytes(newest.stat().st_size))
            (store / "abort").touch()
    explained = explain_index(store, records(store), Writer(((0, release),)))

    assert "again" in explained
    assert _found_by_verify(store, release, explained) == []


def _found_by_verify(store: Path, release: str, explained: list[str]) -> list[Finding]:
    """List what `verify` finds, but for the file that the kill left half made, and what the checkpoint was not told."""
    wanted = SMALL_GEOMETRY.wanted(release)._replace(zone=ZoneInfo("UTC"))
    files = zip(list_index_files(store), explained, strict=True)
    half_made = {path.relative_to(store).as_posix() for path in store.rglob("*") if not path.stat().st_size}
    torn = {f"index/{file.name}" for file, word in files if word == "torn"}
    verdict = verify(VerifyRequest(str(store), wanted=wanted), OneByOne())
    return [
        finding
        for finding in verdict.findings
        if finding.file not in half_made
        and (finding.file not in torn or finding.kind not in _HALF_MADE)
        and finding.kind != _TOLD_LATE
    ]


def _at_standing_times(life: int) -> Iterator[DirectMessage]:
    for number, message in enumerate(some_messages(f"life{life}")):
        yield replace(message, store_timestamp=_FIRST_TIME + life * 100_000 + number // 40 * 700)


def _missing_units(made: dict[str, bytes], real: dict[str, bytes]) -> set[str]:
    """Say how real queues differ from ours: `behind` if a queue's last units are not written yet."""
    kinds = set()
    for name in made.keys() | real.keys():
        ours, theirs = made.get(name, b""), real.get(name, b"")
        if ours != theirs:
            written = len(theirs.rstrip(b"\0"))
            whole = -(-written // UNIT.size) * UNIT.size
            kinds.add("behind" if theirs[:whole] == ours[:whole] else f"different: {name}")
    return kinds
