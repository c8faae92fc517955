"""Rebuilt queues are put into a stopped broker's store: all or nothing, and what was replaced stays beside it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.rebuild import queue_run
from jobs.rebuild.install import RefusedError
from jobs.rebuild.queue_install import install_queues, plan_queue_installation
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.golden import StoreOf
from tests.support.commands import state_of


class KilledError(Exception):
    """The process ended here."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rebuilt(store: Path, out: Path, *, lost_only: bool = True) -> queue_run.Summary:
    request = queue_run.RebuildQueuesRequest(str(store), out, file_size=200, release="5.3.3", lost_only=lost_only)
    return queue_run.rebuild(request, OneByOne())


def test_lost_queues_are_put_back_and_verify_is_clean(store: Path, tmp_path: Path) -> None:
    queues = store / "consumequeue"
    before = contents(queues)
    shutil.rmtree(queues / "T2")
    zeroed = sorted((queues / "T1" / "1").iterdir())[1]
    zeroed.write_bytes(bytes(200))
    rebuilt(store, tmp_path / "out")
    plan = plan_queue_installation(str(store), tmp_path / "out")
    lines = list(plan.describe())
    install_queues(plan)

    assert contents(queues) == before
    aside = [path for path in store.iterdir() if path.name.startswith("consumequeue.replaced-")]
    assert [contents(path) for path in aside] == [{str(zeroed.relative_to(queues)): bytes(200)}]
    assert f"new: consumequeue/{zeroed.relative_to(queues)}" in lines
    assert verify(VerifyRequest(str(store)), OneByOne()).exit_code is ExitCode.CLEAN


def test_a_full_set_replaces_all_queues(store: Path, tmp_path: Path) -> None:
    queues = store / "consumequeue"
    before = contents(queues)
    shutil.rmtree(queues)
    rebuilt(store, tmp_path / "out", lost_only=False)
    install_queues(plan_queue_installation(str(store), tmp_path / "out"))

    assert contents(queues) == before
    assert not [path for path in store.iterdir() if "replaced" in path.name]


def test_a_kill_at_any_step_leaves_one_complete_set(store: Path, tmp_path: Path) -> None:
    queues = store / "consumequeue"
    healthy = contents(queues)
    shutil.rmtree(queues / "T2")
    damaged = contents(queues)
    rebuilt(store, tmp_path / "out")
    steps: list[str] = []
    install_queues(
        plan_queue_installation(str(Path(shutil.copytree(store, tmp_path / "count"))), tmp_path / "out"), steps.append
    )
    for number in range(len(steps)):
        copy = Path(shutil.copytree(store, tmp_path / f"copy-{number}"))
        seen: list[str] = []

        def stop(step: str, seen: list[str] = seen, number: int = number) -> None:
            if len(seen) == number:
                raise KilledError(step)
            seen.append(step)

        with pytest.raises(KilledError):
            install_queues(plan_queue_installation(str(copy), tmp_path / "out"), stop)
        assert contents(copy / "consumequeue") in (damaged, healthy)
        install_queues(plan_queue_installation(str(copy), tmp_path / "out"))
        assert contents(copy / "consumequeue") == healthy


def test_a_file_that_is_not_what_the_manifest_names_is_not_installed(store: Path, tmp_path: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "T2")
    rebuilt(store, tmp_path / "out")
    path = next(path for path in (tmp_path / "out" / "T2").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    before = state_of(store / "consumequeue")

    with pytest.raises(OSError, match="not the file that the manifest names"):
        install_queues(plan_queue_installation(str(store), tmp_path / "out"))
    assert state_of(store / "consumequeue") == before


NOBODY = 65534
STAGING, ASIDE = "consumequeue.attempt-*", "consumequeue.replaced-*"


@pytest.fixture
def theirs(golden: StoreOf, tmp_path: Path) -> Iterator[Path]:
    """Copy a store without one topic's queues, which are rebuilt; it belongs to another user, who may change it."""
    if os.geteuid() != 0:
        pytest.skip("only root can install for another user")
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the other user reaches it
        copy = Path(shutil.copytree(golden("b533-base"), folder / "store"))
        for path in (copy, *copy.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        victim = folder / "victim"
        (victim / "T2" / "0").mkdir(parents=True)
        victim.chmod(0o700)
        (victim / "private").write_text("root's own")
        shutil.rmtree(copy / "consumequeue" / "T2")
        rebuilt(copy, tmp_path / "out")
        yield copy


def everything(folder: Path) -> list[tuple[str, int, int, bytes]]:
    stats = [(path, path.lstat()) for path in (folder, *sorted(folder.rglob("*")))]
    return [(str(path), it.st_uid, it.st_mode, path.read_bytes() if path.is_file() else b"") for path, it in stats]


def swapped(store: Path, pattern: str) -> Callable[[], None]:
    """Return the attack that puts a link to the victim in the place of what matches *pattern*."""

    def attack() -> None:
        [place] = store.glob(pattern)
        if not place.is_symlink():
            place.rename(store / "moved")
            place.symlink_to(store.parent / "victim")

    return attack


@pytest.mark.parametrize(
    ("before", "pattern"),
    [("copy", STAGING), ("keep", STAGING), ("name", STAGING), ("exchange", ASIDE), ("exchange", "consumequeue")],
)
def test_what_root_installs_does_not_leave_the_store_through_a_link_of_its_owner(
    theirs: Path, tmp_path: Path, before: str, pattern: str
) -> None:
    untouched, attack = everything(theirs.parent / "victim"), swapped(theirs, pattern)
    plan = plan_queue_installation(str(theirs), tmp_path / "out")

    def step(name: str) -> None:
        if name.startswith(before):
            assert os.geteuid() == NOBODY
            attack()

    with pytest.raises(OSError, match=r"."):
        install_queues(plan, step)

    assert untouched == everything(theirs.parent / "victim")
    assert pattern == "consumequeue" or not (theirs / "consumequeue").is_symlink()
    assert os.geteuid() == os.getegid() == 0


def test_root_installs_into_the_store_of_another_user(theirs: Path, golden: StoreOf, tmp_path: Path) -> None:
    install_queues(plan_queue_installation(str(theirs), tmp_path / "out"))

    assert contents(theirs / "consumequeue") == contents(golden("b533-base") / "consumequeue")
    found = [path.lstat() for path in (theirs / "consumequeue", *(theirs / "consumequeue").rglob("*"))]
    assert {(NOBODY, NOBODY)} == {(it.st_uid, it.st_gid) for it in found}
    assert os.geteuid() == os.getegid() == 0


def test_queues_that_are_another_users_are_refused(theirs: Path, tmp_path: Path) -> None:
    swapped(theirs, "consumequeue")()

    with pytest.raises(RefusedError, match="belongs to user"):
        plan_queue_installation(str(theirs), tmp_path / "out")
