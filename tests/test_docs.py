"""The documentation against what it documents."""

import re
from pathlib import Path

import pytest

from rmq_formats.release import SWITCHES
from tests.documented import flag_bits, layout_table, layouts, switch_text

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FORMATS = (DOCS / "formats.md").read_text()
LAYOUTS = dict(layouts())

# The changelog speaks of the past.
MODULES_NAMED_IN = [
    *(page for page in sorted(ROOT.glob("*.md")) if page.stem != "CHANGELOG"),
    *sorted(DOCS.rglob("*.md")),
]

# The same fields with a longer address, or the beginning of another layout.
VARIANTS = re.compile(r"RECORD\[(16|32|48)\]|HEAD$|_ID\[16\]")


def documented_table(name: str) -> list[list[str]]:
    lines = FORMATS.partition(f"<!-- {name} -->\n")[2].splitlines()
    return _cells(lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))])


def _cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if not VARIANTS.search(name)])
def test_every_layout_has_its_table(name: str) -> None:
    assert documented_table(name) == _cells(layout_table(LAYOUTS[name]).splitlines())


@pytest.mark.parametrize("name", [name for name in LAYOUTS if not VARIANTS.search(name)])
def test_the_bytes_of_a_table_add_up(name: str) -> None:
    _, _, *rows = documented_table(name)

    assert sum(int(row[1]) for row in rows) == LAYOUTS[name].struct.size
    assert [int(row[0]) for row in rows] == [sum(int(row[1]) for row in rows[:i]) for i in range(len(rows))]


def test_no_table_is_about_a_layout_that_is_gone() -> None:
    named = set(re.findall(r"<!-- (rmq_formats\S+) -->", FORMATS))

    assert named <= LAYOUTS.keys()
    assert LAYOUTS.keys() - named == {name for name in LAYOUTS if VARIANTS.search(name)}


def test_every_switch_stands_in_the_table_of_releases() -> None:
    rows = re.findall(r"^\| (\w+) \| (.+?) \| (.+) \|$", FORMATS.partition("| Behaviour |")[2], re.MULTILINE)

    assert [(name, values) for name, values, _ in rows] == [(name, switch_text(name)) for name in SWITCHES]


def test_every_bit_of_the_flag_stands_in_its_table() -> None:
    rows = re.findall(r"^\| 0x([0-9A-F]+) \| (\w+) \|", FORMATS, re.MULTILINE)

    assert {name: int(bits, 16) for bits, name in rows} == flag_bits()


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_inside_the_documentation_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    headings = {_anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", MODULES_NAMED_IN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_module_that_a_page_names_exists(page: Path) -> None:
    """A move of tests once rewrote some paths of the guarantees to files that do not exist, or prove something else."""
    named = re.findall(r"`([\w./-]+\.py)`", page.read_text())

    assert [] == [path for path in named if not any((above / path).is_file() for above in (ROOT, ROOT / "tests"))]


def test_no_convention_of_another_tool_is_without_an_answer() -> None:
    table = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8").partition("## Conventions")[2]
    answers = [line.strip("| ").rpartition(" | ")[2] for line in table.splitlines() if re.match(r"\| ?\S* ", line)][1:]

    assert 30 < len(answers)
    assert [] == [answer for answer in answers if not re.fullmatch(r"yes|no[:.;,] .{20,}|(?!no\b).{10,}", answer)]


def test_what_language_models_read_names_every_page() -> None:
    named = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md") if page.parent.name != "adr"}

    assert pages - {"docs/index.md"} | {"CONTRIBUTING.md"} == named


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
