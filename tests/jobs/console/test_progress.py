"""What is said while something takes long."""

import time

import click
import pytest

from jobs.console import progress
from jobs.console.progress import Work, announce, shown


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test wait for seconds."""
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL", 0.01)
    monkeypatch.setattr(progress, "_LIVE_INTERVAL", 0.01)


def work(done: int = 3) -> None:
    """Take a while, with *done* of four parts done."""
    with shown(Work("reading", 4, 8 << 20), lambda: done):
        time.sleep(0.2)


def test_progress_says_how_much_is_done_how_fast_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """One plain line each time, where there is no terminal."""
    work()

    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("reading: 3/4 ranges · ") for line in lines)
    assert all(" MB/s · about " in line and line.endswith(" s left") for line in lines)
    assert lines


def test_messages_are_counted_where_somebody_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Of Spark's ranges each one that is done tells how many it had."""
    with shown(Work("reading", 4, 8 << 20), lambda: 1, lambda: 1234567):
        time.sleep(0.2)

    assert "reading: 1/4 ranges · 1,234,567 messages · " in capsys.readouterr().err.splitlines()[0]


def test_nothing_is_said_of_a_speed_that_is_not_known_yet(capsys: pytest.CaptureFixture[str]) -> None:
    """`0 MB/s` would be wrong as long as the first part is at work."""
    work(done=0)

    assert {"reading: 0/4 ranges"} == set(capsys.readouterr().err.splitlines())


def test_a_quiet_command_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduler mails what is printed."""
    ctx = click.Context(click.Command("ingest"))
    ctx.params["quiet"] = True
    with ctx:
        announce("compiling, once …")
        work()

    assert "" == capsys.readouterr().err
