"""docs/internals/findings.md against the kinds of findings that the code has."""

import re
from pathlib import Path

from jobs.products.index.explanation import Verdict
from jobs.products.queues.differences import DifferenceKind

ROOT = Path(__file__).parents[3]


def test_every_kind_of_finding_is_on_its_page() -> None:
    rows = re.findall(
        r"^\| (`.+?) \|", (ROOT / "docs/internals/findings.md").read_text().partition("## Log")[2], re.MULTILINE
    )
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    modules = [ROOT / "jobs/lake/findings.py", *(ROOT / "jobs/verify").glob("*.py")]
    constants = {
        kind
        for module in modules
        for kind in re.findall(r'^[A-Z]\w+ = "([a-z]+(?:_[a-z]+)*)"', module.read_text(), re.MULTILINE)
    }
    of_files = {one.name.lower() for one in Verdict if not one.is_explained or one is Verdict.OVERWRITTEN}

    assert constants | {kind.value for kind in DifferenceKind} | of_files == named
