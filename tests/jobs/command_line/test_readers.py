"""
Commands whose output is their result, with each kind of reader of their standard output.

A reader may leave, be slow, take nothing, or be a file on a full or broken disk. Each case runs a new process.
"""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import ROOT, Outcome, Run

TIMEOUT_S = 240.0  # long enough for a busy machine
_PIPE_SIZE = 4096  # bytes: the smallest pipe of Linux, so that small outputs do not fit into it
_ENDLESS = "SELECT value, repeat('x', 100) FROM generate_series(1, 1000000000000)"
_LOG = "commitlog/00000000000000000000"
COMMANDS = {
    "dump": f"dump {{store}}/{_LOG}",
    "fields": f"dump --fields {{store}}/{_LOG}",
    "several_files": f"dump --json {{store}}/{_LOG} {{store}}/{_LOG}",
    "list": "query list --store {store} -m 100",
    "list_array": "query list --store {store} -m 100 --output json",
    "list_lake": "query list --lake {lake} -m 100 --output ndjson",
    "words": "query list --lake {lake} --body-contains body -m 100 --output csv",
    "key": "query by-key --store {store} -t T1 -k k1 -m 0 --output json",
    "pull": "query mqadmin --store {store} printMsg -t T1 -d true",
    "pull_lake": "query mqadmin --lake {lake} --json printMsg -t T1",
    "story": "query story --store {store} -t T1 -k k1 --json",
    "sql_table": "query sql --lake {lake} --output table SELECT*FROM~messages",
    "sql_array": "query sql --lake {lake} --output json SELECT*FROM~messages",
    "sql_lines": "query sql --lake {lake} --output ndjson SELECT*FROM~messages",
    "sql_csv": "query sql --lake {lake} --output csv SELECT*FROM~messages",
    "export": "export --store {store} --out -",
    "export_csv": "export --lake {lake} --format csv --out -",
}
_ARRAYS = {"list_array", "key", "sql_array"}


@pytest.fixture
def words(golden: StoreOf, newer_lake: Path) -> Callable[[str], list[str]]:
    def of_command(name: str) -> list[str]:
        line = COMMANDS[name].format(store=golden("b551-base"), lake=newer_lake)
        return [word.replace("~", " ") for word in line.split()]

    return of_command


@contextmanager
def _started(words: list[str], output: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "jobs.main", *words]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _small_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    return reading, writing


def _read_until(reading: int, size: int | None) -> bytes:
    """Return the first *size* bytes, or fewer if there are not as many; None: everything."""
    data = b""
    while size is None or len(data) < size:
        piece = os.read(reading, 512 if size is None else min(512, size - len(data)))
        if not piece:
            return data
        data += piece
    return data


def _run_with_reader(words: list[str], size: int | None) -> tuple[Outcome, bytes]:
    """Run a command whose reader leaves after *size* bytes; None: a slow reader, which takes everything."""
    reading, writing = _small_pipe()
    with _started(words, writing) as process:
        os.close(writing)
        try:
            got = _read_until(reading, size)
        finally:
            os.close(reading)
        _, err = process.communicate(timeout=TIMEOUT_S)
    return Outcome(process.returncode, "", err), got


def _sizes_at_which_readers_leave() -> list[int]:
    random = Random("readers")
    return [0, 1, *(random.randrange(2, 20_000) for _ in range(4))]


@pytest.mark.sample(8)
@pytest.mark.parametrize("size", _sizes_at_which_readers_leave())
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_when_its_reader_has_left(
    name: str, size: int, words: Callable[[str], list[str]], run: Run
) -> None:
    """`export --out - | head -1` read everything, and said that it was done."""
    whole = run(*words(name))
    complete = whole.out.encode()
    outcome, got = _run_with_reader(words(name), size)

    assert complete[:size] == got
    assert "Traceback" not in outcome.err
    # The rest may fit into the pipe, and be written before the reader leaves.
    may_be_complete = len(complete) <= size + _PIPE_SIZE

    assert outcome.code in {ExitCode.OUTPUT_CLOSED, *([whole.code] if may_be_complete else [])}
    if outcome.code == ExitCode.OUTPUT_CLOSED:
        assert set(outcome.err.splitlines()) <= set(whole.err.splitlines())
        assert "done" not in outcome.err


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_slow_reader_gets_everything(name: str, words: Callable[[str], list[str]], run: Run) -> None:
    whole = run(*words(name))
    outcome, got = _run_with_reader(words(name), None)

    assert whole.code == outcome.code
    assert whole.out.encode() == got


@pytest.mark.sample(4)
@pytest.mark.parametrize("stream", ["full", "broken"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_failing_output_is_an_error(name: str, stream: str, words: Callable[[str], list[str]]) -> None:
    if stream == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        terminal, output = pty.openpty()
        os.close(terminal)  # every write fails with EIO
    try:
        with _started(words(name), output) as process:
            _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        os.close(output)

    reason = "No space left on device" if stream == "full" else "Input/output error"

    assert ExitCode.FAILED == process.returncode
    assert f"rmq-lake: standard output: {reason}\n" == err[err.index("rmq-lake: standard") :]
    assert "Traceback" not in err


@pytest.mark.sample(3)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_ends_a_command_whose_reader_takes_nothing(
    name: str, sent: signal.Signals, words: Callable[[str], list[str]]
) -> None:
    """It waited until the reader took the rest."""
    reading, writing = _small_pipe()
    with _started(words(name), writing) as process:
        os.close(writing)

        assert select.select([reading], [], [], TIMEOUT_S)[0]
        process.send_signal(sent)
        _, err = process.communicate(timeout=TIMEOUT_S)
    got = _read_until(reading, None)
    os.close(reading)

    assert ExitCode.INTERRUPTED == process.returncode
    assert "Traceback" not in err
    if name in _ARRAYS:
        with pytest.raises(json.JSONDecodeError):
            json.loads(got)


@pytest.mark.parametrize("form", ["table", "csv", "json", "ndjson"])
def test_an_endless_statement_ends_with_its_reader(form: str, newer_lake: Path) -> None:
    words = ["query", "sql", "--lake", str(newer_lake), _ENDLESS, "--output", form]
    outcome, got = _run_with_reader(words, 2000)

    assert ExitCode.OUTPUT_CLOSED == outcome.code
    assert "" == outcome.err
    assert 2000 == len(got)


def test_a_command_ends_with_its_reader_before_it_has_printed_anything(newer_lake: Path) -> None:
    """It has nothing to write, and so no error of writing tells that the reader has left."""
    silent = "SELECT value FROM generate_series(1, 1000000000000) WHERE value < 0"
    outcome, _ = _run_with_reader(["query", "sql", "--lake", str(newer_lake), silent, "--output", "csv"], 0)

    assert ExitCode.OUTPUT_CLOSED == outcome.code
    assert "" == outcome.err


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_time_limit_of_a_statement_holds_while_it_prints(form: str, newer_lake: Path) -> None:
    """The engine was never slower than the printer, so that the limit was never looked at."""
    words = ["query", "sql", "--lake", str(newer_lake), _ENDLESS, "--output", form, "--timeout", "1.5"]
    outcome, got = _run_with_reader(words, None)

    limit = "rmq-lake: stopped after 1.5 s: not all rows were printed; pass a larger --timeout\n"

    assert ExitCode.FAILED == outcome.code
    assert limit == outcome.err
    if form == "json":
        with pytest.raises(json.JSONDecodeError):
            json.loads(got)


def test_the_time_limit_of_a_statement_holds_while_nobody_reads(newer_lake: Path) -> None:
    words = ["query", "sql", "--lake", str(newer_lake), _ENDLESS, "--output", "ndjson", "--timeout", "1.5"]
    reading, writing = _small_pipe()
    with _started(words, writing) as process:
        os.close(writing)
        _, err = process.communicate(timeout=TIMEOUT_S)
    os.close(reading)

    assert ExitCode.FAILED == process.returncode
    assert "rmq-lake: stopped after 1.5 s" == err[:29]


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "ndjson", "table"])
def test_files_and_pipes_get_all_rows_of_a_statement(form: str, newer_lake: Path, run: Run, tmp_path: Path) -> None:
    """By default they got the first 1,000, and with --quiet nothing said so."""
    statement = "SELECT value FROM generate_series(1, 2500)"
    out = tmp_path / "rows.parquet"
    to_file = ("--out", out) if form == "parquet" else ()
    outcome = run("query", "sql", "--lake", newer_lake, statement, "--output", form, *to_file, "--quiet")

    assert ExitCode.CLEAN == outcome.code
    assert "" == outcome.err
    if form == "parquet":
        assert 2500 == pq.read_metadata(out).num_rows
    elif form == "json":
        assert 2500 == len(outcome.document)
    else:
        assert 2500 + (form != "ndjson") == len(outcome.out.splitlines())


def test_a_statement_that_fails_half_way_does_not_close_its_array(newer_lake: Path, run: Run) -> None:
    """The engine had returned some rows, and the array with them looked complete."""
    statement = "SELECT value, 1 / (90000 - value) AS failing FROM generate_series(1, 100000)"
    outcome = run("query", "sql", "--lake", newer_lake, statement, "--output", "json")

    assert ExitCode.FAILED == outcome.code
    assert len(outcome.out) > 1000
    with pytest.raises(json.JSONDecodeError):
        json.loads(outcome.out)
