"""
The stores of real brokers after each scenario, and the brokers' answers about our versions of the files.

Outside the matrix, each test runs one scenario on one release: golden stores (`tests/golden`) of the same scenarios on
every release cover the same bytes without a broker.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.oracle.conftest import Plays, Verdict
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
from tests.oracle.releases import version_of
from tests.oracle.scenarios import SCENARIOS, UPGRADES, Scenario
from tests.oracle.sessions import rebuild_by_broker
from tests.oracle.stage import BODIES, find_different_answers

_EQUAL = ("everyday", "edges", "clock", "restarted", "typed", "property-crc", "retried", "timed", "dledger")


@pytest.fixture
def played(plays: Plays, release: str, scenario: str) -> PlayedScenario:
    """Return a played scenario; every piece of its log is a message that is encoded unchanged."""
    played = plays(SCENARIOS[scenario], release)
    assert len(played.log) > 0
    assert find_unfaithful_pieces(played.store) == []
    return played


@pytest.mark.scenarios(*_EQUAL)
def test_rebuilt_queues_and_index_files_equal_those_of_the_broker(played: PlayedScenario, verdict: Verdict) -> None:
    """Byte for byte, by the readable modules and by the commands."""
    verdict(played.stage.release, played.scenario.name, _assert_equal_files(played))


@pytest.mark.oracle
@pytest.mark.campaign
@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.name)
def test_a_store_of_two_releases_follows_the_rules_of_each(plays: Plays, verdict: Verdict, upgrade: Scenario) -> None:
    """An index file may use two rules for counting slots, or contain tags only in its second half."""
    first, second = upgrade.name.split("-")[1:3]
    verdict(f"{first}, then {second}", "verdict", _assert_equal_files(plays(upgrade, upgrade.since)))


def _assert_equal_files(played: PlayedScenario) -> str:
    assert find_differences(played.disk, build_with_scalar_modules(played.log, played.writer)) == []
    made = build_with_commands(played.store, played.writer)
    if len(played.writer.releases) > 1:  # no option states the offset of the second release
        made = made._replace(index_files=played.disk.index_files)
    assert find_differences(played.disk, made) == []
    return f"{len(played.disk.queues)} + {len(played.disk.index_files)}"


@pytest.mark.scenarios("killed")
def test_queues_are_equal_and_index_files_explained_after_a_crash(played: PlayedScenario, verdict: Verdict) -> None:
    """The broker deletes the unfinished index file, and repeats the message between two files, so entries move."""
    assert played.disk.queues == build_with_scalar_modules(played.log, played.writer).queues
    assert find_unexplained(played.store, played.stage.release) == []
    words = f"queues equal; {len(played.disk.index_files)} index files explained"
    verdict(played.stage.release, played.scenario.name, words)


@pytest.mark.scenarios("expired")
def test_files_of_a_shortened_log_are_equal_where_messages_remain(played: PlayedScenario, verdict: Verdict) -> None:
    """Queues and the first index file may refer to deleted messages; entries that point into the log equal ours."""
    start = played.log[0].physical_offset
    made = build_with_scalar_modules(played.log, played.writer)

    assert start > 0
    assert list_units_into_log(made.queues, start) == list_units_into_log(played.disk.queues, start)
    assert find_unexplained(played.store, played.stage.release) == []
    words = f"units of existing messages equal; {len(played.disk.index_files)} index files explained"
    verdict(played.stage.release, played.scenario.name, words)


@pytest.mark.scenarios("edges")
def test_a_broker_rebuilds_the_same_files_from_a_log_or_nothing(
    played: PlayedScenario, tmp_path: Path, verdict: Verdict
) -> None:
    """After a clean stop: some releases dispatch the whole log again, the others begin at its end."""
    release, store = played.stage.release, tmp_path / "store"
    shutil.copytree(played.store / "commitlog", store / "commitlog")
    assert rebuild_by_broker(release, store, played.stage.geometry) > 0
    made = read_derived_files(store)

    if _rebuilds_lost_files(release):
        assert find_differences(made, build_with_scalar_modules(played.log, played.writer)) == []
        verdict(release, "started on a log without queues and index", "builds the same files as we do")
    else:
        assert made == DerivedFiles({}, [])
        verdict(release, "started on a log without queues and index", "builds nothing")


def _rebuilds_lost_files(release: str) -> bool:
    """Return the observed behaviour: 4.3.2 and 5.0.0 to 5.2.0 do not, 4.5.2 to 4.9.8 and 5.3.3 do."""
    return (4, 5, 0) <= version_of(release) < (5, 0, 0) or version_of(release) >= (5, 3, 0)


@pytest.mark.scenarios("everyday")
def test_answers_and_body_files_equal_those_of_mqadmin(
    played: PlayedScenario, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], verdict: Verdict
) -> None:
    """If nothing is found, mqadmin prints nothing, and we print the reason. Bodies are decompressed."""
    stage = played.stage
    differing = find_different_answers(stage, capfdbinary, bodies=tmp_path)
    written = {path for asked in stage.answered_lines for path in re.findall(rf"{BODIES}(\S+)", asked.printed.stdout)}

    assert len(stage.answered_lines) > len("queries")
    assert differing == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: Path(BODIES, name).read_bytes() for name in written
    }
    verdict(stage.release, "mqadmin's answers", f"{len(stage.answered_lines)} lines equal")
