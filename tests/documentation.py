"""The commands that the documentation shows, as its pages have them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
        """What the comment beside the command says, else 0."""
        told = _CODE.search(self.text.partition(" #")[2])
        return int(told[1]) if told else 0

    @property
    def prints(self) -> re.Pattern[str] | None:
        """What the output must look like, where the page shows some; `…` stands for anything."""
        text = "\n".join(line.rstrip() for line in self.output).strip()
        return re.compile(re.escape(text).replace("…", ".*?"), re.DOTALL) if text else None


def commands(page: Path) -> list[Shown]:
    return [
        shown for section, text in _sections(page.read_text(encoding="utf-8")) for shown in _of(page, section, text)
    ]


def fences(page: Path) -> list[tuple[str, str]]:
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    yield "", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _of(page: Path, section: str, text: str) -> Iterator[Shown]:
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
