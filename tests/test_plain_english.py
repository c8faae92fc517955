"""Words that people search for: the list of CONTRIBUTING, kept at zero where it is."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PAGES = ("*.py", "*.md", "*.toml", "Makefile")
_SPARED = ("CONTRIBUTING.md", "tests/test_plain_english.py", "tests/golden/")  # the first two name the words
_INSTEAD = {
    r"\banew\b": "again, from scratch",
    r"\btells? whether\b": "return whether",
    r"\bforesee(?:s|n|ing)?\b": "estimate, dry run",
    r"\bwholeness\b": "integrity",
    r"\bwhose eyes\b": "as the broker of release X formats it",
    r"\bholds? [^.\n]{1,40} against\b": "compare … with",
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    listed = subprocess.check_output(["git", "ls-files", *_PAGES], cwd=ROOT, text=True).splitlines()
    names = [name for name in listed if not name.startswith(_SPARED) and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


@pytest.mark.parametrize("pattern", _INSTEAD)
def test_a_word_of_the_list_is_written_the_plain_way(pattern: str, texts: dict[str, str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE)
    ]

    assert [] == found, f"write: {_INSTEAD[pattern]}"


# Docstrings that begin with 'what', 'where' or 'who' for a thing that has a name.
_UNNAMED = re.compile(
    r'"""(?:(?:return|yield|say|note|print|read|collect|find|plan|name) )?(?:what(?:ever)?|where|who(?:ever)?)\b',
    re.IGNORECASE,
)


def test_docstrings_name_the_thing(texts: dict[str, str]) -> None:
    sources = {name: text for name, text in texts.items() if name.startswith(("jobs/", "rmq_formats/"))}
    found = [f"{name}: {match[0]}" for name, text in sources.items() for match in _UNNAMED.finditer(text)]

    assert [] == found, "say what is returned or done by its name"
