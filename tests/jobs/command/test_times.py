"""Times as people write them, in every option that takes one."""

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.console.moments import GivenTime, parse_time, time_text
from tests.golden import StoreOf
from tests.support.commands import Run

SHANGHAI = ZoneInfo("Asia/Shanghai")
STORED = 1_763_624_520_000  # 2025-11-20 07:42:00 UTC


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (str(STORED), STORED),
        ("-9223372036854775808", -(1 << 63)),
        ("2025-11-20T07:42:00Z", STORED),
        ("2025-11-20T15:42:00+08:00", STORED),
        ("2025-11-20 15:42", STORED),
        ("2025-11-20 15:42:00.250", STORED + 250),
    ],
)
def test_a_time_is_read_however_it_is_written(text: str, milliseconds: int) -> None:
    assert milliseconds == GivenTime(text).milliseconds(SHANGHAI)


def test_2h_is_two_hours_ago() -> None:
    assert STORED - 7_200_000 == parse_time("2h", STORED)


@pytest.mark.parametrize("text", ["", "yesterday", "2025-13-01", "2y", "07:42"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        GivenTime(text)


def test_the_zone_is_said_where_the_text_does_not_say_it() -> None:
    assert GivenTime("2025-11-20 15:42").explained(SHANGHAI) == (
        "'2025-11-20 15:42' is taken in Asia/Shanghai: 2025-11-20 07:42:00.000 UTC"
    )
    assert GivenTime(str(STORED)).explained(SHANGHAI) is None
    assert GivenTime("2h").explained(SHANGHAI) is None
    assert "2025-11-20 07:42:00.000 UTC" == time_text(STORED)


def test_a_query_takes_times_and_says_their_zone(golden: StoreOf, run: Run) -> None:
    place = ("--store", golden("b551-base"), "--time-zone", "Asia/Shanghai")
    key = ("query", "by-key", "-t", "T1", "-k", "k1", *place)
    line = ("query", "mqadmin", *place, "queryMsgByKey", "-t", "T1", "-k", "k1")
    every, none = run(*key), run(*key, "--until", "2026-11-20 15:42")
    some = run(*key, "--since", "2026-11-20 15:42", "--until", "2026-11-20T07:43:00Z")
    as_mqadmin = run(*line, "-b", "2026-11-20 15:42", "-e", "2026-11-20T07:43:00Z")

    assert (every.code, some.code, none.code) == (ExitCode.CLEAN, ExitCode.CLEAN, ExitCode.NOT_FOUND)
    assert every.out == some.out == as_mqadmin.out
    assert "'2026-11-20 15:42' is taken in Asia/Shanghai: 2026-11-20 07:42:00.000 UTC" in some.err
    assert run(*key, "--since", "soon").code is ExitCode.USAGE


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--out", "out"),
        ("query", "list"),
        ("query", "list", "-t", "T1", "--time-zone", "UTC"),
        ("query", "by-key", "-t", "T1", "-k", "k0"),
    ],
)
def test_a_window_that_ends_before_it_begins_is_refused(
    golden: StoreOf, words: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    words = tuple(str(tmp_path / "out") if word == "out" else word for word in words)
    outcome = run(*words, "--store", golden("b551-base"), "--since", "2026-11-21", "--until", "2026-11-20")

    assert outcome.code is ExitCode.USAGE
    assert "--until 2026-11-20 is before --since 2026-11-21: the window ends before it begins" in outcome.err
    assert not list(tmp_path.iterdir())
