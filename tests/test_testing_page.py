"""docs/testing.md against the tests that it describes."""

import re
from pathlib import Path

from tests.golden import ARCHIVES, SITUATIONS
from tests.golden.features import FEATURES
from tests.oracle.releases import MATRIX
from tests.oracle.scenarios import SCENARIOS, UPGRADES
from tests.oracle.store_kinds import cells

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
FILES = sorted((ROOT / "tests").rglob("*.py"))


def test_every_file_that_sleeps_is_named_with_its_reason() -> None:
    sleeping = {
        str(file.relative_to(ROOT)) for file in FILES if re.search(r"(?<!def )\bsleep\((?!0\))\w", file.read_text())
    }

    assert sleeping == set(re.findall(r"^\| `(tests/[\w/.]+)` \| \w", PAGE, re.MULTILINE))


def test_counts_are_those_of_the_tree() -> None:
    assert f"{len(ARCHIVES)} archives" in PAGE
    assert f"{len(FEATURES)} stores of features, {len(SITUATIONS)} situations" in PAGE
    functions, files = (int(said.replace(",", "")) for said in re.findall(r"[Mm]ore than ([\d,]+) ", PAGE))
    found = [re.findall(r"^def test_", file.read_text(), re.MULTILINE) for file in FILES]
    assert functions < sum(map(len, found)) < functions * 1.2
    assert files < sum(map(bool, found)) < files * 1.2
    assert f"{len(MATRIX)} releases" in PAGE
    assert f"{len(SCENARIOS)} scenarios" in PAGE
    assert f"{len(UPGRADES)} upgrades" in PAGE
    assert f"{len([*cells()])} cells" in PAGE
