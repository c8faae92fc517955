"""What is said while something takes long."""

import time
from io import StringIO
from threading import Semaphore

import click
import pytest

from jobs.console import progress
from jobs.console.progress import Work, announce_once, shown


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL", 0.01)
    monkeypatch.setattr(progress, "_LIVE_INTERVAL", 0.01)


def work(done: int = 3) -> None:
    """Go on until a line was shown, with *done* of eight MiB done."""
    looked = Semaphore(0)

    def so_far() -> int:
        looked.release()
        return done << 20

    with shown(Work("reading", 8 << 20), so_far):
        await_lines(looked)


def await_lines(looked: Semaphore) -> None:
    """Wait until somebody has looked several times: what the looks but the last one saw is shown by then."""
    for _ in range(4):
        assert looked.acquire(timeout=60)


def test_progress_says_how_much_is_done_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    work()

    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("reading: 3.0 of 8.0 MiB · ") for line in lines)
    assert all(line.endswith(" MiB/s") for line in lines)
    assert lines


def test_the_remaining_time_counts_down_between_two_advances() -> None:
    line = progress.Progress(Work("reading", 8, "parts"), StringIO()).line
    at = [(1, 1.0), (2, 4.0), (2, 9.0), (2, 30.0), (4, 31.0), (8, 60.0)]

    shown = [line(done, 0, seconds).partition(" · ")[2] for done, seconds in at]
    assert shown == ["", "about 12 s left", "about 7 s left", "", "about 31 s left", ""]


def test_messages_are_counted_where_somebody_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    looked = Semaphore(0)

    def so_far() -> int:
        looked.release()
        return 1

    with shown(Work("reading", 4, "parts"), so_far, lambda: 1234567):
        await_lines(looked)

    assert "reading: 1 of 4 parts · 1,234,567 messages" in capsys.readouterr().err.splitlines()


def test_nothing_is_said_of_a_speed_that_is_not_known_yet(capsys: pytest.CaptureFixture[str]) -> None:
    work(done=0)

    assert {"reading: 0.0 of 8.0 MiB"} == set(capsys.readouterr().err.splitlines())


def test_a_quiet_command_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    ctx = click.Context(click.Command("ingest"))
    ctx.params["quiet"] = True
    with ctx:
        announce_once("compiling, once …")
        with shown(Work("reading", 8 << 20), lambda: 3 << 20):
            time.sleep(0.2)

    assert "" == capsys.readouterr().err


def test_what_is_made_once_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        announce_once("compiling for this test, once …")

    assert ["compiling for this test, once …"] == capsys.readouterr().err.splitlines()


def test_a_terminal_sees_at_once_what_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    progress.Progress(Work("starting Spark"), terminal)

    assert "starting Spark …" in terminal.getvalue()
