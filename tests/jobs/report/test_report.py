"""Reports: the same facts as JSON and as HTML, for any names in a store."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jobs.console.process import tool_command
from jobs.lake.lake import Lake
from jobs.report.document import Bars, Facts, Grid, Report, Timeline, render_page, write_report
from jobs.report.ingest_report import build_ingest_report
from jobs.report.store_reports import build_verification_report
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from tests.golden import StoreOf
from tests.rmq_formats.builders import a_record
from tests.support.browser import browser, needs_chromium
from tests.support.lakes import ingest_store
from tests.support.query_stores import write_segment
from tests.support.stores import flip, segments_of

HOSTILE = "<script>alert('x')</script>&\"<img src=x onerror=alert(1)>"


class _Tags(HTMLParser):
    """Collects what elements a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))


def _tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(html)
    return parser.seen


def _ingested(store: Path, lake: Path) -> Report:
    summary = ingest_store(store, lake, "broker-a", hash_slots=100, index_num=20)
    return build_ingest_report(summary, Lake(str(lake)))


@pytest.fixture(scope="module")
def report(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return _ingested(golden("b551-base"), tmp_path_factory.mktemp("report") / "lake")


def _hostile_store(folder: Path) -> Path:
    return write_segment(folder, [a_record(topic=HOSTILE, properties={"KEYS": HOSTILE}) for _ in range(3)])


def test_the_report_shows_the_figures_of_its_run(report: Report) -> None:
    parts = {part.title: part for part in report.parts}
    facts, topics, index = parts["This run"], parts["Messages by topic"], parts["Index files of this run"]
    timeline = parts["Messages over store time"]

    assert isinstance(facts, Facts)
    assert isinstance(topics, Bars)
    assert isinstance(timeline, Timeline)
    assert isinstance(index, Grid)
    assert (report.severity, report.verdict) == ("not verified", "done, no problems found")
    assert report.headline.startswith("65 messages, 56.2 KiB (")
    assert facts.values["messages"] == 65
    assert topics.values["T1"] == 49
    assert sum(sum(counts) for counts in timeline.series.values()) == 65
    assert index.rows[0][-1] == "02fde4ba801665b3"  # as in the store's PROVENANCE
    assert isinstance(parts["Producers"], Bars)
    assert sum(parts["Producers"].values.values()) == 65


def test_damage_is_shown_with_its_bytes(store: Path, tmp_path: Path) -> None:
    flip(segments_of(store)[0], 90, 0xFF)
    report = _ingested(store, tmp_path / "lake")
    (remedy,) = report.remedies
    damage = remedy.findings

    assert isinstance(damage, Grid)
    assert report.severity == "damage"
    assert [("damage", 0, 242)] == [row[:3] for row in damage.rows]
    assert str(damage.rows[0][4]).startswith("00 00 00 f2 da a3 20 a7")
    assert remedy.commands[0].endswith(f"inspect {store} --deep")


def test_names_from_a_store_are_escaped(tmp_path: Path) -> None:
    html = render_page(_ingested(_hostile_store(tmp_path / "store"), tmp_path / "lake"))
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


def test_findings_are_listed_below_their_remedies(store: Path) -> None:
    """Browsers break lines after a hyphen, inside an option, too: each word of a command is a piece of its own."""
    sorted((store / "index").iterdir())[2].unlink()
    shutil.rmtree(store / "consumequeue" / "T1" / "1")
    verdict = verify(VerifyRequest(str(store)), SerialWorkers())
    report = build_verification_report(verdict, 2.0)
    kinds = [[row[1] for row in remedy.findings.rows] for remedy in report.remedies if remedy.findings]

    assert [["missing_queue", "missing_index_entries"]] == kinds
    assert [[f"{tool_command()} repair {store} --out REPAIR"]] == [list(remedy.commands) for remedy in report.remedies]
    assert (report.severity, report.verdict) == ("contradiction", "contradiction")
    assert report.headline.startswith("2 problems found in 65 records, 65 queue units and 286 index keys, 56.2 KiB (")
    assert render_page(report).index("missing_queue") < render_page(report).index("Parts of the store")
    commands = [command for remedy in report.remedies for command in remedy.commands]
    shown = re.findall(r"<pre>(.*?)</pre>", render_page(report), re.DOTALL)
    assert [command.split(" ") for command in commands] == [
        re.findall(r"<span>(.*?)</span>", text, re.DOTALL) for text in shown
    ]


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("kind", ["real", "hostile"])
def test_a_browser_shows_the_page_without_an_error(golden: StoreOf, tmp_path: Path, kind: str) -> None:
    store = golden("b551-base") if kind == "real" else _hostile_store(tmp_path / "store")
    write_report(tmp_path, _ingested(store, tmp_path / "lake"))
    with browser() as shown:
        for width in (1200, 500):
            shown.resize(width)
            shown.open((tmp_path / "report.html").as_uri())
            text = shown.value("document.documentElement.outerHTML")

            assert [] == shown.errors
            assert "broker-a" in text
            assert "<svg" in text
            assert ("alert" not in text) == (kind == "real")
            assert not {"script", "img"} & {tag for tag, _ in _tags(text)}
