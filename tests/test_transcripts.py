"""
Commands with their output and exit code as users see them, in `tests/transcripts`, one page per subject.

The first `<!-- store: NAME -->` line of a page names a golden store, which is copied to the directory `store`. If the
line names several, the others are copied to directories with their own names. A later such line starts again in an
empty directory. A page without such a line starts in an empty directory, and creates its store with `send`. A page
whose first line is `<!-- slow -->` runs in `make test-slow` only. `pytest tests/test_transcripts.py --record` writes
the current output of the commands into the pages, so `git diff` shows the changes that users will notice.

Pages may use these shell functions in addition to programs: `fresh` restores the copied stores, `poke FILE POSITION
HEX` overwrites bytes, `flip FILE POSITION BITS` inverts the given bits of one byte, `bytes FILE POSITION COUNT` prints
bytes, and `findings` reduces a report to its findings and its verdict. `send TOPIC [NAME=VALUE …] BODY …` appends
messages with these properties to `store`, or creates it, with a log and queues, but without an index. A body that
begins with `0x` is hexadecimal. `delta TABLE STATEMENT` changes a table as another engine would: the statement is
Python, and `table` is the deltalake table. `NAME=VALUE … rmq-lake …` sets environment variables for one command.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.query_stores import Sent, stored, write_store

_SLOW = "<!-- slow -->\n"  # the first line of a page that only `make test-slow` runs

PAGES = [  # any free worker runs the next page
    pytest.param(page, id=page.stem, marks=[pytest.mark.xdist_group(page.stem), *[pytest.mark.slow] * is_slow])
    for page in sorted((Path(__file__).parent / "transcripts").glob("*.md"))
    for is_slow in [page.read_text(encoding="utf-8").startswith(_SLOW)]
]
_PART = re.compile(r"<!-- store: (\S[^>]*\S) -->|^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_CODE = re.compile(r" +# exit code (\d+)$")
_PROGRAM = re.compile(
    r"((?:\w+=(?:'[^']*'|\"[^\"]*\"|[^\s'\"]*) )*)"
    r"rmq-lake ((?:\$'(?:[^'\\]|\\.)*'|[^|<>;&'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")*+)(?:\| *(.*))?",
    re.DOTALL,
)
_PROPERTY = re.compile(r"\w+=")
_EXPANDED = re.compile(r"[$*?~{`\[!]")  # characters that bash may expand
_SHELL = """
fresh() { rm -rf -- * && cp -r "$PRISTINE"/* .; }
poke() { printf "$(sed 's/../\\\\x&/g' <<< "$3")" | dd of="$1" seek="$2" bs=1 conv=notrunc status=none; }
flip() { poke "$1" "$2" "$(printf %02x $((0x$(bytes "$1" "$2" 1) ^ $3)))"; }
bytes() { od -An -v -tx1 -j "$2" -N "$3" "$1" | tr -d ' \\n'; }
delta() { "$PYTHON" -c "from deltalake import *; table = DeltaTable('$1'); $2"; }
findings() { grep -E '^ {4}(rmq-lake|mv) |^ +[0-9]+\\. |^  (GAP|DAMAGE|CONTRADICTION|NOT(E | [A-Z]+)) |^●|^[a-z-]+: '; }
"""
_VOLATILE = (  # output that differs from run to run, and its replacement
    (re.compile(r"\buser \d+, group \d+"), "user UID, group GID"),
    (re.compile(r"(?<=belong to user )\d+"), "UID"),
    (re.compile(r"^rmq-lake: compiling .*\n|, including [^()]* of one-time compilation", re.MULTILINE), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"(?<=\.replaced-)\d{8}T\d{6}-[0-9a-f]{8}"), "TIME"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:[KMG]i?B/s|ms|s)\b|\b\d+ min \d+ s\b"), "TIME"),
)
_MOMENT = re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)?")


def _replace_recent(moment: re.Match[str]) -> str:
    age = datetime.now(UTC).replace(tzinfo=None) - datetime.fromisoformat(moment[0][:19])
    return "NOW" if abs(age) < timedelta(days=1) else moment[0]


def _replace_volatile(text: str) -> str:
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text


def _normalize(text: str, directory: Path) -> str:
    text = _replace_volatile(text.replace(f"{directory}/", "").replace(str(directory), "."))
    return "".join(f"{line.rstrip()}\n" for line in _MOMENT.sub(_replace_recent, text).splitlines())


def _words(line: str) -> list[str]:
    if not _EXPANDED.search(line):
        return shlex.split(line)
    command = ["bash", "-c", f"printf '%s\\0' {line}"]
    return subprocess.check_output(command, text=True, errors="surrogateescape").split("\0")[:-1]


def _send(words: list[str], sent: list[Sent]) -> None:
    """Add messages to *sent*, which contains all messages of the store, and write the store again."""
    if not Path("store").exists():
        sent.clear()
    topic, *others = words
    properties = [
        (name, value) for name, _, value in (word.partition("=") for word in takewhile(_PROPERTY.match, others))
    ]
    for body in others[len(properties) :]:
        raw = bytes.fromhex(body[2:]) if body.startswith("0x") else body.encode()
        sent.append(Sent(topic, body=raw, properties=tuple(properties)))
    shutil.rmtree("store", ignore_errors=True)
    write_store(Path("store"), stored(sent), with_index=False)


def _run(command: str, run: Run, sent: list[Sent]) -> tuple[int, str]:
    if command.startswith("send "):
        _send(_words(command)[1:], sent)
        return 0, ""
    code, text = 0, None
    program = _PROGRAM.fullmatch(command)
    if program:
        with patch.dict(os.environ, (word.split("=", 1) for word in shlex.split(program[1]))):
            outcome = run(*_words(program[2]))
        # Durations are removed before filters, because a filter for a number might match one.
        code = int(outcome.code)
        text = _replace_volatile(outcome.out + outcome.err)
        command = program[3]
    if command:
        shell = ["bash", "-c", _SHELL + command]
        done = subprocess.run(shell, input=text, stdout=-1, stderr=subprocess.STDOUT, check=False, text=True)
        code, text = code or (0 if program else done.returncode), done.stdout
    return code, text or ""


def _play_block(console: str, run: Run, directory: Path, sent: list[Sent]) -> str:
    lines = []
    for match in _COMMAND.finditer(console):
        command = _CODE.sub("", match[1])
        code, text = _run(command, run, sent)
        lines.append(f"$ {command}{f'  # exit code {code}' if code else ''}\n{_normalize(text, directory)}")
    return f"```console\n{''.join(lines)}```"


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_their_transcript_shows(  # noqa: PLR0913, PLR0917 - fixtures
    page: Path, golden: StoreOf, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    expected = page.read_text(encoding="utf-8")
    sent: list[Sent] = []
    directory = tmp_path / "user"
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("RMQ_LAKE_PROGRAM", "rmq-lake")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")  # messages of programs, such as cmp
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PRISTINE", str(tmp_path / "pristine"))
    monkeypatch.setattr("jobs.console.progress._PLAIN_INTERVAL", 1e9)  # no progress lines on slow machines
    monkeypatch.setattr("jobs.store.repeated_reads._WRITTEN_S", 0)  # no broker is writing these files

    directory.mkdir()
    monkeypatch.chdir(directory)

    def play(part: re.Match[str]) -> str:
        if part[1] is None:
            return _play_block(part[2], run, directory, sent)
        for path in (directory, tmp_path / "pristine"):
            shutil.rmtree(path, ignore_errors=True)
        pristine = tmp_path / "pristine"
        for number, name in enumerate(part[1].split()):
            place = golden(name)
            is_store = not (place / "store").is_dir()  # not a directory that contains a store
            copy = pristine / (name if number else "store") if is_store else pristine
            shutil.copytree(place, copy, ignore=shutil.ignore_patterns("EXPECT*"), dirs_exist_ok=True)
        shutil.copytree(pristine, directory)
        monkeypatch.chdir(directory)
        return part[0]

    new_text = _PART.sub(play, expected)

    if pytestconfig.getoption("record"):
        page.write_text(new_text, encoding="utf-8")
    else:
        assert expected == new_text
