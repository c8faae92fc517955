"""Progress messages of long operations."""

import re
import time
from io import StringIO
from threading import Semaphore

import click
import pytest

from jobs.console import progress
from jobs.console.progress import Work, announce_once, show_progress
from jobs.console.result import Result, Severity


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL", 0.01)
    monkeypatch.setattr(progress, "_LIVE_INTERVAL", 0.01)


MIB = Work("reading", 8 << 20)


def show(work: Work, done: int, messages: int = 0) -> None:
    """Show progress until at least one line was printed: each line is printed before the next probe."""
    probes = Semaphore(0)

    def probe() -> int:
        probes.release()
        return done

    with show_progress(work, probe, lambda: messages):
        for _ in range(4):
            assert probes.acquire(timeout=60)


@pytest.mark.parametrize(
    ("work", "done", "messages", "line"),
    [
        (MIB, 3 << 20, 0, r"reading: 3\.0 of 8\.0 MiB · [\d.,]+ MiB/s"),
        (MIB, 0, 0, r"reading: 0\.0 of 8\.0 MiB"),
        (Work("reading", 4, "parts"), 1, 1234567, r"reading: 1 of 4 parts · 1,234,567 messages"),
        (Work("reading", 2, "parts"), 0, 0, r"reading: 0 of 2 parts"),
        (Work("reading", 1, "parts"), 0, 0, r"reading …"),
    ],
)
def test_progress_shows_the_amount_and_the_rate(
    work: Work, done: int, messages: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(work, done, messages)

    lines = capsys.readouterr().err.splitlines()

    assert lines
    assert [] == [one for one in lines if not re.fullmatch(line, one)]


def test_the_remaining_time_counts_down_between_two_advances() -> None:
    line = progress.Progress(Work("reading", 8, "parts"), StringIO()).line_text
    at = [(1, 1.0), (2, 4.0), (2, 9.0), (2, 30.0), (4, 31.0), (8, 60.0)]

    shown = [line(done, 0, seconds).partition(" · ")[2] for done, seconds in at]

    assert shown == ["", "about 12 s left", "about 7 s left", "", "about 31 s left", ""]


def test_a_quiet_command_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    ctx = click.Context(click.Command("ingest"))
    ctx.params["quiet"] = True
    with ctx:
        announce_once("compiling, once …")
        with show_progress(MIB, lambda: 3 << 20):
            time.sleep(0.2)

    assert "" == capsys.readouterr().err


def test_one_time_work_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        announce_once("compiling for this test, once …")

    assert ["compiling for this test, once …"] == capsys.readouterr().err.splitlines()


def test_a_rate_does_not_count_the_time_of_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first `verify` on a machine compiled for a minute, and so reported 57 KiB/s."""
    clock = iter((0.0, 50.0))
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    progress.reset_one_time_work()
    with progress.announce_one_time_work("compiling for this rate, once …"):
        pass

    amount = Result(Severity.HEALTHY, "done", 60.0, 100 << 20).amount_text
    progress.reset_one_time_work()

    assert "done, 100.0 MiB (1 min 0 s, including 50.0 s of one-time compilation, 10.0 MiB/s)" == amount
    assert "done, 100.0 MiB (1 min 0 s, 1.7 MiB/s)" == Result(Severity.HEALTHY, "done", 60.0, 100 << 20).amount_text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_terminal_shows_new_work_immediately(terminal: StringIO) -> None:
    progress.Progress(Work("starting Spark"), terminal)

    assert "starting Spark …" in terminal.getvalue()


def test_the_line_of_a_complete_search_is_cleared_before_the_answer(
    terminal: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", terminal)
    now = 100.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    with progress.create_delayed_progress("searching the log") as show:
        show(1 << 20, 4 << 20)
        now += 1.5
        show(2 << 20, 4 << 20)

        assert "\rsearching the log" in terminal.getvalue()

        show(4 << 20, 4 << 20)

        assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_short_search_does_not_flash_in_a_terminal(terminal: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal)
    now = 100.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    with progress.create_delayed_progress("searching the log") as show:
        for done in range(4):
            show(done, 4)
            now += 0.2

    assert "" == terminal.getvalue()
