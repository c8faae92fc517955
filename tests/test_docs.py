"""Compare the documentation with the code."""

import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any

import rmq_formats
from benchmarks import growth_page
from rmq_formats.commitlog import layout as log_layout
from rmq_formats.layout import Layout
from rmq_formats.release import SWITCHES


def layouts() -> Iterator[tuple[str, Layout]]:
    for module in pkgutil.walk_packages(rmq_formats.__path__, "rmq_formats."):
        if module.name.endswith(("layout", "store", "message_id", "timer_files")):
            for name, value in vars(import_module(module.name)).items():
                if isinstance(value, Layout):
                    yield f"{module.name}.{name}", value
                elif isinstance(value, dict) and all(isinstance(layout, Layout) for layout in value.values()):
                    yield from ((f"{module.name}.{name}[{key}]", layout) for key, layout in value.items())


def switch_text(name: str) -> str:
    (_, first), *later = SWITCHES[name].items()
    return "; ".join([_value(first), *(f"{since} {_value(value)}" for since, value in later)])


def _value(value: Any) -> str:  # noqa: ANN401 - each switch has its own type
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value.value if isinstance(value, Enum) else value)


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FORMATS = (DOCS / "internals" / "formats.md").read_text()
LAYOUTS = dict(layouts())
_CELLS = attrgetter("offset", "size", "name", "kind", "meaning")

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

# Layouts with the same fields and a longer address, or with the first fields of another layout.
VARIANTS = re.compile(r"RECORD\[(16|32|48)\]|HEAD$|_ID\[16\]")


def test_every_layout_has_a_documented_table() -> None:
    for name, layout in LAYOUTS.items():
        if not VARIANTS.search(name):
            text = FORMATS.partition(f"<!-- {name} -->\n")[2]
            lines = takewhile(lambda line: line.startswith("|"), text.splitlines())
            head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)

            assert head == ["Offset", "Bytes", "Name", "Type", "Meaning"], name
            assert rows == [[*map(str, _CELLS(row))] for row in layout.describe_fields()]


def test_every_switch_is_in_the_table_of_releases() -> None:
    rows = re.findall(r"^\| (\w+) \| (.+?) \| (.+) \|$", FORMATS.partition("| Behavior |")[2], re.MULTILINE)

    assert [(name, values) for name, values, _ in rows] == [(name, switch_text(name)) for name in SWITCHES]


def test_every_bit_of_sys_flag_is_in_its_table() -> None:
    rows = re.findall(r"^\| 0x([0-9A-F]+) \| (\w+) \|", FORMATS, re.MULTILINE)

    assert [int(bits, 16) for bits, _ in rows] == [getattr(log_layout, name) for _, name in rows]
    assert sum(int(bits, 16) for bits, _ in rows) == 0x7FF  # bits 0 to 10, each once


def test_links_in_the_documentation_have_targets() -> None:
    dead = [(str(page.relative_to(ROOT)), target) for page in PAGES for target in _dead_links(page)]

    assert [] == dead


def _dead_links(page: Path) -> Iterator[str]:
    text = page.read_text()
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            if target[1:] not in headings:
                yield target
        elif "://" not in target and not (page.parent / target.partition("#")[0]).exists():
            yield target


def test_no_page_has_a_heading_or_a_long_paragraph_twice() -> None:
    """Both sides of a merge may add the same text. Lines of tables, code and shared options may be repeated."""
    repeated = [f"{page.relative_to(ROOT)}: {text}" for page in PAGES for text in _repeated_texts(page)]

    assert [] == repeated


def _repeated_texts(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    blocks = [block.strip() for block in re.split(r"\n\n|(?m:^(?=#))", text)]
    counts = Counter(block for block in blocks if not block.startswith(("|", "[Shared options]")) and len(block) > 12)
    yield from (block[:60] for block, count in counts.items() if count > 1)


def test_modules_named_in_pages_exist() -> None:
    """A move of tests once changed paths in the guarantees to files that did not exist."""
    named = [
        (page, path)
        for page in PAGES
        if page.stem != "CHANGELOG"  # it describes earlier versions
        for path in re.findall(r"`([\w./-]+\.py)`", page.read_text())
    ]

    assert [] == [one for one in named if not any((above / one[1]).is_file() for above in (ROOT, ROOT / "tests"))]


def test_llms_txt_lists_every_page() -> None:
    named = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md")}

    assert pages | {"CONTRIBUTING.md"} == named


def test_names_imported_by_examples_exist() -> None:
    """A renamed function once broke the notebook, which only slow tests run."""
    texts = [*map(Path.read_text, PAGES), (DOCS / "notebook.ipynb").read_text()]
    imports = [
        (module.replace("rocketmq_lake", "jobs"), name)
        for text in texts
        for module, names in re.findall(
            r"^\W*from ((?:jobs|rocketmq_lake|rmq_formats)[\w.]*) import ([\w, ]+)", text, re.MULTILINE
        )
        for name in names.split(", ")
    ]

    assert len(imports) > 10
    assert [] == [(module, name) for module, name in imports if not hasattr(import_module(module), name.strip())]


def test_the_page_of_performance_has_the_recorded_growth() -> None:
    assert growth_page.fill_page() == growth_page.PAGE.read_text(encoding="utf-8")
