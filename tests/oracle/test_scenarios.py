"""
The stores of real brokers after each scenario, and the brokers' answers about our versions of the files.

Outside the matrix, two scenarios run on one release each: golden stores (`tests/golden`) of the same scenarios on
every release cover the same bytes without a broker.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.oracle.judge import (
    DerivedFiles,
    build_with_commands,
    build_with_scalar_modules,
    find_differences,
    find_unexplained,
    find_unfaithful_pieces,
    list_units_into_log,
    read_derived_files,
)
from tests.oracle.plays import PlayedScenario
from tests.oracle.releases import MATRIX, marks, version_of
from tests.oracle.scenarios import SCENARIOS, UPGRADES, Scenario
from tests.oracle.sessions import rebuild_by_broker
from tests.oracle.stage import BODIES, find_different_answers
from tests.oracle.verdicts import verdict

_IN_EVERY_RUN = {("5.5.0", "edges"), ("4.9.8", "killed")}
_PLAYED = [(one, release) for release in MATRIX for one in SCENARIOS.values() if one.runs_on(release)]


@pytest.mark.parametrize(
    ("scenario", "writer"),
    [
        pytest.param(
            one, writer, id=f"{writer}-{one.name}", marks=marks(in_every_run=(writer, one.name) in _IN_EVERY_RUN)
        )
        for one, writer in (*_PLAYED, *((upgrade, upgrade.since) for upgrade in UPGRADES))
    ],
)
def test_rebuilt_files_and_answers_are_those_of_the_broker(
    scenario: Scenario, writer: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """
    Every piece of the log is a message that is encoded unchanged, and files built from it equal the broker's.

    After a crash, the broker deletes the unfinished index file and repeats the message between two files, so entries
    move; after expiry, queues and the first index file may refer to deleted messages. `verify` explains both. The index
    file of two releases may use two rules for counting slots, or contain tags only in its second half.
    """
    played = PlayedScenario(scenario, scenario.on(writer, tmp_path / "store", tmp_path / "scratch"))

    assert len(played.log) > 0
    assert find_unfaithful_pieces(played.store) == []
    if scenario.name == "killed":
        assert played.disk.queues == build_with_scalar_modules(played.log, played.writer).queues
        words = f"queues equal; {_explained(played)}"
    elif scenario.name == "expired":
        _assert_equal_units_of_remaining_messages(played)
        words = f"units of existing messages equal; {_explained(played)}"
    else:
        words = _assert_equal_files(played)
    first, second = scenario.name.split("-")[1:3] if scenario in UPGRADES else (writer, "")
    verdict(f"{first}, then {second}" if second else writer, "verdict" if second else scenario.name, words)
    if scenario.name == "edges":
        said = _rebuild_by_broker(played, tmp_path / "started" / "store")
        verdict(writer, "started on a log without queues and index", said)
    if scenario.name == "everyday":
        _assert_equal_answers(played, tmp_path / "bodies", capfdbinary)
        verdict(writer, "mqadmin's answers", f"{len(played.stage.answered_lines)} lines equal")


def _explained(played: PlayedScenario) -> str:
    assert find_unexplained(played.store, played.stage.release) == []
    return f"{len(played.disk.index_files)} index files explained"


def _assert_equal_files(played: PlayedScenario) -> str:
    """Compare byte for byte with the files of the readable modules and of the commands."""
    assert find_differences(played.disk, build_with_scalar_modules(played.log, played.writer)) == []
    made = build_with_commands(played.store, played.writer)
    if len(played.writer.releases) > 1:  # no option states the offset of the second release
        made = made._replace(index_files=played.disk.index_files)
    assert find_differences(played.disk, made) == []
    return f"{len(played.disk.queues)} + {len(played.disk.index_files)}"


def _assert_equal_units_of_remaining_messages(played: PlayedScenario) -> None:
    start = played.log[0].physical_offset
    made = build_with_scalar_modules(played.log, played.writer)
    assert start > 0
    assert list_units_into_log(made.queues, start) == list_units_into_log(played.disk.queues, start)


def _rebuild_by_broker(played: PlayedScenario, store: Path) -> str:
    """Start on the log alone, after a clean stop: some releases dispatch it again, the others begin at its end."""
    release = played.stage.release
    shutil.copytree(played.store / "commitlog", store / "commitlog")
    assert rebuild_by_broker(release, store, played.stage.geometry) > 0
    made = read_derived_files(store)
    # As observed: 4.3.2 and 5.0.0 to 5.2.0 do not, 4.5.2 to 4.9.8 and 5.3.3 do.
    if (4, 5, 0) <= version_of(release) < (5, 0, 0) or version_of(release) >= (5, 3, 0):
        assert find_differences(made, build_with_scalar_modules(played.log, played.writer)) == []
        return "builds the same files as we do"
    assert made == DerivedFiles({}, [])
    return "builds nothing"


def _assert_equal_answers(played: PlayedScenario, bodies: Path, captured: pytest.CaptureFixture[bytes]) -> None:
    """If nothing is found, mqadmin prints nothing, and we print the reason. Bodies are decompressed."""
    bodies.mkdir()
    lines = played.stage.answered_lines
    differing = find_different_answers(played.stage, captured, bodies=bodies)
    written = {path for asked in lines for path in re.findall(rf"{BODIES}(\S+)", asked.printed.stdout)}

    assert len(lines) > len("queries")
    assert differing == []
    assert {path.name: path.read_bytes() for path in bodies.iterdir()} == {
        name: Path(BODIES, name).read_bytes() for name in written
    }
