"""Rebuilt index files, put into a store: whole or not at all, and never under a running broker."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.products.index.settings import Wanted
from jobs.rebuild.index import RebuildIndexRequest, rebuild
from jobs.rebuild.install import (
    Installation,
    RefusedError,
    broker_kept_out,
    install,
    plan_installation,
)
from jobs.store.workers import OneByOne
from rmq_formats.store import decode_checkpoint, encode_checkpoint
from tests.golden import StoreOf

STORE = "b533-base"
LOST = (2, 3, 7)  # of its thirteen index files


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    copy = tmp_path / "store"
    shutil.copytree(golden(STORE), copy)
    (copy / "lock").write_text("lock")
    return copy


def index_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "index").iterdir())}


def lose(store: Path, *numbers: int) -> None:
    names = sorted(index_of(store))
    for number in numbers:
        (store / "index" / names[number]).unlink()


def rebuilt(store: Path, *, lost_only: bool = True) -> Path:
    out = store.parent / "out"
    rebuild(RebuildIndexRequest(str(store), str(out), Wanted(100, 20, "5.3.3"), lost_only=lost_only), OneByOne())
    return out


def crash(store: Path) -> None:
    """Leave what a killed broker leaves: `abort`, and a checkpoint that knows the first index file only."""
    (store / "abort").touch()
    known = min(index_of(store).items())[1]
    checkpoint = decode_checkpoint((store / "checkpoint").read_bytes())
    (store / "checkpoint").write_bytes(
        encode_checkpoint(checkpoint._replace(index_timestamp=int.from_bytes(known[8:16], "big")))
    )


def planned(store: Path, *, advance_checkpoint: bool = False, lost_only: bool = True) -> Installation:
    out = rebuilt(store, lost_only=lost_only)
    return plan_installation(str(store), str(out), advance_checkpoint=advance_checkpoint)


def beside(store: Path) -> list[str]:
    """Name what lies in the store beside the index directory and was not there before."""
    return [path.name for path in store.iterdir() if path.name.startswith(("index.", "checkpoint."))]


def test_lost_files_come_back_into_the_store(golden: StoreOf, store: Path) -> None:
    whole = index_of(golden(STORE))
    lose(store, *LOST)
    inodes = {path.name: path.stat().st_ino for path in (store / "index").iterdir()}
    install(planned(store))

    assert list(index_of(store).values()) == list(whole.values())
    assert {path.name: path.stat().st_ino for path in (store / "index").iterdir() if path.name in inodes} == inodes
    assert beside(store) == []


def test_a_whole_new_set_replaces_the_old_one_which_is_kept_aside(store: Path) -> None:
    old = index_of(store)
    (store / "index" / "20990101000000000").write_bytes(b"no index file at all")
    plan = planned(store, lost_only=False)
    install(plan)

    assert sorted(index_of(store).values()) == sorted(old.values())
    assert {path.name: path.read_bytes() for path in plan.aside.iterdir()} == old | {
        "20990101000000000": b"no index file at all"
    }


@pytest.mark.parametrize("lost_only", [True, False])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_set_whole(store: Path, *, lost_only: bool) -> None:
    lose(store, *LOST)
    old = index_of(store)
    plan = planned(store, lost_only=lost_only)
    steps: list[str] = []
    probe = store.parent / "probe"
    shutil.copytree(store, probe)
    out = plan.source
    install(plan_installation(str(probe), str(out)), steps.append)
    new = index_of(probe)
    for number in range(len(steps)):
        victim = store.parent / f"victim-{number}"
        shutil.copytree(store, victim)
        kill_at(number, plan_installation(str(victim), str(out)))

        assert index_of(victim) in (old, new), steps[number]
        if index_of(victim) == old:
            install(plan_installation(str(victim), str(out)))
        assert index_of(victim) == new
        assert not list(victim.glob("*.attempt-*"))


def kill_at(number: int, plan: Installation) -> None:
    child = os.fork()
    if child == 0:
        left = [number]

        def step(_name: str) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        install(plan, step)
        os._exit(0)
    _, status = os.waitpid(child, 0)

    assert os.WIFSIGNALED(status)


@pytest.fixture
def running_broker(store: Path) -> Iterator[None]:
    code = "import fcntl,sys;f=open(sys.argv[1],'r+b');fcntl.lockf(f,fcntl.LOCK_EX,1);print('held',flush=True);input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    yield
    holder.communicate("\n")


@pytest.mark.usefixtures("running_broker")
def test_nothing_is_installed_while_the_broker_runs(store: Path) -> None:
    with pytest.raises(RefusedError, match="the broker runs"), broker_kept_out(str(store)):
        pytest.fail("the lock is held by somebody else")


def test_the_broker_cannot_start_while_files_are_installed(store: Path) -> None:
    code = "import fcntl,sys;fcntl.lockf(open(sys.argv[1],'r+b'),fcntl.LOCK_EX|fcntl.LOCK_NB,1)"
    broker = [sys.executable, "-c", code, str(store / "lock")]
    with broker_kept_out(str(store)):
        assert subprocess.run(broker, check=False, capture_output=True).returncode != 0
    assert subprocess.run(broker, check=False, capture_output=True).returncode == 0


def test_a_store_without_a_lock_file_is_a_stopped_one(store: Path) -> None:
    """A copy, or a release before 4.2.0."""
    (store / "lock").unlink()
    with broker_kept_out(str(store)):
        assert not (store / "lock").exists()


def test_after_a_crash_the_files_are_named_that_the_broker_would_delete(store: Path) -> None:
    """It deletes what ends after the checkpoint's index time, so they must not be put there just like that."""
    lose(store, *LOST)
    crash(store)
    old = index_of(store)
    with pytest.raises(RefusedError, match=f"would delete .*{max(old)}.*--advance-checkpoint"):
        planned(store)

    assert index_of(store) == old


def test_the_checkpoint_is_advanced_if_asked_and_the_old_one_kept(store: Path) -> None:
    """Then the broker keeps every file; no other field changes."""
    lose(store, *LOST)
    crash(store)
    before = decode_checkpoint((store / "checkpoint").read_bytes())
    plan = planned(store, advance_checkpoint=True)
    install(plan)
    after = decode_checkpoint((store / "checkpoint").read_bytes())
    (backup,) = store.glob("checkpoint.replaced-*")

    assert after == before._replace(index_timestamp=after.index_timestamp)
    assert after.index_timestamp >= max(int.from_bytes(data[8:16], "big") for data in index_of(store).values())
    assert (store / "checkpoint").stat().st_size == 4096
    assert decode_checkpoint(backup.read_bytes()) == before


def test_a_clean_stop_leaves_the_checkpoint_alone(store: Path) -> None:
    """Its index time is the end of the last full file, and nothing is deleted."""
    lose(store, *LOST)
    crash(store)
    (store / "abort").unlink()
    plan = planned(store)

    assert plan.checkpoint is None


def test_files_get_owner_group_and_mode_of_what_is_there(store: Path) -> None:
    lose(store, *LOST)
    for path in (store / "index").iterdir():
        path.chmod(0o640)
    (store / "index").chmod(0o751)
    install(planned(store))

    assert {path.stat().st_mode & 0o777 for path in (store / "index").iterdir()} == {0o640}
    assert (store / "index").stat().st_mode & 0o777 == 0o751
    assert {path.stat().st_uid for path in (store / "index").iterdir()} == {store.stat().st_uid}


def test_a_user_who_may_not_give_files_away_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(store, *LOST)
    out = rebuilt(store)
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    with pytest.raises(RefusedError, match="run as that user"):
        plan_installation(str(store), str(out))


def test_an_index_directory_elsewhere_stays_there(golden: StoreOf, store: Path) -> None:
    elsewhere = store.parent / "fast-disk" / "idx"
    elsewhere.parent.mkdir()
    (store / "index").rename(elsewhere)
    (store / "index").symlink_to(elsewhere)
    lose(store, *LOST)
    install(planned(store))

    assert (store / "index").is_symlink()
    assert list(index_of(store).values()) == list(index_of(golden(STORE)).values())


def test_a_directory_that_changed_since_the_rebuild_is_refused(store: Path) -> None:
    lose(store, *LOST)
    out = rebuilt(store)
    lose(store, 0)
    with pytest.raises(RefusedError, match="has changed since the rebuild"):
        plan_installation(str(store), str(out))


def test_a_file_that_is_not_what_the_manifest_says_stops_the_installation(store: Path) -> None:
    lose(store, *LOST)
    old = index_of(store)
    plan = planned(store)
    damaged = plan.source / min(plan.new)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(OSError, match="the manifest says"):
        install(plan)

    assert index_of(store) == old


def test_a_half_written_rebuild_is_refused(store: Path) -> None:
    out = rebuilt(store)
    (out / "MANIFEST.json").unlink()
    with pytest.raises(RefusedError, match="no complete rebuild"):
        plan_installation(str(store), str(out))


def test_too_little_room_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(store, *LOST)
    out = rebuilt(store)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # noqa: SLF001
    with pytest.raises(RefusedError, match="bytes needed, 1 free"):
        plan_installation(str(store), str(out))


def test_a_plan_names_everything_and_touches_nothing(store: Path) -> None:
    lose(store, *LOST)
    out = rebuilt(store)
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in store.rglob("*") if path.is_file()}
    text = "\n".join(plan_installation(str(store), str(out)).describe())

    assert text.count("new: ") == len(LOST)
    assert f"kept: {13 - len(LOST)} files, " in text
    assert before == {path: hashlib.sha256(path.read_bytes()).digest() for path in store.rglob("*") if path.is_file()}


def test_without_an_exchange_by_the_system_directories_move_one_after_the_other(
    golden: StoreOf, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.rebuild.install._RENAMEAT2", {})
    lose(store, *LOST)
    install(planned(store))

    assert list(index_of(store).values()) == list(index_of(golden(STORE)).values())


NOBODY = 65534


@pytest.fixture
def theirs(golden: StoreOf) -> Iterator[Path]:
    """Copy a store that belongs to another user, who may do with it whatever a window leaves time for."""
    if os.geteuid() != 0:
        pytest.skip("only root can install for another user")
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the other user reaches it
        copy = folder / "store"
        shutil.copytree(golden(STORE), copy)
        (copy / "lock").write_text("lock")
        for path in (copy, *copy.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        victim = folder / "victim"
        victim.mkdir(0o700)
        (victim / "private").write_text("root's own")
        yield copy


def _outcome_of_attack(store: Path, before: str, attack: Callable[[], None]) -> OSError | None:
    plan = planned(store)

    def step(name: str) -> None:
        if name.startswith(before):
            assert os.geteuid() == NOBODY
            attack()

    try:
        install(plan, step)
    except OSError as error:
        return error
    return None


def _victim(store: Path) -> list[tuple[str, int, int, bytes]]:
    victim = store.parent / "victim"
    stats = [(path, path.lstat()) for path in (victim, *victim.iterdir())]
    return [(path.name, it.st_uid, it.st_mode, path.read_bytes() if path.is_file() else b"") for path, it in stats]


def _staging(store: Path) -> Path:
    [staging] = store.glob("index.attempt-*")
    return staging


@pytest.mark.parametrize("before", ["copy", "keep", "advance", "name the directory"])
def test_what_root_installs_does_not_leave_the_store_through_a_link_of_its_owner(theirs: Path, before: str) -> None:
    lose(theirs, *LOST)
    untouched = _victim(theirs)

    def attack() -> None:
        staging = _staging(theirs)
        if not staging.is_symlink():
            staging.rename(theirs / "moved")
            staging.symlink_to(theirs.parent / "victim")

    error = _outcome_of_attack(theirs, before, attack)

    assert untouched == _victim(theirs)
    assert error is not None or before == "advance"  # a step that this installation does not have
    assert (theirs / "index").is_symlink() is False
    assert NOBODY == (theirs / "index").lstat().st_uid


def test_a_link_in_the_place_of_the_new_set_is_not_installed(theirs: Path) -> None:
    lose(theirs, *LOST)
    before, untouched = index_of(theirs), _victim(theirs)

    def attack() -> None:
        [aside] = theirs.glob("index.replaced-*")
        aside.rename(theirs / "moved")
        aside.symlink_to(theirs.parent / "victim")

    error = _outcome_of_attack(theirs, "exchange", attack)

    assert "not the directory that was made" in str(error)
    assert before == index_of(theirs)
    assert untouched == _victim(theirs)


def test_a_link_in_the_place_of_the_old_set_is_not_followed(theirs: Path) -> None:
    lose(theirs, *LOST)
    untouched = _victim(theirs)

    def attack() -> None:
        (theirs / "index").rename(theirs / "moved")
        (theirs / "index").symlink_to(theirs.parent / "victim")

    error = _outcome_of_attack(theirs, "exchange", attack)

    assert error is not None
    assert untouched == _victim(theirs)


def test_root_installs_into_the_store_of_another_user(golden: StoreOf, theirs: Path) -> None:
    lose(theirs, *LOST)
    install(planned(theirs))

    assert [*index_of(golden(STORE)).values()] == [*index_of(theirs).values()]
    assert {(NOBODY, NOBODY)} == {(it.st_uid, it.st_gid) for it in map(Path.stat, (theirs / "index").iterdir())}
    assert os.geteuid() == os.getegid() == 0


def test_a_store_whose_index_directory_is_another_users_is_refused(theirs: Path) -> None:
    lose(theirs, *LOST)
    (theirs / "index").rename(theirs / "moved")
    (theirs / "index").symlink_to(theirs.parent / "victim")

    with pytest.raises(RefusedError, match="belongs to user"):
        planned(theirs, lost_only=False)
