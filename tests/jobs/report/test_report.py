"""Reports: the same facts as JSON and as HTML, for any names in a store."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jobs.lake.lake import Lake
from jobs.report import Facts, Report, render_page, write_report
from jobs.report.ingest_report import build_ingest_report
from tests.golden import StoreOf
from tests.rmq_formats.builders import make_record
from tests.support.lakes import ingest_store
from tests.support.query_stores import write_segment

HOSTILE = "<script>alert('x')</script>&\"<img src=x onerror=alert(1)>"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def _tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(html)
    return parser.seen


def _ingest_report(store: Path, lake: Path) -> Report:
    summary = ingest_store(store, lake, "broker-a", hash_slots=100, index_num=20)
    return build_ingest_report(summary, Lake(str(lake)), 1.5)


@pytest.fixture(scope="module")
def report(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return _ingest_report(golden("b551-base"), tmp_path_factory.mktemp("report") / "lake")


def test_names_from_a_store_are_escaped(tmp_path: Path) -> None:
    records = [make_record(topic=HOSTILE, properties={"KEYS": HOSTILE}) for _ in range(3)]
    html = render_page(_ingest_report(write_segment(tmp_path / "store", records), tmp_path / "lake"))
    tags = _tags(html)

    assert not {"script", "img", "iframe", "link"} & {tag for tag, _ in tags}
    assert not [attributes for _, attributes in tags if any(name.startswith("on") for name in attributes)]
    assert "&lt;script&gt;" in html


def test_names_from_a_store_cannot_inject_code_into_a_page() -> None:
    shown = render_page(
        Report("ingest", "store", "healthy", "healthy", "all", (Facts("names", {"topic": "T\x1b[2J\u202e"}),))
    )

    assert "T\\x1b[2J\\u202e" in shown
    assert all(character.isprintable() for character in shown.replace("\n", ""))


def test_the_page_is_self_contained_and_the_document_has_its_data(report: Report, tmp_path: Path) -> None:
    write_report(tmp_path / "report", report)
    document, html = json.loads((tmp_path / "report" / "report.json").read_text()), render_page(report)
    tags = _tags(html)

    assert not re.search(r"(src|href)\s*=|url\(|@import", html)
    assert all(attributes.get("aria-label") for tag, attributes in tags if tag == "svg")
    assert all(attributes.get("scope") == "col" for tag, attributes in tags if tag == "th")
    assert ("html", {"lang": "en"}) in tags
    assert document["version"] == 2
    assert [part["title"] for part in document["parts"]] == [part.title for part in report.parts]
    assert {"report.json", "report.html"} == {path.name for path in (tmp_path / "report").iterdir()}
