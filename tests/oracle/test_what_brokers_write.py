"""Real brokers write; we decode, encode back, and make queues and index files again from the log alone."""

from collections.abc import Callable

import pytest

from tests.oracle.compatibility import of_upgrade
from tests.oracle.judge import by_compiled, by_scalar, differences, explain_index, unfaithful, units_into_log
from tests.oracle.on_scenarios import on_scenarios
from tests.oracle.plays import Plays
from tests.oracle.scenarios import SCENARIOS, UPGRADES, Scenario

Verdict = Callable[[str, str, str], None]

_EQUAL = (
    "everyday",
    "edges",
    "clock",
    "restarted",
    "typed",
    "property-crc",
    "retried",
    "timed",
    "dledger",
)


@on_scenarios(*SCENARIOS)
def test_every_piece_of_a_log_is_a_message_that_comes_out_again_as_it_went_in(
    plays: Plays, release: str, scenario: str
) -> None:
    """Nothing that a broker wrote is damage, and `encode` is the inverse of `decode`."""
    played = plays.of(SCENARIOS[scenario], release)

    assert len(played.log) > 0
    assert unfaithful(played.store) == []


@on_scenarios(*_EQUAL)
def test_queues_and_index_files_made_from_the_log_are_the_brokers_own(
    plays: Plays, verdict: Verdict, release: str, scenario: str
) -> None:
    played = plays.of(SCENARIOS[scenario], release)

    assert differences(played.disk, by_scalar(played.log, played.writer)) == []
    assert differences(played.disk, by_compiled(played.store, played.writer)) == []
    verdict(release, scenario, f"{len(played.disk.queues)} + {len(played.disk.index_files)}")


@pytest.mark.matrix
@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.name)
def test_a_store_of_two_releases_follows_the_rules_of_each_from_its_first_message_on(
    plays: Plays, verdict: Verdict, upgrade: Scenario
) -> None:
    """One index file may mix two ways of counting slots, or hold tags only in its second half."""
    played = plays.of(upgrade, upgrade.since)

    assert differences(played.disk, by_scalar(played.log, played.writer)) == []
    assert differences(played.disk, by_compiled(played.store, played.writer)) == []
    verdict(*of_upgrade(*upgrade.name.split("-")[1:3]), f"{len(played.disk.queues)} + {len(played.disk.index_files)}")


@on_scenarios("killed")
def test_after_a_crash_queues_are_equal_and_every_index_file_follows_from_the_one_before(
    plays: Plays, verdict: Verdict, release: str, scenario: str
) -> None:
    """The broker throws the unfinished index file away and puts the straddling message again: later ones shift."""
    played = plays.of(SCENARIOS[scenario], release)
    verdicts = explain_index(played.store, played.log, played.writer)

    assert played.disk.queues == by_scalar(played.log, played.writer).queues
    assert set(verdicts) <= {"whole", "continued", "repeated", "again"}
    verdict(release, scenario, "queues equal; index: " + _summed(verdicts))


@on_scenarios("expired")
def test_of_a_shortened_log_all_that_it_still_proves_is_equal(
    plays: Plays, verdict: Verdict, release: str, scenario: str
) -> None:
    """Queues and the first index file may name deleted messages; whatever points into the log is what we make."""
    played = plays.of(SCENARIOS[scenario], release)
    start = played.log[0].physical_offset
    made = by_scalar(played.log, played.writer)
    verdicts = explain_index(played.store, played.log, played.writer)

    assert start > 0
    assert units_into_log(made.queues, start) == units_into_log(played.disk.queues, start)
    assert "unexplained" not in verdicts
    verdict(release, scenario, "units into the log equal; index: " + _summed(verdicts))


def _summed(verdicts: list[str]) -> str:
    return ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
