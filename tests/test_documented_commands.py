"""Every command that the documentation shows is run, in the order of its page, and prints what the page shows."""

import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.documentation import PAGES, ROOT, Shown, commands, fences
from tests.support.commands import Run, copy_of, overwrite, runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS = ("./spark-submit.sh", "rmq-lake")

# What is not run, and why. A pattern that no page needs any more fails the test below.
NOT_RUN = {
    r"…|\[[A-Z]|\bVERB\b": "three dots, brackets, VERB: the form of a command, not one",
    r"^rmq-lake \w+$": "names a verb in a sentence",
    r"spark://|s3a://|hdfs://|--pack-environment": "needs a cluster or a server: tests/scale runs these verbs there",
    r"spark-submit\.sh demo$": "docs/tutorial.md runs the same tour, in a directory with a name",
    r"^\.ci/run$": "all tests together, this one among them",
}


@dataclass(slots=True)
class World:
    """A directory with what the placeholders of a page stand for."""

    folder: Path
    made: int = 0

    @property
    def store(self) -> Path:
        """What STORE stands for."""
        return self.folder / "STORE"

    def words(self, text: str) -> list[str]:
        """Return a command's words, with what its placeholders stand for."""
        words = shlex.split(text, comments=True)
        return [self._meant(word, before) for before, word in zip(["", *words], words, strict=False)]

    def _meant(self, word: str, before: str) -> str:
        if word == "DIR" or (word == "FILE" and before == "--out"):
            self.made += 1
            return str(self.folder / f"made-{self.made}")
        known = {"TOPIC": "T1", "KEY": "k1", "ID": "0A010203075F4E0E2F2A63805CCB0001", "OFFSET": "242"}
        if word == "FILE" or word.endswith("/FILE"):
            return str(min((self.store / "commitlog").iterdir()))
        if word in known:
            return known[word]
        # Absolute, for the workers of a session that was started in another directory.
        return re.sub(r"^(STORE|LAKE|NEW2?|QUEUES)(?=/|$)", lambda name: str(self.folder / name[0]), word)


def index_lost(store: Path) -> None:
    """Lose the eighth index file."""
    sorted((store / "index").iterdir())[7].unlink()


def queue_lost(store: Path) -> None:
    """Lose a queue."""
    shutil.rmtree(store / "consumequeue" / "T1" / "0")


def damaged(store: Path) -> None:
    """Break the second record's body."""
    overwrite(store / "commitlog" / f"{0:020d}", 242 + 90, b"\xff")


# What has happened to the store that a section is about.
STORES: dict[tuple[str, str], Callable[[Path], None]] = {
    ("docs/runbook.md", "Key queries find nothing, or less than they should"): index_lost,
    ("docs/runbook.md", "Index files are lost or damaged"): index_lost,
    ("docs/runbook.md", "Queues are lost, or consumers see nothing"): queue_lost,
    ("docs/runbook.md", "The disk is damaged"): damaged,
}

_ALL = [shown for page in PAGES for shown in commands(page)]


def reason_not_to_run(shown: Shown) -> str | None:
    """Return why a command is not run here, if it is not."""
    text = shown.text.partition(" #")[0].strip()
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, text)), None)


# One world a page, or a section where its store has a history of its own.
_SCENES = [
    pytest.param(list(scene), id=" · ".join(filter(None, key)))
    for key, scene in groupby(
        (shown for shown in _ALL if reason_not_to_run(shown) is None),
        key=lambda shown: (shown.page, shown.section if shown.page == "docs/runbook.md" else ""),
    )
]


@pytest.mark.parametrize("scene", _SCENES)
def test_every_command_of_a_page_runs_and_prints_what_the_page_shows(  # noqa: PLR0913, PLR0917 - pytest's fixtures
    scene: list[Shown],
    spark: "SparkSession",
    golden: Callable[[str], Path],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one directory, one after the other, with the exit code that its comment names (0 where it names none)."""
    del spark
    world = World(tmp_path)
    copy_of(golden("b551-base"), tmp_path).rename(world.store)
    happened = STORES.get((scene[0].page, scene[0].section))
    if happened:
        happened(world.store)
    monkeypatch.chdir(tmp_path)
    for shown in scene:
        monkeypatch.setenv("RMQ_LAKE_PROGRAM", shown.text.partition(" ")[0])
        code, out, err = _run(shown, world, runner(capfd))
        assert shown.exit_code == code, f"{shown.page}: {shown.text}\n{out}{err}"
        if shown.prints:
            # What the page shows is the data, or all of it.
            assert any(shown.prints.fullmatch(_as_shown(text)) for text in (out, out + err)), f"{shown}\n{out}{err}"


def _run(shown: Shown, world: World, run: Run) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed on both streams."""
    words = world.words(shown.text)
    if words[0] in _OURS:
        outcome = run(*words[1:])
        return int(outcome.code), outcome.out, outcome.err
    if words[0] == "make":
        # `-n`: that there is such a target, and what it would do; the targets are these tests themselves.
        return subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False).returncode, "", ""
    if words[:2] == ["python", "-m"]:
        # Benchmarks and generators have tests of their own: here, that the module is there.
        return int(importlib.util.find_spec(words[2]) is None), "", ""
    done = subprocess.run(["bash", "-c", shown.text], capture_output=True, check=False, text=True)
    return done.returncode, done.stdout, done.stderr


def _as_shown(text: str) -> str:
    """Leave out blanks at ends, and progress, which only a slow machine shows."""
    lines = [line.rstrip() for line in text.splitlines() if not re.match(r"\w+: \d+/\d+ \w+", line)]
    return "\n".join(lines).strip()


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_a_reason_not_to_run_a_command_is_needed(pattern: str) -> None:
    """A reason that no command has any more could hide the next one."""
    assert any(re.search(pattern, shown.text.partition(" #")[0].strip()) for shown in _ALL)


def test_commands_stand_at_a_prompt() -> None:
    """A command in a fence of another kind would be run by no test; units and crontabs have one of their own."""
    hidden = [
        (str(page.relative_to(ROOT)), line)
        for page in PAGES
        for language, text in fences(page)
        if language not in {"console", "ini", "cron", "sh"}
        for line in text.splitlines()
        if line.strip().startswith(_OURS)
    ]

    assert [] == hidden


def test_pages_are_found_and_read() -> None:
    """A broken extraction would pass every other test here."""
    assert {"README.md", "docs/runbook.md"} <= {shown.page for shown in _ALL}
    assert "./spark-submit.sh inspect STORE" in {shown.text for shown in _ALL}
