"""The commands of the documentation, grouped into scenes that run on one store."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from jobs.demo.tour import unpack as unpack_tour
from tests.golden import unpack
from tests.support.commands import ROOT, Outcome, copy_store, overwrite

PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
)

# Translated pages, and the pages that have the same commands.
_GUIDES = ROOT / "docs" / "guides"
TRANSLATIONS = {
    ROOT / "README.zh-CN.md": [ROOT / "README.md"],
    ROOT / "docs" / "zh-CN" / "quick-start.md": [ROOT / "docs" / "quick-start.md"],
    ROOT / "docs" / "zh-CN" / "runbook.md": [_GUIDES / f"{name}.md" for name in ("repair", "rebuild-index", "restore")],
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:\./spark-submit\.sh|rmq-lake|python -m) [^`]+)`")
_SHOWN = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)  # a command and its output
_CODE = re.compile(r"exit code (\d+)")


@dataclass(slots=True)
class ShownCommand:
    """A command of a page, with its heading and the output that the page shows."""

    page: str
    section: str
    text: str
    output: str = ""

    @property
    def exit_code(self) -> int:
        """The exit code in the comment after the command, else 0."""
        code = _CODE.search(self.text.partition(" #")[2])
        return int(code[1]) if code else 0

    @property
    def prints(self) -> re.Pattern[str] | None:
        """The pattern of the output, if the page shows any; `…` stands for any text."""
        text = "\n".join(line.rstrip() for line in self.output.splitlines()).strip()
        return re.compile(re.escape(text).replace("…", ".*?"), re.DOTALL) if text else None


def commands(page: Path) -> list[ShownCommand]:
    return [
        command
        for section, text in _sections(page.read_text(encoding="utf-8"))
        for command in _find_commands(page, section, text)
    ]


def fences(page: Path) -> list[tuple[str, str]]:
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    yield "", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _find_commands(page: Path, section: str, text: str) -> Iterator[ShownCommand]:
    name = str(page.relative_to(ROOT))
    for block in re.finditer(rf"{_FENCE.pattern}|{_INLINE.pattern}", text, re.DOTALL | re.MULTILINE):
        language, fenced, inline = block.groups()
        if inline is not None:
            yield ShownCommand(name, section, inline.replace("\\|", "|"))
        elif language == "console":
            for shown in _SHOWN.finditer(fenced):
                yield ShownCommand(name, section, re.sub(r"\\\n *", "", shown[1]), shown[2])


# Commands that are not run, and the reason; a test fails if no page needs a pattern.
NOT_RUN = {
    r"…|\[[A-Z]|\bCOMMAND\b": "three dots, brackets, COMMAND: the form of a command, not one",
    r"^rmq-lake \w+$": "names a command in a sentence",
    r"spark://|s3a?://|venv-pack": "needs a cluster or a server: tests/scale runs these commands there",
    r" demo( tour)?$": "the tour has tests of its own: tests/jobs/command_line/test_every_command.py",
    r" browse\b": "does not end by itself: tests/jobs/browse open its pages",
    r"(type|--lake) lake\b": "tests/jobs/typed/test_formats.py runs it, with the bodies and declarations of its page",
    r" --positions": "needs a replica or a lake: tests/jobs/diagnosis/test_positions.py runs it",
    r" --follow\b": "does not end by itself: tests/jobs/ingest follow a store",
}
OWN_PROGRAMS = ("./spark-submit.sh", "rmq-lake")
_PAGES_BY_SECTION = ("guides/repair.md", "guides/rebuild-index.md")


@dataclass(slots=True)
class SceneDirectory:
    """A directory with the stores and files that the placeholders of a page stand for."""

    directory: Path
    output_count: int = 0

    @property
    def store(self) -> Path:
        return self.directory / "STORE"

    def words(self, text: str) -> list[str]:
        words = shlex.split(text, comments=True)
        return [self._replace_placeholder(word, before) for before, word in zip(["", *words], words, strict=False)]

    def _replace_placeholder(self, word: str, before: str) -> str:
        if word == "DIR" or (word == "FILE" and before == "--out"):
            self.output_count += 1
            return str(self.directory / f"made-{self.output_count}")
        if before == "--types" and not (self.directory / word).exists():
            (self.directory / word).write_text(
                '[topic.T1]\nformat = "text"\npattern = "(?P<text>.*)"\nschema = "text string"\n', encoding="utf-8"
            )
            return str(self.directory / word)
        known = {"TOPIC": "T1", "KEY": "k1", "ID": "0A010203075F4E0E2F2A63805CCB0001", "OFFSET": "242"}
        if word == "FILE" or word.endswith("/FILE"):
            return str(min((self.store / "commitlog").iterdir()))
        if word in known:
            return known[word]
        # Absolute, because the workers of a session may have another working directory.
        return re.sub(r"^(STORE|REPLICA|LAKE|NEW2?|QUEUES2?)(?=/|$)", lambda name: str(self.directory / name[0]), word)


def delete_index_file(store: Path) -> None:
    sorted((store / "index").iterdir())[7].unlink()


def replace_by_orders(store: Path) -> None:
    """Replace the store by one whose topic Orders has JSON bodies."""
    shutil.rmtree(store)
    unpack_tour(store.parent / "unpacked")
    (store.parent / "unpacked" / "orders").rename(store)


_QUEUE, _SEGMENT = "consumequeue/T1/0", f"commitlog/{0:020d}"
# Prepares the store of a section, usually by damaging it.
STORES: dict[tuple[str, str], Callable[[Path], object]] = {
    ("docs/guides/rebuild-index.md", "Key queries find nothing, or not all messages"): delete_index_file,
    ("docs/guides/rebuild-index.md", "Index files are lost or damaged"): delete_index_file,
    ("docs/guides/repair.md", "Queues are lost, or consumers receive no messages"): lambda root: shutil.rmtree(
        root / _QUEUE
    ),
    ("docs/guides/repair.md", "A segment is lost or truncated"): lambda store: (
        store / f"commitlog/{16384:020d}"
    ).unlink(),
    ("docs/guides/repair.md", "The disk is damaged"): lambda store: overwrite(store / _SEGMENT, 332, b"\xff"),
    ("docs/guides/repair.md", "Configuration, consumer positions or timers are lost"): lambda root: shutil.rmtree(
        root / "config"
    ),
    ("docs/guides/repair.md", "The broker does not start"): lambda store: os.truncate(
        min((store / _QUEUE).iterdir()), 90
    ),
    ("docs/guides/typed-tables.md", "Turn bodies into columns"): replace_by_orders,
}


def command_text(command: ShownCommand) -> str:
    return command.text.partition(" #")[0].strip()


def reason_not_to_run(command: ShownCommand) -> str | None:
    if (command.page, command.section) == ("CONTRIBUTING.md", "Your first change"):
        return "it changes the checkout: tests/released/test_released.py runs it in a copy"
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, command_text(command))), None)


def scenes() -> list[list[ShownCommand]]:
    """Return the commands to run, grouped by page, or by section if each section has its own store."""
    return [
        list(scene)
        for _, scene in groupby(
            (command for page in PAGES for command in commands(page) if reason_not_to_run(command) is None),
            key=lambda command: (command.page, command.section if command.page.endswith(_PAGES_BY_SECTION) else ""),
        )
    ]


def scene_name(scene: list[ShownCommand]) -> str:
    return " · ".join(filter(None, (scene[0].page, scene[0].section)))


def make_scene_directory(scene: list[ShownCommand], directory: Path) -> SceneDirectory:
    scene_directory = SceneDirectory(directory)
    (directory / "golden").mkdir()
    copy_store(unpack("b551-base", directory / "golden"), directory).rename(scene_directory.store)
    shutil.rmtree(directory / "golden")
    if any("REPLICA" in command.text.split() for command in scene):
        shutil.copytree(scene_directory.store, directory / "REPLICA")
    change_store = STORES.get((scene[0].page, scene[0].section))
    if change_store:
        change_store(scene_directory.store)
    return scene_directory


def normalize_output(text: str, directory: Path) -> str:
    """Remove trailing blanks, progress lines (printed on slow machines), and the directory of the placeholders."""
    text = text.replace(f"{directory}/", "")
    lines = [line.rstrip() for line in text.splitlines() if not re.match(r"\w+: \d+/\d+ \w+", line)]
    return "\n".join(lines).strip()


def check_scene(
    scene: list[ShownCommand], scene_directory: SceneDirectory, run: Callable[[ShownCommand, list[str]], Outcome]
) -> None:
    """Run commands in order; each must end with the exit code and print the output that its page shows."""
    for command in scene:
        code, out, err = run(command, scene_directory.words(command.text))
        assert command.exit_code == code, f"{command.page}: {command.text}\n{out}{err}"
        texts = (normalize_output(text, scene_directory.directory) for text in (out, out + err))
        assert command.prints is None or any(map(command.prints.fullmatch, texts)), f"{command}\n{out}{err}"
