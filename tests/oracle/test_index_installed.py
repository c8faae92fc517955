"""Index files that we rebuild and install: a real broker loads them, finds every key, and goes on writing."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from jobs.rebuild.index import RebuildIndexRequest, Result, rebuild
from jobs.rebuild.install import install, plan_index
from jobs.store.held_store import hold_store
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.record import MessageRecord
from tests.oracle.conftest import Kills, StoreFactory
from tests.oracle.judge import Writer, by_scalar, list_index_files, on_disk, records
from tests.oracle.sessions import DirectMessage, RealStore, some_messages
from tests.oracle.settings import SMALL_GEOMETRY
from tests.oracle.stage import removed_empty_files

_EVER = {"begin": -(1 << 63), "end": (1 << 63) - 1, "limit": 64}


def test_lost_files_come_back_and_the_broker_goes_on_as_if_nothing_had_happened(
    real_store: StoreFactory, tmp_path: Path, release: str
) -> None:
    """Stopped cleanly, four of its files deleted, the newest among them; afterwards every file is the log's own."""
    store = tmp_path / "store"
    with real_store(release, store) as opened:
        _put(opened, islice(some_messages("first"), 120))
    whole = [path.read_bytes() for path in list_index_files(store)]
    for number in (1, 2, 5, -1):
        list_index_files(store)[number].unlink()
    made = _rebuild_and_install(store, tmp_path / "out", release)

    assert made.exit_code == 0
    assert [path.read_bytes() for path in list_index_files(store)] == whole
    with real_store(release, store) as opened:
        assert _not_found(opened, records(store)) == []
        _put(opened, islice(some_messages("second"), 60))
    writer = Writer(((0, release),))
    assert on_disk(store).index_files == by_scalar(records(store), writer).index_files


def test_after_a_kill_the_index_is_rebuilt_installed_and_kept_by_the_starting_broker(
    kills: Kills, real_store: StoreFactory, tmp_path: Path, release: str
) -> None:
    """`abort` is there: without the advanced checkpoint the broker would delete the newest files once more."""
    store = tmp_path / "store"
    kills(release, store, islice(some_messages("killed"), 400), after=150)
    for path in list_index_files(store)[2:]:
        path.unlink()
    removed_empty_files(store)
    _rebuild_and_install(store, tmp_path / "out", release, advance_checkpoint=True)
    installed = {path.name for path in list_index_files(store)}
    log = records(store)
    with real_store(release, store) as opened:
        assert installed <= {path.name for path in list_index_files(store)}
        assert _not_found(opened, log) == []
        _put(opened, islice(some_messages("later"), 30))
        assert _not_found(opened, records(store)) == []


def test_a_supplement_is_loaded_and_its_keys_are_found(real_store: StoreFactory, tmp_path: Path, release: str) -> None:
    """The log begins in the middle of a lost file's history: what is left of it becomes a file of its own."""
    store = tmp_path / "store"
    with real_store(release, store) as opened:
        _put(opened, islice(some_messages("first"), 150))
    oldest = min((store / "commitlog").iterdir())
    oldest.unlink()
    for path in list_index_files(store)[:-2]:
        path.unlink()
    made = _rebuild_and_install(store, tmp_path / "out", release)

    assert made.files[0].kind == "supplement"
    with real_store(release, store) as opened:
        assert _not_found(opened, records(store)) == []


def _rebuild_and_install(store: Path, out: Path, release: str, *, advance_checkpoint: bool = False) -> Result:
    wanted = SMALL_GEOMETRY.wanted(release)
    made = rebuild(RebuildIndexRequest(str(store), str(out), wanted, lost_only=True), OneByOne())
    assert not made.contradictions
    with hold_store(str(store), out):
        install(plan_index(str(store), str(out), advance_checkpoint=advance_checkpoint))
    return made


def _put(opened: RealStore, messages: Iterator[DirectMessage]) -> None:
    opened.put_all(messages)
    opened.drain()


def _not_found(opened: RealStore, log: Sequence[MessageRecord]) -> list[int]:
    missing = []
    for record in log:
        key = record.properties_raw.split(b"\2")[0].partition(b"\1")[2].decode()
        if record.physical_offset not in opened.find_offsets(record.topic, key, **_EVER):
            missing.append(record.physical_offset)
    return missing
