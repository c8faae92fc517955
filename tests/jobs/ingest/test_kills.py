"""
Killed runs neither lose nor duplicate messages: the lake contains the store's history.

The environment variables `KILLS` and `LONGEST_S` limit the number of random kills and their duration; `SPARK_KILLS` is
the number of kills of whole commands, with their JVM and Python workers.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import start_campaigns
from tests.support.killing import FAULTS, VICTIMS

KILLS = int(os.environ.get("KILLS", "100"))

Campaign = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    with start_campaigns("tests.support.killing") as campaign:
        yield campaign


def is_complete(result: dict[str, Any]) -> bool:
    """Return whether the lake contains every record exactly once, and nothing else."""
    return not any(result[fault] for fault in FAULTS) and result["rows"] + result["in_gaps"] == result["history"]


STRIDES = {"new": 53, "growing": 59, "rewritten": 61, "busy": 67, "vacuumed": 61}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("scenario", "stride"),
    [*STRIDES.items(), *(pytest.param(one, 1, marks=pytest.mark.campaign) for one in (*STRIDES, "vacuumed-queues"))],
)
def test_the_next_run_completes_a_run_killed_after_any_write(
    scenario: str, stride: int, tmp_path: Path, campaign: Campaign
) -> None:
    result = campaign(scenario, tmp_path, stride)

    assert result["reached"] > (30 if stride == 1 else 0)
    assert result["bad"] == []


@pytest.mark.parametrize(
    "stride", [pytest.param(1, marks=pytest.mark.campaign), pytest.param(31, marks=pytest.mark.slow)]
)
def test_a_suspended_run_blocks_other_runs_and_succeeds_when_it_is_resumed(
    stride: int, tmp_path: Path, campaign: Campaign
) -> None:
    result = campaign("stopped", tmp_path, stride)

    assert result["reached"] > 0
    assert set(result["others"]) <= {"0", "6"}
    assert set(result["codes"]) <= {"0", "6"}
    assert result["bad"] == []


@pytest.mark.slow
def test_crashes_of_the_broker_and_killed_runs_leave_the_current_log_in_the_lake(
    tmp_path: Path, campaign: Campaign
) -> None:
    assert is_complete(campaign("crashes", tmp_path, 6))


@pytest.mark.parametrize(
    "scenario",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("retention", "followed-optimized")),
        *(
            pytest.param(name, marks=pytest.mark.campaign)
            for name in ("hasty", "crashes", "followed", "followed-crashes")
        ),
    ],
)
def test_runs_killed_at_random_moments_next_to_a_live_broker_lose_nothing(
    scenario: str, tmp_path: Path, campaign: Campaign
) -> None:
    result = campaign(scenario, tmp_path, KILLS)

    assert is_complete(result)
    # After a crash, units of truncated records contradict the log. A follower ends after three of them in a row.
    assert set(result["codes"]) <= {"-9", "0", "3"} | ({"1", "4"} if scenario.endswith("crashes") else set())
    if not scenario.endswith("crashes"):
        assert result["blamed"] == 0

    assert set(result.get("optimized", {})) <= {"-9", "0"}


@pytest.mark.slow
def test_many_stores_are_ingested_into_one_lake_at_the_same_time(tmp_path: Path, campaign: Campaign) -> None:
    """Each store by two runs, at most one of which ingests it."""
    result = campaign("many", tmp_path, 4)

    assert set(result["codes"]) <= {0, 6}
    assert result["equal"]
    assert result["leftovers"] == []


COMMANDS_KILLED = int(os.environ.get("SPARK_KILLS", "100"))


def kill_commands(campaign: Campaign, directory: Path, kills: int, scenario: str) -> dict[str, Any]:
    """Kill whole commands, and compare the lake with all records that the broker has written."""
    result, directory = campaign(scenario, directory, kills), directory / scenario
    # 3: a gap or damage. 4: after a crash, units of truncated records contradict the log. 1: the JVM was killed.
    fine = {0, 3, *([4] if "crashes" in scenario else [])}
    codes = {int(code) for code in result["codes"]}

    assert is_complete(result), result
    assert set(result["ends"]) <= fine, (directory / "errors.txt").read_text()[-4000:]
    assert codes <= fine | ({1} if "followed" in scenario else set()), (directory / "errors.txt").read_text()[-4000:]
    assert set(result.get("optimized", {})) <= {"-9", "0"}
    return result


@pytest.mark.slow
@pytest.mark.timeout(1800)  # for a busy machine
@pytest.mark.parametrize(("scenario", "kills"), [("commands", 2), ("commands-followed", 1)])
def test_commands_that_are_killed_lose_nothing(tmp_path: Path, campaign: Campaign, scenario: str, kills: int) -> None:
    assert kill_commands(campaign, tmp_path, kills, scenario)["kills"] == kills


@pytest.mark.campaign
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("scenario", ["commands", "commands-followed", "commands-followed-crashes"])
def test_a_hundred_commands_that_are_killed_lose_nothing(tmp_path: Path, campaign: Campaign, scenario: str) -> None:
    result = kill_commands(campaign, tmp_path, COMMANDS_KILLED, scenario)

    assert set(result["victims"]) >= (set(VICTIMS) if "followed" in scenario else {"everything", "workers"})
