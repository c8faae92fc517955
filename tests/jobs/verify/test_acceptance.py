"""Findings that a user has accepted are noted, and no longer decide the exit code; other damage at their places is."""

import json
import os
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from jobs.console.result import ExitCode, RequestError
from jobs.diagnosis import acceptance
from jobs.library import verify
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store, overwrite
from tests.support.stores import list_segments

_SIZES = ("--release", "5.3.3", "--hash-slots", "100", "--index-num", "20", "--consume-queue-size", "200")
_ZEROED = 11_233  # position of zeros in the second segment


@pytest.fixture
def bridged(golden: StoreOf, tmp_path: Path, run: Run) -> Path:
    """Return a store in which a repair has written a bridge record over a damaged record of the second segment."""
    store = copy_store(golden("b533-base"), tmp_path)
    overwrite(list_segments(store)[1], _ZEROED, bytes(60))
    (store / "abort").touch()
    (store / "checkpoint").unlink()
    run("repair", store, "--out", tmp_path / "repair", *_SIZES, "--bridge", "--apply")
    return store


def printed_names(text: str) -> list[str]:
    """Return the findings that the printed command accepts."""
    line = next(line for line in text.replace("\\\n", " ").splitlines() if "--accept" in line)
    words = shlex.split(line)
    return [words[at + 1] for at, word in enumerate(words) if word == "--accept"]


def test_a_bridged_place_of_the_log_can_be_accepted(bridged: Path, run: Run) -> None:
    """`verify` had ended with 3 and printed `repair --lake`, run after run, until the segment expired."""
    before = run("verify", bridged)

    assert before.code == ExitCode.DAMAGE
    (name,) = printed_names(before.out)

    assert re.fullmatch(r"damaged_range:commitlog/0{15}16384@11229#[0-9a-f]{16}", name)

    after = run("verify", bridged, "--accept", name)

    assert after.code == ExitCode.CLEAN
    assert "accepted: damaged_range: commitlog/00000000000000016384 @11229" in after.out
    assert "repair" not in after.out.replace("a repair wrote a bridge", "")

    document = run("verify", bridged, "--accept", name, "--json").document

    assert [] == document["findings"]
    assert [("damaged_range", name, None)] == [
        (one["kind"], one["accept_as"], one["accepted_at"]) for one in document["accepted"]
    ]


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_the_printed_command_records_the_finding_in_the_same_lake(
    bridged: Path, run: Run, tmp_path: Path, command: str
) -> None:
    """It did not repeat --findings-lake and --broker: the finding was a problem again in the next run."""
    lake = tmp_path / "lake"
    run("verify", bridged, "--findings-lake", lake, "--broker", "b0")
    more = ("--findings-lake", lake) if command == "verify" else ("--lake", lake, "--out", tmp_path / "again")

    before = run(command, bridged, "--broker", "b0", *more)
    line = next(line for line in before.out.replace("\\\n", " ").splitlines() if "--accept" in line)
    run(*shlex.split(line)[1:])
    after = run(command, bridged, "--broker", "b0", *more)

    assert ExitCode.DAMAGE == before.code
    assert "The lake records this:" in before.out
    assert ExitCode.CLEAN == after.code, after


def test_the_python_function_accepts_a_finding_by_its_name(bridged: Path) -> None:
    before = verify(bridged)
    (cause,) = (cause for cause, _ in before.findings_by_cause)

    after = verify(bridged, accept=before.find_name(cause))

    assert ExitCode.DAMAGE == before.exit_code
    assert ExitCode.CLEAN == after.exit_code
    assert [cause] == [one.finding for one in after.accepted]


def test_the_python_function_refuses_a_pattern(bridged: Path) -> None:
    with pytest.raises(RequestError, match="is not the name of one finding"):
        verify(bridged, accept="damaged_range:*")


def test_other_damage_at_an_accepted_place_is_found(bridged: Path, run: Run) -> None:
    (name,) = printed_names(run("verify", bridged).out)
    overwrite(list_segments(bridged)[1], _ZEROED + 20, b"\x55" * 60)

    outcome = run("verify", bridged, "--accept", name)

    assert outcome.code == ExitCode.DAMAGE
    assert "damage damaged_range: commitlog/00000000000000016384 @11229" in outcome.out
    assert f"no finding is called {name}" in outcome.out


def test_damage_elsewhere_still_decides_the_exit_code(bridged: Path, run: Run) -> None:
    (name,) = printed_names(run("verify", bridged).out)
    overwrite(bridged / "consumequeue" / "T1" / "0" / f"{200:020}", 48, b"\0\0\0\x4d")

    outcome = run("verify", bridged, "--accept", name)

    assert outcome.code == ExitCode.MISMATCH
    assert "accepted: damaged_range" in outcome.out
    assert "1 problem found" in outcome.out


def test_a_lake_keeps_which_findings_were_accepted(bridged: Path, run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (name,) = printed_names(run("verify", bridged, "--findings-lake", lake).out)
    accepted = run("verify", bridged, "--findings-lake", lake, "--accept", name)

    assert accepted.code == ExitCode.CLEAN

    again = run("verify", bridged, "--findings-lake", lake)

    assert again.code == ExitCode.CLEAN
    assert re.search(r"accepted on 20\d\d-\d\d-\d\d: damaged_range: commitlog/0{15}16384 @11229", again.out)

    (row,) = json.loads(run("query", "sql", "--lake", lake, "SELECT * FROM accepted_findings", "--output", "json").out)

    assert name == row["accept_as"]
    assert "damaged_range" == row["kind"]
    assert "commitlog/00000000000000016384" == row["file"]
    assert 11229 == row["offset"]


def test_a_repair_knows_the_findings_that_a_lake_has_as_accepted(bridged: Path, run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run("ingest", bridged, "--lake", lake, "--release", "5.3.3")
    (name,) = printed_names(run("verify", bridged).out)
    run("verify", bridged, "--findings-lake", lake, "--accept", name)

    for more in (("--lake", lake), ("--accept", name)):
        outcome = run("repair", bridged, "--out", tmp_path / f"plan{len(more[0])}", *_SIZES, *more)

        assert outcome.code == ExitCode.CLEAN
        assert "damaged_range: commitlog/00000000000000016384 @11229" in outcome.out
        assert "accepted" in outcome.out


def test_a_pattern_is_accepted_only_into_a_lake(bridged: Path, run: Run, tmp_path: Path) -> None:
    """Without a lake, a pattern would accept damage that does not exist yet."""
    refused = run("verify", bridged, "--accept", "damaged_range:*")

    assert refused.code == ExitCode.USAGE
    assert "--findings-lake" in refused.err

    outcome = run("verify", bridged, "--accept", "damaged_range:*", "--findings-lake", tmp_path / "lake")

    assert outcome.code == ExitCode.CLEAN


def test_inspect_accepts_a_bridged_place_by_the_same_name(bridged: Path, run: Run) -> None:
    (name,) = printed_names(run("verify", bridged).out)

    assert ExitCode.DAMAGE == run("inspect", "--deep", bridged).code

    outcome = run("inspect", "--deep", bridged, "--accept", name)

    assert ExitCode.CLEAN == outcome.code
    assert "accepted: 3,743 bytes are not a valid record" in outcome.out


def test_an_altered_body_can_be_accepted_by_the_printed_command(golden: StoreOf, tmp_path: Path, run: Run) -> None:
    """Without a lake or a replica, nothing restores it."""
    store = copy_store(golden("b533-base"), tmp_path)
    overwrite(list_segments(store)[0], 88, b"\xff")

    before = run("verify", store)

    assert ExitCode.DAMAGE == before.code
    (name,) = printed_names(before.out)

    assert ExitCode.CLEAN == run("verify", store, "--accept", name).code

    overwrite(list_segments(store)[0], 89, b"\xff")

    assert ExitCode.DAMAGE == run("verify", store, "--accept", name).code


def test_damage_at_which_the_broker_would_truncate_its_log_is_bridged_first(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    store = copy_store(golden("b533-base"), tmp_path)
    overwrite(list_segments(store)[1], _ZEROED, bytes(60))
    (store / "abort").touch()
    (store / "checkpoint").unlink()

    out = run("verify", store).out

    assert "--bridge" in out
    assert "--accept" not in out


def test_a_huge_hole_of_an_index_file_is_not_read_to_name_its_finding(
    golden: StoreOf, tmp_path: Path, run: Run, reads: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` had read 300 GB of zeros, without any progress."""
    monkeypatch.setattr(acceptance, "_MOST_BYTES", 4 << 20)
    store = copy_store(golden("b533-base"), tmp_path)
    damaged = max((store / "index").iterdir())
    os.truncate(damaged, 200 << 20)
    outcome = run("verify", store)

    assert outcome.code is ExitCode.MISMATCH
    assert damaged.name in outcome.out
    assert 0 < reads[damaged.stat().st_ino] < 32 << 20
