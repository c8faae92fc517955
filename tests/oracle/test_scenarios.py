"""
The stores that real brokers leave after each scenario, and their answers about our versions of the files.

Outside the matrix each test has one scenario on one release: golden stores (`tests/golden`), which the same scenarios
left on every release, prove the same bytes without a broker.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.oracle.conftest import Plays, Verdict
from tests.oracle.judge import (
    Derived,
    by_commands,
    by_scalar,
    differences,
    on_disk,
    unexplained,
    unfaithful,
    units_into_log,
)
from tests.oracle.plays import Played
from tests.oracle.releases import version_of
from tests.oracle.scenarios import SCENARIOS, UPGRADES, Scenario
from tests.oracle.sessions import rebuild_by_broker
from tests.oracle.stage import BODIES, differing_answers

_EQUAL = ("everyday", "edges", "clock", "restarted", "typed", "property-crc", "retried", "timed", "dledger")


@pytest.fixture
def played(plays: Plays, release: str, scenario: str) -> Played:
    return plays(SCENARIOS[scenario], release)


@pytest.mark.scenarios(*SCENARIOS)
def test_every_piece_of_a_log_is_a_message_that_is_encoded_unchanged(played: Played) -> None:
    assert len(played.log) > 0
    assert unfaithful(played.store) == []


@pytest.mark.scenarios(*_EQUAL)
def test_rebuilt_queues_and_index_files_equal_those_of_the_broker(played: Played, verdict: Verdict) -> None:
    """Byte for byte, by the readable modules and by the commands."""
    verdict(played.stage.release, played.scenario.name, _equal(played))


@pytest.mark.oracle
@pytest.mark.campaign
@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.name)
def test_a_store_of_two_releases_follows_the_rules_of_each(plays: Plays, verdict: Verdict, upgrade: Scenario) -> None:
    """One index file may mix two ways of counting slots, or hold tags only in its second half."""
    first, second = upgrade.name.split("-")[1:3]
    verdict(f"{first}, then {second}", "verdict", _equal(plays(upgrade, upgrade.since)))


def _equal(played: Played) -> str:
    assert differences(played.disk, by_scalar(played.log, played.writer)) == []
    made = by_commands(played.store, played.writer)
    if len(played.writer.releases) > 1:  # no option says where in the log the second one begins
        made = made._replace(index_files=played.disk.index_files)
    assert differences(played.disk, made) == []
    return f"{len(played.disk.queues)} + {len(played.disk.index_files)}"


@pytest.mark.scenarios("killed")
def test_queues_are_equal_and_index_files_explained_after_a_crash(played: Played, verdict: Verdict) -> None:
    """The broker deletes the unfinished index file and repeats the message between two files, so entries shift."""
    assert played.disk.queues == by_scalar(played.log, played.writer).queues
    assert unexplained(played.store, played.stage.release) == []
    words = f"queues equal; {len(played.disk.index_files)} index files explained"
    verdict(played.stage.release, played.scenario.name, words)


@pytest.mark.scenarios("expired")
def test_files_of_a_shortened_log_are_equal_where_messages_remain(played: Played, verdict: Verdict) -> None:
    """Queues and the first index file may name deleted messages; entries that point into the log are equal to ours."""
    start = played.log[0].physical_offset
    made = by_scalar(played.log, played.writer)

    assert start > 0
    assert units_into_log(made.queues, start) == units_into_log(played.disk.queues, start)
    assert unexplained(played.store, played.stage.release) == []
    words = f"units of existing messages equal; {len(played.disk.index_files)} index files explained"
    verdict(played.stage.release, played.scenario.name, words)


@pytest.mark.scenarios("edges")
def test_a_broker_rebuilds_the_same_files_from_a_log_or_nothing(
    played: Played, tmp_path: Path, verdict: Verdict
) -> None:
    """After a clean stop: some releases dispatch the whole log again, the others begin at its end."""
    release, store = played.stage.release, tmp_path / "store"
    shutil.copytree(played.store / "commitlog", store / "commitlog")
    assert rebuild_by_broker(release, store, played.stage.geometry) > 0
    made = on_disk(store)

    if _makes_lost_files_again(release):
        assert differences(made, by_scalar(played.log, played.writer)) == []
        verdict(release, "started on a log without queues and index", "builds the same files as we do")
    else:
        assert made == Derived({}, [])
        verdict(release, "started on a log without queues and index", "builds nothing")


def _makes_lost_files_again(release: str) -> bool:
    """Return the observed behaviour: 4.3.2 and 5.0.0 to 5.2.0 do not, 4.5.2 to 4.9.8 and 5.3.3 do."""
    return (4, 5, 0) <= version_of(release) < (5, 0, 0) or version_of(release) >= (5, 3, 0)


@pytest.mark.scenarios("everyday")
def test_answers_and_body_files_equal_those_of_mqadmin(
    played: Played, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], verdict: Verdict
) -> None:
    """If nothing is found, mqadmin prints nothing, and we print the reason. Bodies are decompressed."""
    stage = played.stage
    differing = differing_answers(stage, capfdbinary, bodies=tmp_path)
    written = {path for asked in stage.asked for path in re.findall(rf"{BODIES}(\S+)", asked.printed.stdout)}

    assert len(stage.asked) > len("queries")
    assert differing == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: Path(BODIES, name).read_bytes() for name in written
    }
    verdict(stage.release, "mqadmin's answers", f"{len(stage.asked)} lines equal")
