"""Links in a store: one to another disk is followed, one to somebody else's file is not."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.storage.local import LocalStorage, may_follow
from tests.golden import StoreOf
from tests.support.commands import Run, copy_of

SOMEBODY, ELSE = 12345, 54321

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of somebody else")


@pytest.mark.parametrize(
    ("link", "target", "expected"),
    [
        (0, SOMEBODY, True),
        (SOMEBODY, SOMEBODY, True),
        (os.geteuid(), SOMEBODY, True),
        (SOMEBODY, ELSE, False),
        (SOMEBODY, 0, os.geteuid() == SOMEBODY),
    ],
    ids=["of root", "of its owner", "ours", "of another", "to a file of root"],
)
def test_a_link_is_followed_for_root_for_us_and_for_the_owner_of_its_target(
    link: int, target: int, expected: bool
) -> None:
    assert may_follow(link, target) is expected


@only_root
@pytest.mark.parametrize("verb", ["inspect", "dump"])
def test_a_segment_that_is_a_link_to_a_private_file_is_not_read(
    verb: str, golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """Its first bytes came into `quarantine.sample`; exit code 1 now, and which link."""
    store = copy_of(golden("b551-base"), tmp_path)
    secret = tmp_path / "private.txt"
    secret.write_text("the secret")
    segment = min((store / "commitlog").iterdir())
    segment.unlink()
    segment.symlink_to(secret)
    os.lchown(segment, SOMEBODY, SOMEBODY)

    outcome = run(verb, store if verb == "inspect" else segment)

    assert ExitCode.FAILED == outcome.code
    assert f"{segment}: a link of user {SOMEBODY} to what user 0 owns is not followed" in outcome.err
    assert "secret" not in outcome.out + outcome.err


@only_root
def test_a_link_that_is_made_after_the_store_was_listed_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("the secret")
    (tmp_path / "segment").symlink_to(tmp_path / "private.txt")
    os.lchown(tmp_path / "segment", SOMEBODY, SOMEBODY)

    with pytest.raises(PermissionError, match="not followed"), LocalStorage().open(str(tmp_path / "segment")):
        pass


@only_root
def test_a_folder_of_another_store_is_not_taken_for_the_log(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / ("0" * 20)).write_bytes(b"a record")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "commitlog").symlink_to(tmp_path / "theirs")
    os.lchown(tmp_path / "store" / "commitlog", SOMEBODY, SOMEBODY)

    with pytest.raises(PermissionError, match="not followed"):
        LocalStorage().list_files(str(tmp_path / "store"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_takes_the_place_of_a_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    place = tmp_path / "00000000000000000000"
    make(place)
    with pytest.raises(OSError, match=r"is no regular file.*0{20}"), LocalStorage().open(str(place)):
        pass
