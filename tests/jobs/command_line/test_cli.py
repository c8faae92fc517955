"""The command line: help, typos, and the result of each kind of failure."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import pytest
from py4j.protocol import Py4JError

from jobs.command_line import COMMAND_TABLE, CommandEntry, cli
from jobs.console import process
from jobs.console.log import log_as_json
from jobs.console.result import ExitCode
from jobs.launch.engine import SetupError
from jobs.launch.session import copy_jvm_output, worker_python_advice
from rmq_formats.errors import CorruptData
from tests.support.commands import ROOT, Run, start_campaigns
from tests.support.query_stores import Sent, stored, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Probe = Callable[[Callable[[], ExitCode | None]], None]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Return a function that defines the command `probe`, which calls a function of the test."""

    def install(body: Callable[[], ExitCode | None]) -> None:
        module = ModuleType("probe_verb")
        module.command = click.command("probe")(body)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_verb", module)
        monkeypatch.setitem(
            COMMAND_TABLE, "probe", CommandEntry("probe", "probe_verb:command", uses_spark=False, help="Probe.")
        )

    return install


def raise_error(error: BaseException) -> Callable[[], ExitCode | None]:
    def body() -> ExitCode | None:
        raise error

    return body


_ON_A_WORKER = (
    "An error occurred while calling o7.collect.\n"
    ": org.apache.spark.SparkException: Job aborted: org.apache.spark.api.python.PythonException: "
    "Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in main\n'
    "    process()\n"
    "OSError: [Errno 28] No space left on device: '/lake/messages/part-0.parquet'\n\n"
    "\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)\n"
)
_FAILED_TASK = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.5 executor 0): "
)
_NO_PACKAGE = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "/opt/spark/python/pyspark/worker.py", line 1, in main\n'
    "ModuleNotFoundError: No module named 'numpy'\n"
)
_NO_PYTHON = 'java.io.IOException: Cannot run program "py3": error=2, No such file or directory\n'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CorruptData("too small", 4096, "/store/commitlog/0"), "/store/commitlog/0: too small at offset 4096"),
        (SetupError("Java 17 or newer is needed"), "Java 17 or newer is needed"),
        (PermissionError(13, "Permission denied", "/store/commitlog"), "/store/commitlog: Permission denied"),
        (Py4JError(_ON_A_WORKER), "/lake/messages/part-0.parquet: No space left on device"),
        (
            Py4JError(f"{_FAILED_TASK}{_NO_PACKAGE}"),
            f"worker 10.0.0.5: its Python lacks a package (No module named 'numpy'). {worker_python_advice()}",
        ),
        (
            Py4JError(f"{_FAILED_TASK}{_NO_PYTHON}"),
            "worker 10.0.0.5: the Python interpreter py3 (from spark.pyspark.python, or the default) does not exist",
        ),
        (
            Py4JError("An error occurred while calling o38.count.\n: java.io.IOException: no such bucket\n\tat a"),
            "java.io.IOException: no such bucket",
        ),
        # py4j is loaded here, as by a command that uses Spark: this must not be reported as a dead JVM.
        (
            ConnectionRefusedError(111, "Connection refused", "hdfs://node/store"),
            "hdfs://node/store: Connection refused",
        ),
        (MemoryError("Unable to allocate 2 TiB"), "out of memory: Unable to allocate 2 TiB"),
    ],
    ids=["damage", "setup", "file", "worker", "no package", "no Python", "JVM", "refused", "memory"],
)
def test_an_error_is_printed_in_one_line_that_begins_with_the_place(
    probe: Probe, capsys: pytest.CaptureFixture[str], error: BaseException, message: str
) -> None:
    probe(raise_error(error))

    assert ExitCode.FAILED == cli.main(["probe"])
    assert ("", f"rmq-lake: {message}\n") == capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("damage", "/store/commitlog/00000000000000000000: total_size 7 is too small at offset 4096"),
        ("bug", "KeyError: 'bug' (--traceback shows where)"),
        ("death", "a worker process died"),
    ],
)
def test_a_failed_spark_task_is_reported_in_one_line(
    probe: Probe, spark: "SparkSession", capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    def task(_: int) -> None:
        if name == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "bug":
            raise KeyError(name)
        try:
            int("")
        except ValueError as cause:
            raise CorruptData("total_size 7 is too small", 4096, "/store/commitlog/00000000000000000000") from cause

    def body() -> None:
        spark.sparkContext.parallelize([0], 1).foreach(task)

    probe(body)

    assert ExitCode.FAILED == cli.main(["probe"])
    (line,) = capfd.readouterr().err.splitlines()

    assert line.startswith(f"rmq-lake: {message}")


def test_an_interrupted_command_reports_which_work_will_be_repeated(
    probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> ExitCode | None:
        process.set_resumption_text("Offsets 0 to 57,539 are read again.")
        raise KeyboardInterrupt

    probe(body)

    assert ExitCode.INTERRUPTED == cli.main(["probe"])
    probe(raise_error(KeyboardInterrupt()))

    assert ExitCode.INTERRUPTED == cli.main(["probe"])

    first, second = filter(None, capsys.readouterr().err.splitlines())

    assert "rmq-lake: interrupted. Offsets 0 to 57,539 are read again." == first
    assert "Offsets" not in second


@pytest.mark.parametrize("was_there", [True, False])
def test_an_existing_session_is_not_stopped_by_a_command(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, *, was_there: bool
) -> None:
    from jobs.launch import session

    closed = []
    started = iter([was_there, True])
    monkeypatch.setattr(cli, "has_session", lambda: next(started))
    monkeypatch.setattr(session, "close_cluster_session", lambda: closed.append(True))
    probe(lambda: None)

    assert ExitCode.CLEAN == cli.main(["probe"])
    assert ([] if was_there else [True]) == closed


def test_options_in_the_environment_start_the_driver_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("jobs.launch.spark.submit_to_cluster", lambda _, own, **__: started.append([*own]))
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "--deploy-mode cluster")
    cli.main(["verify", "store", "--show-config"])

    assert [["verify", "store", "--show-config"]] == started


def test_the_death_of_the_jvm_is_reported(
    probe: Probe, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JNetworkError

    with subprocess.Popen(["sleep", "600"]) as jvm:
        jvm.kill()
        monkeypatch.setattr("jobs.launch.engine.JVMS", [(jvm, True)])
        probe(raise_error(Py4JNetworkError("Answer from Java side is empty")))

        assert ExitCode.FAILED == cli.main(["probe"])

    assert capfd.readouterr().err.startswith("rmq-lake: Spark's JVM has died (killed by SIGKILL; ")


def test_a_traceback_is_printed_on_request_and_a_bug_is_raised(
    probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(raise_error(CorruptData("bad", 0, "file")))
    cli.main(["--traceback", "probe"])

    assert "Traceback" in capsys.readouterr().err

    probe(raise_error(KeyError("bug")))
    with pytest.raises(KeyError):
        cli.main(["probe"])


def test_help_lists_every_command_without_loading_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert ExitCode.CLEAN == cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())

    assert ExitCode.USAGE == cli.main([])
    assert text == " ".join(capsys.readouterr().err.split())
    assert [] == [command.name for command in COMMAND_TABLE.values() if f" {command.name} {command.help}" not in text]


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMAND_TABLE)])
def test_every_help_text_has_an_example_and_fits_into_a_terminal(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.command_line.cli.line_width_limit", lambda _stream: 80)
    monkeypatch.setenv("COLUMNS", "80")

    assert ExitCode.CLEAN == cli.main([*command, "--help"])

    text = capsys.readouterr().out

    assert f"  {' '.join(('rmq-lake', *command))} " in text
    assert "\\b" not in text
    assert [] == [line for line in text.splitlines() if len(line) > 80 and "|" not in line]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--name", "ingest", "inspect", "nowhere"], "inspect"),
        (["--name=ingest", "inspect", "nowhere"], "inspect"),
        (["inspect", "ingest"], "inspect"),
        (["--name", "ingest", "inspct", "nowhere"], None),
    ],
)
def test_log_lines_name_the_command_and_not_the_value_of_an_option(
    words: list[str], command: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--name ingest inspect STORE` was logged as `ingest`, and an interrupt gave the advice for it."""
    cli.main(["--log-json", *words])
    cli.main([*words[:-2], "--log-json", *words[-2:]])

    assert {command} == {event["command"] for event in events(capsys.readouterr().err)}


@pytest.mark.parametrize(
    ("variable", "words", "meant"),
    [
        ("RMQ_LAKE_INGST_LAKE", ["ingest", "--show-config"],
         "no such command or setting; did you mean RMQ_LAKE_INGEST_LAKE?"),
        ("RMQ_LAKE_INGST_LAKE", ["inspect", "."], "no such command or setting; did you mean RMQ_LAKE_INGEST_LAKE?"),
        ("RMQ_LAKE_EXCLUDE_TOPICS", ["ingest", "--show-config"],
         "no such command or setting; did you mean RMQ_LAKE_INGEST_EXCLUDE_TOPICS?"),
        ("RMQ_LAKE_SPARK_OPTION", ["query", "decode-id", "x"],
         "no such command or setting; did you mean RMQ_LAKE_SPARK_OPTIONS?"),
        ("RMQ_LAKE_INGEST_LAK", ["ingest", "--show-config"], "no such option; did you mean RMQ_LAKE_INGEST_LAKE?"),
    ],
)  # fmt: skip
def test_a_misspelled_variable_is_an_error(
    variable: str, words: list[str], meant: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """A misspelled command was ignored, although the page said that this cannot happen."""
    monkeypatch.setenv(variable, "x")
    outcome = run(*words)

    assert ExitCode.USAGE == outcome.code
    assert f"rmq-lake: {variable}: {meant}\n" == outcome.err


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RMQ_LAKE_UI_SERVICE_HOST", "10.0.0.1"), ("RMQ_LAKE_PORT", "tcp://10.0.0.1:80"), ("RMQ_LAKE_CACHE", "/tmp/c")],
)
def test_variables_of_kubernetes_and_of_the_launcher_are_accepted(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv(variable, value)

    assert ExitCode.CLEAN == run("ingest", "--show-config").code


def events(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_log_lines_are_printed_as_json_on_request(
    probe: Probe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> ExitCode:
        click.echo("half a ", nl=False, err=True)
        click.echo("line\n\nanother", err=True)
        click.echo("data")
        return ExitCode.DAMAGE

    probe(body)

    assert ExitCode.DAMAGE == cli.main(["--log-json", "probe"])

    output = capsys.readouterr()
    first, second, last = events(output.err)

    assert "data\n" == output.out
    assert "half a line" == first["message"]
    assert "another" == second["message"]
    assert "ended" == last["message"]
    assert {"time", "level", "command", "message"} == set(first)
    assert "info" == first["level"]
    assert "probe" == first["command"]
    assert 3 == last["exit_code"]
    assert isinstance(last["seconds"], float)

    monkeypatch.setenv("RMQ_LAKE_LOG_JSON", "1")
    probe(raise_error(KeyboardInterrupt()))
    cli.main(["probe"])
    failure, last = events(capsys.readouterr().err)

    assert "error" == failure["level"]
    assert str(failure["message"]).startswith("rmq-lake: interrupted. ")
    assert 130 == last["exit_code"]


def test_output_of_the_jvm_is_logged_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"12:00:00 ERROR Something: \xff\n")
    os.close(writing)

    with log_as_json("ingest"):
        copy_jvm_output(reading)

    (event,) = events(capsys.readouterr().err)

    assert "jvm" == event["source"]
    assert "12:00:00 ERROR Something: \ufffd" == event["message"]


def test_an_interrupt_during_the_imports_prints_no_traceback() -> None:
    code = """if True:
        import builtins, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
        from jobs import main
        true_import = builtins.__import__
        def import_once_interrupted(name, *args, **kwargs):
            if name == "click":
                signal.raise_signal(signal.SIGINT)
            return true_import(name, *args, **kwargs)
        builtins.__import__ = import_once_interrupted
        main.main()
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert -signal.SIGINT == done.returncode
    assert "" == done.stderr


def test_an_interrupt_that_another_error_wraps_or_follows_is_one(probe: Probe) -> None:
    def wrap() -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    def clean_up() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JError("Answer from Java side is empty")

    for body in (wrap, clean_up):
        probe(body)

        assert ExitCode.INTERRUPTED == cli.main(["probe"])


_RELEASE_SECONDS = 60.0  # ends the system call if the interrupt does not


def raise_in_finalizer(number: signal.Signals) -> None:
    """Raise a signal in a finalizer, such as one of llvmlite while numba starts: Python drops the interrupt."""

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(number)

    reading, writing = os.pipe()
    release = threading.Timer(_RELEASE_SECONDS, os.write, (writing, b"released"))
    release.start()
    try:
        Finalized()
        os.read(reading, 1)  # a system call that only a signal ends, like a write to a reader that takes nothing
    finally:
        was_released = release.finished.is_set()
        release.cancel()
        release.join()
        os.close(reading)
        os.close(writing)
        assert not was_released, "the command waited until the system call returned"


@pytest.fixture(autouse=True)
def _restored_signal_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("raise_signal", [signal.raise_signal, raise_in_finalizer])
@pytest.mark.parametrize(
    ("number", "of_interrupts"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_IGN),
        (signal.SIGHUP, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_IGN),
    ],
)
def test_ctrl_c_sigterm_and_a_lost_terminal_end_a_command(
    raise_signal: Callable[[signal.Signals], None], number: signal.Signals, of_interrupts: signal.Handlers, probe: Probe
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    signal.signal(signal.SIGINT, of_interrupts)
    before = signal.getsignal(number)
    probe(lambda: raise_signal(number))

    assert ExitCode.INTERRUPTED == cli.main(["probe"])
    assert before == signal.getsignal(number)


def test_a_command_under_nohup_survives_the_loss_of_its_terminal(probe: Probe) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    probe(lambda: signal.raise_signal(signal.SIGHUP))

    assert ExitCode.CLEAN == cli.main(["probe"])


_FULL = "rmq-lake: standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("inspect {store} >/dev/full", ExitCode.FAILED, _FULL),
        ("query list --json --store {store} >/dev/full", ExitCode.FAILED, _FULL),
        ("export --store {store} --out - --quiet >/dev/full", ExitCode.FAILED, _FULL),  # --quiet: no progress lines
        ("--version >/dev/full", ExitCode.FAILED, _FULL),
        ("inspect {store} --no-such-option >/dev/full", ExitCode.USAGE, None),
        ("dump gone 2>/dev/full", ExitCode.FAILED, ""),
        ("inspect {store} >&-", ExitCode.CLEAN, ""),  # like a closed pipe
        ("inspect {store} <&- >&- 2>&-", ExitCode.CLEAN, ""),
        ("query list --json --store {store} >&-", ExitCode.OUTPUT_CLOSED, ""),
        ("export --store {store} --out - --quiet >&-", ExitCode.OUTPUT_CLOSED, ""),
        ("inspect {store} 2>&-", ExitCode.CLEAN, ""),
    ],
)
def test_a_full_or_closed_standard_stream_gives_one_line_and_a_documented_exit_code(
    line: str, code: ExitCode, printed: str | None, tmp_path: Path
) -> None:
    """The interpreter tried to write the rest again, and ended with exit code 120 and a traceback."""
    store = write_store(tmp_path / "store", stored([Sent(body=b"x")] * 200))  # more than the buffers can hold
    words = f'"$0" -m jobs.main {line.format(store=store)}'
    done = subprocess.run(["sh", "-c", words, sys.executable], capture_output=True, text=True, check=False)

    assert code == done.returncode
    assert printed in {done.stderr, None}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the address space of other systems is not limited")
def test_ingest_ends_in_a_limited_address_space(tmp_path: Path) -> None:
    """It aborted or hung, because the allocators reserved more than the limit, which the rows do not need."""
    store = write_store(tmp_path / "store", stored([Sent(body=b"x")] * 200))
    words = f'ulimit -v 1500000; exec "$0" -m jobs.main ingest {store} --lake {tmp_path / "lake"} --json'

    done = subprocess.run(["sh", "-c", words, sys.executable], capture_output=True, text=True, check=False)

    assert ExitCode.CLEAN == done.returncode, done.stderr
    assert 200 == json.loads(done.stdout)["messages"], done.stderr


def test_a_character_that_a_terminal_lacks_is_escaped() -> None:
    """In ISO 8859-1, `--help` and `inspect` ended with a traceback."""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-m", "jobs.main", "--help"], env=environment, capture_output=True, check=True
    )

    assert rb"COMMAND [ARGS]\u2026" in done.stdout


SEEDS = int(os.environ.get("SEEDS", "3000"))
FIRST = int(os.environ.get("FIRST", "1000"))


@pytest.fixture(scope="module")
def campaign() -> Iterator[Callable[..., dict[str, Any]]]:
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that makes calls fail needs a C compiler, and Linux")
    with start_campaigns("tests.support.failing_commands") as campaign:
        yield campaign


@pytest.mark.parametrize(
    ("first", "count", "command", "least"),
    [
        pytest.param(57, 1, "optimize", 0, marks=pytest.mark.slow),  # linking the commit fails
        pytest.param(55, 1, "optimize {lake} --", 0, marks=pytest.mark.slow),  # listing a table fails
        pytest.param(0, 12, "verify {bad} --findings-lake", 0, marks=pytest.mark.slow),
        pytest.param(1346, 1, "", 0, marks=pytest.mark.slow),  # reading the log of a new table fails
        pytest.param(94, 1, "restore", 0, marks=pytest.mark.slow),  # deleting a scratch file fails
        pytest.param(3792, 1, "", 0, marks=pytest.mark.slow),  # a read times out, which is not the command's own limit
        pytest.param(3822, 1, "", 0, marks=pytest.mark.slow),  # renaming a file fails
        pytest.param(5010, 1, "", 0, marks=pytest.mark.slow),  # the first commit of a table cannot be examined
        pytest.param(5039, 1, "", 0, marks=pytest.mark.slow),  # closing a written file fails
        pytest.param(5050, 1, "", 0, marks=pytest.mark.slow),  # closing a file that was read fails
        pytest.param(5110, 1, "", 0, marks=pytest.mark.slow),  # the disk of another directory is full
        pytest.param(5129, 3, "", 0, marks=pytest.mark.slow),  # closing files that were read fails
        pytest.param(500, 20, "ingest", 10, marks=pytest.mark.slow),
        pytest.param(0, 20, "browse", 10, marks=pytest.mark.slow),
        pytest.param(100, 30, "", 0, marks=pytest.mark.slow),
        # A call of every 100th place in our code that makes such calls; of each.
        pytest.param("sites", 100, "", 10, marks=pytest.mark.slow),
        pytest.param("sites", 1, "", 1000, marks=[pytest.mark.campaign, pytest.mark.timeout(6 * 3600)]),
        pytest.param(FIRST, SEEDS, "", SEEDS // 2, marks=[pytest.mark.campaign, pytest.mark.timeout(6 * 3600)]),
    ],
)
def test_a_command_reports_a_failed_system_call(
    campaign: Callable[..., dict[str, Any]], first: int | str, count: int, command: str, least: int
) -> None:
    """The run after a disturbed ingest leaves the same rows as an undisturbed one."""
    result = campaign(first, count, command)

    assert result["tried"] > least
    assert result["bad"] == []


@pytest.mark.slow
def test_a_rebuilt_file_whose_close_fails_is_named(campaign: Callable[..., dict[str, Any]]) -> None:
    """For one of the files, the error named only --out."""
    result = campaign("EIO", "close", "rebuild-consumequeue {bad} --out {out} --lost-only --install")

    assert result["tried"] > 10
    assert result["bad"] == []


@pytest.mark.slow
@pytest.mark.parametrize("line", ["query list -t T1 --lake {lake}", "query sql", "export --lake {lake} --out {file}"])
def test_rows_of_a_commit_whose_file_cannot_be_examined_are_not_left_out(
    campaign: Callable[..., dict[str, Any]], line: str
) -> None:
    """`deltalake` omits such a commit from its listing, as if the table had an older version."""
    result = campaign("EIO", "stat", line)

    assert result["tried"] > 0
    assert result["bad"] == []


@pytest.fixture(scope="module")
def cut_power() -> Iterator[Callable[..., dict[str, Any]]]:
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that records flushes needs a C compiler, and Linux")
    with start_campaigns("tests.support.power_loss") as campaign:
        yield campaign


@pytest.mark.parametrize(
    ("first", "count", "command"),
    [
        pytest.param(1, 1, "ingest", marks=pytest.mark.slow),  # the names of prepared files were not flushed
        pytest.param(8, 2, "ingest", marks=pytest.mark.slow),  # a lost note of the lock hid leftovers
        pytest.param(12, 1, "ingest", marks=pytest.mark.slow),  # the directory of a new lake was not flushed
        pytest.param(106, 4, "export", marks=pytest.mark.slow),  # the file was not flushed
        pytest.param(200, 20, "", marks=pytest.mark.slow),
        pytest.param(FIRST, SEEDS // 5, "", marks=[pytest.mark.campaign, pytest.mark.timeout(6 * 3600)]),
    ],
)
def test_a_power_failure_loses_nothing_that_was_reported_and_the_next_run_reaches_the_same_state(
    cut_power: Callable[..., dict[str, Any]], first: int, count: int, command: str
) -> None:
    """Commits, their directories and exports were not flushed, so a lake could be unreadable after "done"."""
    result = cut_power(first, count, command)

    assert count == result["tried"]
    assert result["bad"] == []


def test_a_command_in_a_deleted_directory_says_so(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    monkeypatch.chdir(directory)
    directory.rmdir()

    def body() -> None:
        Path.cwd()

    probe(body)

    assert ExitCode.FAILED == cli.main(["probe"])
    assert "rmq-lake: the current directory was deleted. Change to another directory" in capsys.readouterr().err


def test_the_entry_point_runs_as_a_script() -> None:
    """As `spark-submit` runs it: Python puts its directory first, in which `inspect` is a package of ours."""
    script = Path(__file__).parents[3] / "jobs" / "main.py"
    done = subprocess.run([sys.executable, script, "--version"], capture_output=True, check=False, text=True)

    assert (0, "") == (done.returncode, done.stderr)
