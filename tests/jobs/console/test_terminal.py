"""Output of real processes in a terminal (a pty) and in a pipe."""

import ast
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from wcwidth import wcswidth

from jobs.command_line import COMMAND_TABLE, cli
from jobs.console.amounts import count_text, duration_text, rate_text, size_text
from jobs.console.lines import abridged_lines_under_heading, wrap_line
from jobs.console.process import tool_command
from jobs.console.result import ExitCode
from jobs.console.rows import RowFormat, RowPrinter
from tests.golden import StoreOf
from tests.rmq_formats.builders import make_record, make_segment
from tests.sampling import mark_campaign_except
from tests.support.commands import copy_store
from tests.support.waiting import wait_until

_TOOL = [sys.executable, "-m", "jobs.main"]
_SEGMENT = 6 << 20
_RECORDS = 110  # of 50 KB each, in each of four segments
_RATE = 1_000_000  # bytes per second: the whole store takes 24 seconds


def _list_processes(session: int) -> list[str]:
    listed = subprocess.check_output(["ps", "-eo", "sid=,stat=,args="], text=True).splitlines()
    return [line for line in listed if line.split()[0] == str(session) and not line.split()[1].startswith("Z")]


def run_in_terminal(*arguments: str | Path, **more: str) -> str:
    """Return the output of a command in a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background processes of a shell ignore it
        os.execvpe(_TOOL[0], [*_TOOL, *map(str, arguments)], environment(more))  # noqa: S606  our own command
    text = b""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        readable, _, _ = select.select([terminal], [], [], 1)
        try:
            text += os.read(terminal, 4096) if readable else b""
        except OSError:  # the other end is closed
            break
    os.close(terminal)
    os.waitpid(pid, 0)
    return text.decode()


def environment(more: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**inherited, "TERM": "xterm-256color", "COLUMNS": "1000", **more}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("terminal") / "store"
    (root / "commitlog").mkdir(parents=True)
    for number in range(4):
        records = [make_record(os.urandom(50_000)) for _ in range(_RECORDS)]
        segment = make_segment(records, _SEGMENT, number * _SEGMENT, sealed=number < 3)
        (root / "commitlog" / f"{number * _SEGMENT:020d}").write_bytes(segment)
    return root


def await_handler(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    status = Path(f"/proc/{process.pid}/status")
    caught = re.compile(r"SigCgt:\s*(\w+)")
    bit = 1 << (number - 1)
    wait_until(
        lambda: int(caught.findall(status.read_text())[0], 16) & bit > 0, lambda: f"{number.name} is not handled"
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seconds", mark_campaign_except((1.3, 2.3, 3.8), 2.3))
def test_a_run_that_is_interrupted_during_its_start_leaves_no_process_running(
    store: Path, tmp_path: Path, seconds: float
) -> None:
    ingest = ["ingest", str(store), "--lake", str(tmp_path / "lake"), "--max-rate", str(_RATE)]
    command = [*_TOOL, "--master", "local[2]", *ingest]  # without it, so little data is read without Spark
    told = environment({})
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=told, start_new_session=True
    ) as process:
        await_handler(process, signal.SIGTERM)  # before that, there is nothing to stop or to print
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=240)

    assert ExitCode.INTERRUPTED == process.returncode, text
    assert "rmq-lake: interrupted." in text
    assert "Traceback" not in text
    wait_until(lambda: not _list_processes(process.pid), lambda: _list_processes(process.pid))


@pytest.mark.parametrize(
    ("line", "word", "offered"),
    [
        ("ing", 1, "plain,ingest"),
        ("ingest --hash", 2, "plain,--hash-slots"),
        ("inspect /da", 2, "file,/da"),
        ("restore lake --out /da", 4, "dir,/da"),
    ],
)
def test_a_shell_completes_commands_options_and_paths(
    line: str, word: int, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"rmq-lake {line}")
    monkeypatch.setenv("COMP_CWORD", str(word))
    monkeypatch.setenv("_RMQ_LAKE_COMPLETE", "bash_complete")

    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([])

    assert [offered] == capsys.readouterr().out.splitlines()


def test_colors_are_printed_only_on_terminals_that_support_them(golden: StoreOf) -> None:
    store = golden("b551-base")

    colored = run_in_terminal("inspect", store)
    plain = run_in_terminal("inspect", store, NO_COLOR="1")
    piped = subprocess.check_output([*_TOOL, "inspect", str(store)], text=True)

    assert "\x1b[36m●\x1b[0m no problems found" in colored
    assert "\x1b[3" not in plain
    assert "\x1b" not in piped
    left = re.sub(r"\r[^\r\n]*?\x1b\[K", "", plain)  # without progress lines, which are cleared

    assert piped.splitlines() == left.splitlines()


def test_the_name_of_a_file_cannot_control_a_terminal(tmp_path: Path, golden: StoreOf) -> None:
    """Colors are control sequences; for example, `8` hides the following text."""
    store = copy_store(golden("b551-base"), tmp_path)
    file = store / "consumequeue/\x1b[8mhidden/0" / f"{0:020}"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(7) + b"\x01" + bytes(3) + b"\x64" + bytes(188))

    shown = [run_in_terminal(*words) for words in (("verify", store), ("dump", "--json", file))]

    assert [True] * 2 == ["hidden" in text for text in shown]
    assert not [text for text in shown if "\x1b[8m" in text]
    assert "\x1b[35m" in shown[0]


LONG = (
    "  GAP        index/20261120073946545: no index file contains the keys of messages from offset 952 up to offset "
    "4,999, where this file begins"
)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_line_is_broken_between_words(width: int) -> None:
    lines = list(wrap_line(LONG, width))

    assert all(len(line) <= width for line in lines)
    assert LONG.split() == " ".join(lines).split()
    assert all(line.startswith(" " * 13) for line in lines[1:])
    colored = LONG.replace("GAP", click.style("GAP", fg="yellow", bold=True))  # colors have no width

    assert lines == [click.unstyle(line) for line in wrap_line(colored, width)]
    assert [["short"], [LONG]] == [list(wrap_line("short", width)), list(wrap_line(LONG, None))]


@pytest.mark.parametrize(
    ("kept", "next_line"),
    [
        ("ingest: done, no problems found: 1,065 messages, 56.2 KiB (1 min 13 s,", "  783 bytes/s)"),
        ("verify: healthy: 65 records, 65 queue units and 286 index keys compared,", "  56.2 KiB (3.87 s)"),
        ("  log     damage         65 records in 4 segments, offsets 0 to 57,539", " " * 10 + "1 problem and more"),
        ("  log     damage         65 records in 4 segments, offsets 0 to 57,539", " " * 10 + "1 problem " + "x" * 60),
    ],
)
def test_numbers_stay_with_their_units_and_cells_of_a_table_stay_together(kept: str, next_line: str) -> None:
    gap = "  " if kept.startswith(" ") else " "

    assert [kept, next_line] == list(wrap_line(f"{kept}{gap}{next_line.strip()}", 80))


def test_lines_with_chinese_words_are_wrapped_by_columns() -> None:
    """A Chinese character has two columns: these lines were up to twice as wide as the terminal."""
    line = "  NOTE " + " ".join(["订单消息"] * 20)

    lines = list(wrap_line(line, 60))

    assert line.split() == " ".join(lines).split()
    assert max(map(wcswidth, lines)) <= 60
    assert max(map(wcswidth, lines)) > 50


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, f"{'7' * 47}…"), (False, "7" * 56)])
def test_only_a_terminal_gets_shortened_cells(is_terminal: bool, shown: str) -> None:
    written: list[str] = []
    rows = RowPrinter(RowFormat.TABLE, written.append, is_terminal=is_terminal)
    rows.add({"unique_key": "7" * 56})
    rows.close()

    assert ["unique_key\n", f"{shown}\n"] == written


def test_a_plan_of_thousands_of_files_fits_on_one_screen() -> None:
    plan = ["into /store", *(f"set aside in old: {number}" for number in range(5000)), "kept: 3 files"]
    lines = list(abridged_lines_under_heading("PLAN", plan))

    assert lines[:3] == ["  PLAN", "    into /store", "    set aside in old: 0"]
    assert lines[-3:] == ["    set aside in old: 11", "    set aside in old: 4,988 more", "    kept: 3 files"]


@pytest.mark.parametrize(
    "line",
    [
        "    ./spark-submit.sh rebuild-consumequeue '/data/my store' --out NEW-QUEUES --lost-only --install --dry-run",
        "             rmq-lake repair /data/rocketmq/store --out /data/repair --lake /data/lake0 --apply",
        "             python -m jobs.main repair /data/rocketmq/store --out /data/repair --lake /data/lake0 --apply",
        "    mv -T NEW/consumequeue /data/store/consumequeue && chown -R --reference=/data/store /data/consumequeue",
        "  NEXT       # or write bridge records over the lost ranges, so that the broker keeps the messages after them",
    ],
)
def test_a_shell_reads_a_wrapped_line_as_one_command(line: str) -> None:
    broken = list(wrap_line(line, 80))
    first, *others = "\n".join(broken).replace("NEXT", "    ").replace("\\\n", " ").splitlines()

    assert len(broken) > 1
    assert all(len(row) <= 80 for row in broken)
    assert all(one.lstrip().startswith("# ") for one in (first, *others) if others)
    assert shlex.split(line) == shlex.split(" ".join(broken).replace("\\ ", " ")) or others


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (size_text(0), "0 bytes"),
        (size_text(1), "1 byte"),
        (size_text(1023), "1,023 bytes"),
        (size_text(1024), "1.0 KiB"),
        (size_text(57_539), "56.2 KiB"),
        (size_text(1 << 20), "1.0 MiB"),
        (size_text(3 << 29), "1.5 GiB"),
        (size_text(5 << 60), "5,120.0 PiB"),
        (rate_text(5, 0), "instantly"),
        (duration_text(0.251), "0.25 s"),
        (duration_text(9.5), "9.50 s"),
        (duration_text(12.34), "12.3 s"),
        (duration_text(125), "2 min 5 s"),
        (duration_text(3600), "1 h 0 min"),
        (duration_text(4321), "1 h 12 min"),
        (count_text(1, "file"), "1 file"),
        (count_text(1200, "file"), "1,200 files"),
        (count_text(2, "key"), "2 keys"),
        (count_text(2, "entry"), "2 entries"),
    ],
)
def test_an_amount_is_printed_in_its_largest_unit_with_the_right_plural(formatted: str, text: str) -> None:
    assert text == formatted


ROOT = Path(__file__).parents[3]
_COMMAND = re.compile(rf"rmq-lake (?:{'|'.join(COMMAND_TABLE)})\b")


@pytest.mark.parametrize(
    ("variables", "script", "expected"),
    [
        ({"RMQ_LAKE_PROGRAM": "./spark-submit.sh"}, "jobs/main.py", "./spark-submit.sh"),
        ({"RMQ_LAKE_PROGRAM": "/opt/rocketmq-lake/spark-submit.sh"}, "", "/opt/rocketmq-lake/spark-submit.sh"),
        ({"RMQ_LAKE_PROGRAM": "/opt/my clone/spark-submit.sh"}, "jobs/main.py", "'/opt/my clone/spark-submit.sh'"),
        ({"RMQ_LAKE_PROGRAM": ".venv/bin/rmq-lake"}, "jobs/main.py", ".venv/bin/rmq-lake"),
        ({}, "jobs/main.py", "python -m jobs.main"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "jobs/main.py", "spark-submit jobs/main.py"),
        ({"PATH": "/usr/bin"}, "{directory}/rmq-lake", "{directory}/rmq-lake"),
        ({"PATH": "{directory}:/usr/bin"}, "{directory}/rmq-lake", "rmq-lake"),
    ],
)
def test_printed_commands_start_the_program_as_the_user_did(
    variables: dict[str, str], script: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rmq-lake").touch(0o755)
    monkeypatch.setattr(sys, "argv", [script.format(directory=tmp_path), "inspect"])
    for name in ("RMQ_LAKE_PROGRAM", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(directory=tmp_path))

    assert expected.format(directory=tmp_path) == tool_command()


def test_messages_name_only_commands_that_every_user_has() -> None:
    """Examples in epilogs and docstrings may have several lines; the name of a Spark session is not a command."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "jobs").rglob("*.py")}
    found = [
        (str(path.relative_to(ROOT)), node.value)
        for path, text in texts.items()
        if _COMMAND.search(text)  # parsing all modules takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
        if _COMMAND.search(node.value) and not _COMMAND.fullmatch(node.value)
    ]

    assert [] == found


def test_a_long_cell_of_chinese_text_is_cut_to_the_width_of_a_column() -> None:
    lines: list[str] = []
    with RowPrinter(RowFormat.TABLE, lines.append, is_terminal=True) as rows:
        rows.add({"text": "订" * 40, "n": 1})
        rows.add({"text": "x" * 48, "n": 2})

    assert [f"text{' ' * 44}  n\n", f"{'订' * 23}…   1\n", f"{'x' * 48}  2\n"] == lines
