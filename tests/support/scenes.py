"""The commands and recipes of the documentation, as scenes on a store that fits each page."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from tests.golden import unpack, unpack_situation
from tests.support.commands import ROOT, Outcome, copy_store, overwrite

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

# The same pages in another language, with the same commands.
TRANSLATIONS = {
    ROOT / "README.zh-CN.md": ROOT / "README.md",
    ROOT / "docs" / "zh-CN" / "quick-start.md": ROOT / "docs" / "quick-start.md",
    ROOT / "docs" / "zh-CN" / "runbook.md": ROOT / "docs" / "repair.md",
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:\./spark-submit\.sh|rmq-lake|python -m) [^`]+)`")
_CODE = re.compile(r"exit code (\d+)")


@dataclass(slots=True)
class Shown:
    """One command as a page shows it, under its heading, and what the page says that it prints."""

    page: str
    section: str
    text: str
    output: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code in the comment after the command, else 0."""
        told = _CODE.search(self.text.partition(" #")[2])
        return int(told[1]) if told else 0

    @property
    def prints(self) -> re.Pattern[str] | None:
        """What the output must look like, where the page shows some; `…` stands for anything."""
        text = "\n".join(line.rstrip() for line in self.output).strip()
        return re.compile(re.escape(text).replace("…", ".*?"), re.DOTALL) if text else None


def commands(page: Path) -> list[Shown]:
    return [
        shown
        for section, text in _sections(page.read_text(encoding="utf-8"))
        for shown in _shown_in(page, section, text)
    ]


def fences(page: Path) -> list[tuple[str, str]]:
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    yield "", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _shown_in(page: Path, section: str, text: str) -> Iterator[Shown]:
    name = str(page.relative_to(ROOT))
    for block in re.finditer(rf"{_FENCE.pattern}|{_INLINE.pattern}", text, re.DOTALL | re.MULTILINE):
        language, fenced, inline = block.groups()
        if inline is not None:
            yield Shown(name, section, inline.replace("\\|", "|"))
        elif language == "console":
            yield from _of_console(name, section, fenced)


def _of_console(page: str, section: str, fenced: str) -> Iterator[Shown]:
    shown: Shown | None = None
    for line in fenced.splitlines():
        if line.startswith("$ "):
            if shown:
                yield shown
            shown = Shown(page, section, line[2:])
        elif shown and shown.text.endswith("\\"):
            shown.text = f"{shown.text[:-1]}{line.strip()}"
        elif shown:
            shown.output.append(line)
    if shown:
        yield shown


# What is not run, and why. A pattern that no page needs any more fails a test.
NOT_RUN = {
    r"…|\[[A-Z]|\bCOMMAND\b": "three dots, brackets, COMMAND: the form of a command, not one",
    r"^rmq-lake \w+$": "names a verb in a sentence",
    r"spark://|s3a?://|hdfs://|venv-pack": "needs a cluster or a server: tests/scale runs these verbs there",
    r"spark-submit\.sh demo$": "the tour has tests of its own: tests/jobs/command/test_every_verb.py",
    r" browse\b": "does not end by itself: tests/jobs/browse open its pages",
    r" --heal\b": "needs a lake that has forgotten its runs: tests/jobs/lake/test_integrity.py makes some",
    r"(type|--lake) lake\b": "tests/jobs/typed/test_formats.py runs it, with the bodies and declarations of its page",
    r" --follow\b": "does not end by itself: tests/jobs/ingest follow a store",
}
OURS = ("./spark-submit.sh", "rmq-lake")
_HAS_A_STORE_FOR_EACH_SECTION = "repair.md"


@dataclass(slots=True)
class World:
    """A directory with what the placeholders of a page stand for."""

    folder: Path
    made: int = 0

    @property
    def store(self) -> Path:
        return self.folder / "STORE"

    def words(self, text: str) -> list[str]:
        words = shlex.split(text, comments=True)
        return [self._meant(word, before) for before, word in zip(["", *words], words, strict=False)]

    def _meant(self, word: str, before: str) -> str:
        if word == "DIR" or (word == "FILE" and before == "--out"):
            self.made += 1
            return str(self.folder / f"made-{self.made}")
        if before == "--types" and not (self.folder / word).exists():
            (self.folder / word).write_text(
                '[topic.T1]\nformat = "text"\npattern = "(?P<text>.*)"\nschema = "text string"\n', encoding="utf-8"
            )
            return str(self.folder / word)
        known = {"TOPIC": "T1", "KEY": "k1", "ID": "0A010203075F4E0E2F2A63805CCB0001", "OFFSET": "242"}
        if word == "FILE" or word.endswith("/FILE"):
            return str(min((self.store / "commitlog").iterdir()))
        if word in known:
            return known[word]
        # Absolute, for the workers of a session that was started in another directory.
        return re.sub(r"^(STORE|LAKE|NEW2?|QUEUES2?|TIER)(?=/|$)", lambda name: str(self.folder / name[0]), word)


def index_lost(store: Path) -> None:
    sorted((store / "index").iterdir())[7].unlink()


def copied_to_a_tier(store: Path) -> None:
    place = unpack_situation("b550-tiered", store.parent / "situation")
    (place / "tiered").rename(store.parent / "TIER")


_QUEUE, _SEGMENT = "consumequeue/T1/0", f"commitlog/{0:020d}"
# What has happened to the store that a section is about.
STORES: dict[tuple[str, str], Callable[[Path], object]] = {
    ("docs/repair.md", "Key queries find nothing, or not all messages"): index_lost,
    ("docs/repair.md", "Index files are lost or damaged"): index_lost,
    ("docs/repair.md", "Queues are lost, or consumers see nothing"): lambda store: shutil.rmtree(store / _QUEUE),
    ("docs/repair.md", "A segment is lost or cut short"): lambda store: (store / f"commitlog/{16384:020d}").unlink(),
    ("docs/repair.md", "The disk is damaged"): lambda store: overwrite(store / _SEGMENT, 332, b"\xff"),
    ("docs/repair.md", "The broker does not start"): lambda store: os.truncate(min((store / _QUEUE).iterdir()), 90),
    ("docs/repair.md", "Messages are in a tiered store"): copied_to_a_tier,
}


def bare(shown: Shown) -> str:
    return shown.text.partition(" #")[0].strip()


def reason_not_to_run(shown: Shown) -> str | None:
    if (shown.page, shown.section) == ("CONTRIBUTING.md", "Your first change"):
        return "it changes the checkout: tests/released/test_released.py runs it in one of its own"
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, bare(shown))), None)


def scenes() -> list[list[Shown]]:
    """Return the commands that are run: one world a page, or a section where its store has a history of its own."""
    return [
        list(scene)
        for _, scene in groupby(
            (shown for page in PAGES for shown in commands(page) if reason_not_to_run(shown) is None),
            key=lambda shown: (shown.page, shown.section if shown.page.endswith(_HAS_A_STORE_FOR_EACH_SECTION) else ""),
        )
    ]


def name_of(scene: list[Shown]) -> str:
    return " · ".join(filter(None, (scene[0].page, scene[0].section)))


def world_of(scene: list[Shown], folder: Path) -> World:
    world = World(folder)
    (folder / "golden").mkdir()
    copy_store(unpack("b551-base", folder / "golden"), folder).rename(world.store)
    shutil.rmtree(folder / "golden")
    happened = STORES.get((scene[0].page, scene[0].section))
    if happened:
        happened(world.store)
    return world


def as_shown(text: str, folder: Path) -> str:
    """Leave out blanks at ends, progress, which only a slow machine shows, and the folder of the placeholders."""
    text = text.replace(f"{folder}/", "")
    lines = [line.rstrip() for line in text.splitlines() if not re.match(r"\w+: \d+/\d+ \w+", line)]
    return "\n".join(lines).strip()


def check_scene(scene: list[Shown], world: World, run: Callable[[Shown, list[str]], Outcome]) -> None:
    """Run commands in order; each must end with the code, and print the data or the text, that its page shows."""
    for shown in scene:
        code, out, err = run(shown, world.words(shown.text))
        assert shown.exit_code == code, f"{shown.page}: {shown.text}\n{out}{err}"
        texts = (as_shown(text, world.folder) for text in (out, out + err))
        assert shown.prints is None or any(map(shown.prints.fullmatch, texts)), f"{shown}\n{out}{err}"
