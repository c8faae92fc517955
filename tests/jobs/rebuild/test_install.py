"""Installing rebuilt index files and queues into a store: atomically, and never while a broker runs."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.rebuild import queue_run
from jobs.rebuild.index import IndexRebuildSummary, rebuild_index
from jobs.rebuild.install import Installation, install, plan_index_installation, plan_queue_installation
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.store.request import GivenSettings
from jobs.store.running_broker import NotInstalledError, find_broker_process, lock_store
from jobs.store.workers import SerialWorkers
from rmq_formats.broker_conf import BrokerConf
from tests.golden import StoreOf
from tests.support.stores import HOLD_LOCK_PROGRAM, hold_lock, read_files, tree_state

STORE = "b533-base"
INDEX, QUEUES = DIRECTORIES = ("index", "consumequeue")
LOST = (2, 3, 7)  # of the thirteen index files
Rebuilt = IndexRebuildSummary | queue_run.QueueRebuildSummary
NOBODY = 65534


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(golden(STORE), tmp_path / "store"))
    (copy / "lock").write_text("lock")
    return copy


def delete_files(store: Path, directory: str) -> None:
    if directory == QUEUES:
        shutil.rmtree(store / QUEUES / "T2")
        return
    paths = sorted((store / INDEX).iterdir())
    for number in LOST:
        paths[number].unlink()


def rebuilt_index(store: Path, *, lost_only: bool = True) -> IndexRebuildSummary:
    settings = GivenSettings(100, 20, "5.3.3")
    request = RebuildIndexRequest(str(store), str(store.parent / "out"), given_settings=settings, lost_only=lost_only)
    return rebuild_index(request, SerialWorkers())


def rebuilt(store: Path, directory: str, *, lost_only: bool = True) -> Rebuilt:
    if directory == INDEX:
        return rebuilt_index(store, lost_only=lost_only)
    out = store.parent / "out"
    conf = BrokerConf(consume_queue_size=200)
    request = RebuildQueuesRequest(
        str(store), out, given_settings=GivenSettings(release="5.3.3", conf=conf), lost_only=lost_only
    )
    return queue_run.rebuild_queues(request, SerialWorkers())


def plan_of(store: Path, made: Rebuilt) -> Installation:
    if isinstance(made, IndexRebuildSummary):
        (plan,) = plan_index_installation(str(store), made)
    else:
        (plan,) = plan_queue_installation(str(store), made)
    return plan


def make_plan(store: Path, directory: str) -> Installation:
    return plan_of(store, rebuilt(store, directory))


@pytest.mark.parametrize(("directory", "exchanges"), [(INDEX, True), (QUEUES, True), (INDEX, False)])
def test_lost_files_are_installed_into_the_store(
    golden: StoreOf, store: Path, monkeypatch: pytest.MonkeyPatch, directory: str, *, exchanges: bool
) -> None:
    """If the system cannot exchange directories, they are renamed one after the other."""
    if not exchanges:
        monkeypatch.setattr("jobs.rebuild.install._RENAMEAT2", {})
    delete_files(store, directory)
    inodes = {path: path.stat().st_ino for path in (store / directory).rglob("*") if path.is_file()}
    install(make_plan(store, directory))

    assert [*read_files(store / directory).values()] == [*read_files(golden(STORE) / directory).values()]
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert not list(store.glob("*.*-*"))


def test_the_times_of_a_kept_file_do_not_change_the_checkpoint(store: Path) -> None:
    """It may be damaged, or belong to another store, so its times are unproven."""
    delete_files(store, INDEX)
    made = rebuilt_index(store)
    kept = min((store / INDEX).iterdir())
    kept.write_bytes(kept.read_bytes()[:8] + bytes([0x20]) + kept.read_bytes()[9:])  # an end time in the future

    [plan] = plan_index_installation(str(store), made, advance_checkpoint=True)

    assert plan.target_directory.name == INDEX


@pytest.mark.sample(2)
@pytest.mark.parametrize(("directory", "lost_only"), [(INDEX, True), (INDEX, False), (QUEUES, True)])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_set_whole(
    store: Path, directory: str, *, lost_only: bool
) -> None:
    delete_files(store, directory)
    old = read_files(store / directory)
    made = rebuilt(store, directory, lost_only=lost_only)
    steps: list[str] = []
    probe = Path(shutil.copytree(store, store.parent / "probe"))
    install(plan_of(probe, made), steps.append)
    new = read_files(probe / directory)
    for number in range(len(steps)):
        victim = Path(shutil.copytree(store, store.parent / f"victim-{number}"))
        kill_at(number, plan_of(victim, made))

        assert read_files(victim / directory) in (old, new), steps[number]
        if read_files(victim / directory) == old:
            install(plan_of(victim, made))

        assert read_files(victim / directory) == new
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


def test_a_store_is_locked_if_no_broker_runs_and_the_output_is_elsewhere(store: Path) -> None:
    out = store.parent / "out"
    with hold_lock(store), pytest.raises(NotInstalledError, match="a broker is running"), lock_store(str(store), out):
        pytest.fail("the broker holds the lock")
    with pytest.raises(NotInstalledError, match="inside the store"), lock_store(str(store), store / "new" / "out"):
        pytest.fail("our own files would be changes of the store")
    (store / "lock").unlink()  # the store is a copy, or of a release before 4.2.0
    with lock_store(str(store), out):
        assert not (store / "lock").exists()


def test_the_broker_cannot_start_while_files_are_installed(store: Path) -> None:
    """Also after a check for a running broker: closing any descriptor of a file releases its POSIX locks."""
    broker = [sys.executable, "-c", HOLD_LOCK_PROGRAM, str(store / "lock")]
    with lock_store(str(store), store.parent / "out"):
        assert find_broker_process(str(store)) is None
        (store / "lock").read_bytes()

        assert subprocess.run(broker, check=False, capture_output=True, input=b"\n").returncode != 0

    assert subprocess.run(broker, check=False, capture_output=True, input=b"\n").returncode == 0


def test_a_changed_directory_is_refused(store: Path) -> None:
    delete_files(store, INDEX)
    made = rebuilt_index(store)
    min((store / INDEX).iterdir()).unlink()
    with pytest.raises(NotInstalledError, match="has changed since the rebuild"):
        plan_of(store, made)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_file_that_differs_from_the_manifest_stops_the_installation(store: Path, directory: str) -> None:
    delete_files(store, directory)
    plan = make_plan(store, directory)
    damaged = Path(max(plan.new.values()).path)
    before = tree_state(store / directory)
    for change in (bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:], damaged.read_bytes() + b"\0"):
        damaged.write_bytes(change)
        with pytest.raises(OSError, match="size or SHA-256 differs from the manifest"):
            install(plan)

        assert tree_state(store / directory) == before
        assert list(store.glob("*.attempt-*")) == []


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_too_little_room_and_another_user_are_refused(
    store: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_files(store, directory)
    made = rebuilt(store, directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 0, 1 << 26))  # noqa: SLF001
    plan = plan_of(store, made)
    before = tree_state(store)
    with pytest.raises(NotInstalledError, match="bytes are needed, 67,108,864 are free, and 67,108,864 must stay free"):
        install(plan)

    assert tree_state(store) == before
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    with pytest.raises(NotInstalledError, match="run as that user"):
        install(plan_of(store, made))


@pytest.fixture
def foreign_store(golden: StoreOf) -> Iterator[Path]:
    """Copy a store that belongs to another user, who may change it at any time."""
    if os.geteuid() != 0:
        pytest.skip("only root can install for another user")
    with TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)  # accessible to the other user
        copy = Path(shutil.copytree(golden(STORE), directory / "store"))
        (copy / "lock").write_text("lock")
        for path in (copy, *copy.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        victim = directory / "victim"
        (victim / "T2" / "0").mkdir(parents=True)
        victim.chmod(0o700)
        (victim / "private").write_text("root's own")
        yield copy


def read_everything(directory: Path) -> list[tuple[str, int, int, bytes]]:
    stats = [(path, path.lstat()) for path in (directory, *sorted(directory.rglob("*")))]
    return [(str(path), it.st_uid, it.st_mode, path.read_bytes() if path.is_file() else b"") for path, it in stats]


def link_to_victim(store: Path, pattern: str) -> Callable[[], None]:
    """Return an attack that replaces files that match *pattern* with links to the victim."""

    def attack() -> None:
        [place] = store.glob(pattern)
        if not place.is_symlink():
            place.rename(store / "moved")
            place.symlink_to(store.parent / "victim")

    return attack


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize(
    ("before", "pattern"),
    [
        ("copy", ".attempt-*"),
        ("keep", ".attempt-*"),
        ("name", ".attempt-*"),
        ("exchange", ".replaced-*"),
        ("exchange", ""),
    ],
)
def test_files_installed_by_root_cannot_leave_the_store_through_a_link_of_its_owner(
    foreign_store: Path, directory: str, before: str, pattern: str
) -> None:
    delete_files(foreign_store, directory)
    plan = make_plan(foreign_store, directory)
    untouched = read_everything(foreign_store.parent / "victim")
    attack = link_to_victim(foreign_store, f"{directory}{pattern}")

    def step(name: str) -> None:
        if name.startswith(before):
            assert os.geteuid() == NOBODY
            attack()

    with pytest.raises(OSError, match=r"."):
        install(plan, step)

    assert untouched == read_everything(foreign_store.parent / "victim")
    assert not pattern or not (foreign_store / directory).is_symlink()
    assert os.geteuid() == os.getegid() == 0


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_root_installs_into_the_store_of_another_user(golden: StoreOf, foreign_store: Path, directory: str) -> None:
    delete_files(foreign_store, directory)
    install(make_plan(foreign_store, directory))

    assert [*read_files(foreign_store / directory).values()] == [*read_files(golden(STORE) / directory).values()]
    found = [path.lstat() for path in (foreign_store / directory, *(foreign_store / directory).rglob("*"))]

    assert {(NOBODY, NOBODY)} == {(it.st_uid, it.st_gid) for it in found}
    assert os.geteuid() == os.getegid() == 0


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_directory_of_another_user_is_refused(foreign_store: Path, directory: str) -> None:
    delete_files(foreign_store, directory)
    made = rebuilt(foreign_store, directory, lost_only=False)
    link_to_victim(foreign_store, directory)()

    with pytest.raises(NotInstalledError, match="belongs to user"):
        plan_of(foreign_store, made)


def fail_once(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let the next listing of a directory fail, by either function that lists."""
    pending = [directory]

    def failing(function: Callable[[str | Path], object], path: str | Path = ".") -> object:
        if pending and Path(path) == pending[0]:
            pending.clear()
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return function(path)

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, partial(failing, getattr(os, name)))


@pytest.mark.parametrize("directory", [INDEX, QUEUES])
def test_right_files_of_a_directory_that_cannot_be_listed_are_not_taken_out_of_the_store(
    store: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_files(store, directory)
    made = rebuilt(store, directory)
    before = read_files(store)
    place = store / directory if directory == INDEX else min((store / directory / "T1").iterdir())
    fail_once(monkeypatch, place)

    with pytest.raises(OSError, match=re.escape(str(place))):
        install(plan_of(store, made))

    assert before == read_files(store)
