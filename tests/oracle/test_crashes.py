"""Brokers killed at random moments, restarted and killed again: every file that they leave is explained."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from jobs.rebuild.index import IndexRebuildSummary, RebuildIndexRequest, rebuild_index
from jobs.rebuild.install import install, plan_index_installation
from jobs.store.running_broker import lock_store
from jobs.store.workers import SerialWorkers
from rmq_formats.consumequeue.dispatch import SCHEDULE_TOPIC
from tests.oracle.conftest import Verdict
from tests.oracle.judge import (
    Writer,
    by_scalar,
    differences,
    list_index_files,
    on_disk,
    records,
    unexplained,
    unfaithful,
    units_into_log,
)
from tests.oracle.releases import SMALL_GEOMETRY
from tests.oracle.sessions import DirectMessage, real_store, some_messages
from tests.oracle.stage import kill, removed_empty_files
from tests.support.lakes import read_index_entries

_LIVES = 3
_FIRST_TIME = 1_795_000_000_000


@pytest.mark.parametrize("times", ["running", "standing"])
def test_files_of_brokers_killed_at_any_moment_are_explained(
    tmp_path: Path, verdict: Verdict, release: str, times: str
) -> None:
    """
    The log has no damage; queues lack at most the newest units; index files follow one from another.

    Killed in the middle of hundreds of appends, three times in a row on one store. Where many messages have one store
    time, unfinished index files survive recovery: their end is not after that of the last full one.
    """
    random = Random(release)
    store = tmp_path / "store"
    writer = Writer(((0, release),))
    for life in range(_LIVES):
        messages = some_messages(f"life{life}") if times == "running" else _at_standing_times(life)
        kill(release, store, islice(messages, 400), random.randrange(20, 300))
        log = records(store)

        assert unfaithful(store) == []
        assert units_into_log(on_disk(store).queues) <= units_into_log(by_scalar(log, writer).queues)
        assert unexplained(store, release, is_killed=True) == []
    if times == "running":
        verdict(release, "killed at random moments", f"all files of {_LIVES} kills explained")


def test_a_broker_killed_before_the_first_entry_of_a_file_repeats_the_index(tmp_path: Path, release: str) -> None:
    """Its next start treats the file of zeros as an index without messages; the new entries are not duplicates."""
    store = tmp_path / "store"
    for life in range(2):
        with real_store(release, store) as opened:
            opened.put_all(islice(some_messages(f"life{life}"), 120))
        if life == 0:  # as if the broker had been killed when it came to the newest file
            newest = list_index_files(store)[-1]
            newest.write_bytes(bytes(newest.stat().st_size))
            (store / "abort").touch()
    offsets = [offset for _, _, _, offset, *_ in read_index_entries(store)]

    assert offsets != sorted(offsets)
    assert unexplained(store, release) == []


def _at_standing_times(life: int) -> Iterator[DirectMessage]:
    for number, message in enumerate(some_messages(f"life{life}")):
        yield replace(message, store_timestamp=_FIRST_TIME + life * 100_000 + number // 40 * 700)


def test_a_broker_does_not_dispatch_the_rest_of_a_file_after_an_invalid_delay(tmp_path: Path, release: str) -> None:
    """
    No client gets such a record into a log; the store's own door takes it. How many depends on how far it had written.

    We make the units of the messages after it: they are whole, and consumers of a broker never see them.
    """
    store = tmp_path / "store"
    poison = DirectMessage(SCHEDULE_TOPIC, 0, b"poison", "DELAY\1soon\2KEYS\1poison\2")
    with real_store(release, store) as opened:
        stored = list(opened.put_each(poison if number == 5 else _message(number) for number in range(30)))
    log = records(store)
    made = by_scalar(log, Writer(((0, release),))).queues
    end_of_file = SMALL_GEOMETRY.commit_log_file_size
    behind = {one.physical_offset for one in stored[6:] if one.physical_offset < end_of_file}

    assert [record.physical_offset for record in log] == [one.physical_offset for one in stored]
    assert len(behind) > 1
    assert _offsets(made) - _offsets(on_disk(store).queues) <= behind
    assert _offsets(on_disk(store).queues) <= _offsets(made) - {stored[5].physical_offset}


def _message(number: int) -> DirectMessage:
    return DirectMessage("P", 0, bytes(1000), f"KEYS\1p{number}\2UNIQ_KEY\1poison-{number}\2")


def _offsets(queues: dict[str, bytes]) -> set[int]:
    return {int.from_bytes(unit[:8]) for _, _, unit in units_into_log(queues)}


def test_a_broker_continues_normally_on_rebuilt_files(tmp_path: Path, release: str) -> None:
    """Stopped cleanly, four of its files deleted, the newest among them; afterwards every file is the log's own."""
    store = tmp_path / "store"
    with real_store(release, store) as opened:
        opened.put_all(islice(some_messages("first"), 120))
    whole = [path.read_bytes() for path in list_index_files(store)]
    for number in (1, 2, 5, -1):
        list_index_files(store)[number].unlink()
    made = _rebuild_and_install(store, tmp_path / "out", release)

    assert made.exit_code == 0
    assert [path.read_bytes() for path in list_index_files(store)] == whole
    with real_store(release, store) as opened:
        assert opened.not_found(records(store)) == []
        opened.put_all(islice(some_messages("second"), 60))
    assert differences(on_disk(store), by_scalar(records(store), Writer(((0, release),)))) == []


def test_an_index_rebuilt_after_a_kill_is_kept_by_the_starting_broker(tmp_path: Path, release: str) -> None:
    """The file `abort` exists: if the checkpoint is not advanced, the broker deletes the newest files again."""
    store = tmp_path / "store"
    kill(release, store, islice(some_messages("killed"), 400), 150)
    for path in list_index_files(store)[2:]:
        path.unlink()
    removed_empty_files(store)
    _rebuild_and_install(store, tmp_path / "out", release, advance_checkpoint=True)
    installed = {path.name for path in list_index_files(store)}
    log = records(store)
    with real_store(release, store) as opened:
        assert installed <= {path.name for path in list_index_files(store)}
        assert opened.not_found(log) == []
        opened.put_all(islice(some_messages("later"), 30))
        opened.drain()
        assert opened.not_found(records(store)) == []


def test_brokers_load_a_supplement_and_find_its_keys(tmp_path: Path, release: str) -> None:
    """The log begins in the middle of a lost file: its remaining entries are written to a file of their own."""
    store = tmp_path / "store"
    with real_store(release, store) as opened:
        opened.put_all(islice(some_messages("first"), 150))
    oldest = min((store / "commitlog").iterdir())
    oldest.unlink()
    for path in list_index_files(store)[:-2]:
        path.unlink()
    made = _rebuild_and_install(store, tmp_path / "out", release)

    assert made.files[0].kind == "supplement"
    with real_store(release, store) as opened:
        assert opened.not_found(records(store)) == []


def _rebuild_and_install(
    store: Path, out: Path, release: str, *, advance_checkpoint: bool = False
) -> IndexRebuildSummary:
    wanted = SMALL_GEOMETRY.wanted(release)
    made = rebuild_index(RebuildIndexRequest(str(store), str(out), wanted, lost_only=True), SerialWorkers())
    assert not made.contradictions
    with lock_store(str(store), out):
        for plan in plan_index_installation(str(store), str(out), advance_checkpoint=advance_checkpoint):
            install(plan)
    return made
