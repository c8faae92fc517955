"""Brokers killed at random moments, restarted and killed again: every file that they leave is explained."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from jobs.rebuild.index import IndexRebuildSummary, rebuild_index
from jobs.rebuild.install import install, plan_index_installation
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.store.running_broker import lock_store
from jobs.store.workers import SerialWorkers
from rmq_formats.indexfile.layout import SLOT, Geometry, decode_header
from rmq_formats.properties import index_key_hash
from tests.oracle.judge import (
    CONTINUED_AFTER_A_KILL,
    Writer,
    build_with_scalar_modules,
    find_unexplained,
    find_unfaithful_pieces,
    list_index_files,
    list_units_into_log,
    read_derived_files,
    read_log,
)
from tests.oracle.releases import SMALL_GEOMETRY, on_releases
from tests.oracle.sessions import DirectMessage, endless_messages, real_store
from tests.oracle.stage import kill_store, remove_empty_files
from tests.oracle.verdicts import verdict
from tests.support.lakes import read_index_entries

_LIVES = 3
_FIRST_TIME = 1_795_000_000_000


@on_releases(in_every_run="4.9.8")
@pytest.mark.parametrize("times", ["running", "standing"])
def test_files_of_brokers_killed_at_any_moment_are_explained(tmp_path: Path, release: str, times: str) -> None:
    """
    The log has no damage, queues lack at most the newest units, and index files are consistent.

    The broker is killed three times on one store, during hundreds of appends. If many messages have the same store
    time, unfinished index files survive recovery, because their end is not later than that of the last full file.
    """
    random = Random(release)
    store = tmp_path / "store"
    writer = Writer(((0, release),))
    for life in range(_LIVES):
        messages = endless_messages(f"life{life}") if times == "running" else _at_standing_times(life)
        kill_store(release, store, islice(messages, 400), random.randrange(20, 300))
        log = read_log(store)

        assert find_unfaithful_pieces(store) == []
        assert list_units_into_log(read_derived_files(store).queues) <= list_units_into_log(
            build_with_scalar_modules(log, writer).queues
        )
        assert find_unexplained(store, release, is_killed=True) == []
    if times == "running":
        verdict(release, "killed at random moments", f"all files of {_LIVES} kills explained")


@on_releases(in_every_run="4.9.8")
def test_a_broker_killed_before_the_first_entry_of_a_file_repeats_the_index(tmp_path: Path, release: str) -> None:
    """Its next start treats the file of zeros as an index without messages; the new entries are not duplicates."""
    store = tmp_path / "store"
    for life in range(2):
        with real_store(release, store) as opened:
            opened.put_all(islice(endless_messages(f"life{life}"), 120))
        if life == 0:  # as if the broker had been killed when it created the newest file
            newest = list_index_files(store)[-1]
            newest.write_bytes(bytes(newest.stat().st_size))
            (store / "abort").touch()
    offsets = [offset for _, _, _, offset, *_ in read_index_entries(store)]

    assert offsets != sorted(offsets)
    assert find_unexplained(store, release) == []


@on_releases(in_every_run="5.5.0")
def test_an_index_file_continued_after_a_kill_within_an_entry_is_explained(tmp_path: Path, release: str) -> None:
    """Another key has the number in the slot; the next key of the slot, or the slot itself, refers to that entry."""
    store = tmp_path / "store"
    continued = []
    for life, killed_at in enumerate(["life1-0", "all", "of no later message"]):
        with real_store(release, store) as opened:
            opened.put_all(islice(_at_standing_times(life), 70))
        continued.append(list_index_files(store)[-1])
        _set_slot_to_next_entry(continued[-1], f"K0#{killed_at}")
        (store / "abort").touch()
    with real_store(release, store) as opened:
        opened.put_all(islice(_at_standing_times(3), 70))

    findings = find_unexplained(store, release)

    assert [finding.file for finding in findings] == [f"index/{path.name}" for path in continued]
    assert all(CONTINUED_AFTER_A_KILL in finding.cause for finding in findings)


def _set_slot_to_next_entry(path: Path, key: str) -> None:
    """Change an index file as if the broker had been killed after it wrote the slot of the next entry."""
    geometry = Geometry(SMALL_GEOMETRY.hash_slots, SMALL_GEOMETRY.index_entries)
    data = bytearray(path.read_bytes())
    at = geometry.slot_position(geometry.slot_of(index_key_hash(key)))
    data[at : at + SLOT.size] = SLOT.pack(decode_header(data).index_count)
    path.write_bytes(data)


def _at_standing_times(life: int) -> Iterator[DirectMessage]:
    for number, message in enumerate(endless_messages(f"life{life}")):
        yield replace(message, store_timestamp=_FIRST_TIME + life * 100_000 + number // 40 * 700)


@on_releases(in_every_run="5.5.0")
def test_an_index_rebuilt_after_a_kill_is_kept_by_the_starting_broker(tmp_path: Path, release: str) -> None:
    """The file `abort` exists: unless the checkpoint is advanced, the broker deletes the newest files again."""
    store = tmp_path / "store"
    kill_store(release, store, islice(endless_messages("killed"), 400), 150)
    for path in list_index_files(store)[2:]:
        path.unlink()
    remove_empty_files(store)
    _rebuild_and_install(store, tmp_path / "out", release, advance_checkpoint=True)
    installed = {path.name for path in list_index_files(store)}
    log = read_log(store)
    with real_store(release, store) as opened:
        assert installed <= {path.name for path in list_index_files(store)}
        assert opened.list_not_found(log) == []
        opened.put_all(islice(endless_messages("later"), 30))
        opened.drain()

        assert opened.list_not_found(read_log(store)) == []


@on_releases(in_every_run="4.9.8")
def test_brokers_load_a_supplement_and_find_its_keys(tmp_path: Path, release: str) -> None:
    """The log begins in the middle of a lost file, whose remaining entries are written to a supplement."""
    store = tmp_path / "store"
    with real_store(release, store) as opened:
        opened.put_all(islice(endless_messages("first"), 150))
    oldest = min((store / "commitlog").iterdir())
    oldest.unlink()
    for path in list_index_files(store)[:-2]:
        path.unlink()
    made = _rebuild_and_install(store, tmp_path / "out", release)

    assert made.files[0].kind == "supplement"
    with real_store(release, store) as opened:
        assert opened.list_not_found(read_log(store)) == []


def _rebuild_and_install(
    store: Path, out: Path, release: str, *, advance_checkpoint: bool = False
) -> IndexRebuildSummary:
    wanted = SMALL_GEOMETRY.wanted(release)
    made = rebuild_index(
        RebuildIndexRequest(str(store), str(out), given_settings=wanted, lost_only=True), SerialWorkers()
    )
    assert not made.contradictions
    with lock_store(str(store), out):
        for plan in plan_index_installation(str(store), made, advance_checkpoint=advance_checkpoint):
            install(plan)
    return made
