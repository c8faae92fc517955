"""
What users see: commands with their output and exit code, in `tests/transcripts`, one page a situation.

A page names its store in the first line. `pytest tests/test_transcripts.py --record` writes what the commands print
now; the difference in git is what a user would notice.
"""

import re
import shlex
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.golden import unpack
from tests.support.commands import Run

PAGES = sorted((Path(__file__).parent / "transcripts").glob("*.md"))
_STORE = re.compile(r"<!-- store: (\S+) -->")
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_CODE = re.compile(r" +# exit code (\d+)$")
_VOLATILE = (
    (
        re.compile(r"\(user \d+, group \d+\)"),
        "(user UID, group GID)",
    ),  # what differs from run to run, and what stands for it
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:[KMG]i?B/s|ms|s)\b|\b\d+ min \d+ s\b"), "TIME"),
)
_MOMENT = re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)?")


def _is_now(moment: str) -> bool:
    return abs(datetime.fromisoformat(moment[:19]) - datetime.now(UTC).replace(tzinfo=None)) < timedelta(days=1)


def _stable(text: str, folder: Path) -> str:
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    text = _MOMENT.sub(lambda moment: "NOW" if _is_now(moment[0]) else moment[0], text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _run(command: str, run: Run) -> tuple[int, str]:
    if command.startswith("rmq-lake ") and not re.search(r"[|<>;&]", command):
        outcome = run(*shlex.split(command.replace("\\\n", " "))[1:])
        return int(outcome.code), outcome.out + outcome.err
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, text=True)
    return done.returncode, done.stdout + done.stderr


def _played(block: re.Match[str], run: Run, folder: Path) -> str:
    lines = []
    for match in _COMMAND.finditer(block[1]):
        command = _CODE.sub("", match[1])
        code, text = _run(command, run)
        lines.append(f"$ {command}{f'  # exit code {code}' if code else ''}\n{_stable(text, folder)}")
    return f"```console\n{''.join(lines)}```"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_their_transcript_shows(
    page: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    expected = page.read_text(encoding="utf-8")
    name = _STORE.match(expected)
    assert name, f"{page}: the first line names no store"
    unpack(name[1], tmp_path / "unpacked").rename(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "EXPECT", ignore_errors=True)
    shutil.rmtree(tmp_path / "unpacked")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RMQ_LAKE_PROGRAM", "rmq-lake")
    monkeypatch.setenv("TZ", "UTC")

    played = _BLOCK.sub(lambda block: _played(block, run, tmp_path), expected)

    if request.config.getoption("record"):
        page.write_text(played, encoding="utf-8")
    else:
        assert expected == played
