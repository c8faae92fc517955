"""
Pictures for the documentation: `python -m tests.pictures` renders verbs' output and pages in Chromium.

Reports are of a healthy store that is ingested, a damaged one that is verified, and one that lost an index file and is
rebuilt; `browse` shows a store and its lake. Pages have the widths of a desk, a tablet and a phone, light or dark.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from html import escape
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.command import cli
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.rebuild import index
from jobs.report import of_ingest, of_store
from jobs.report.document import Report, write_report
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from tests.golden import unpack
from tests.support.browser import browser
from tests.support.commands import without_spark
from tests.support.pages import served
from tests.support.stores import flip

_PROGRAM = "./spark-submit.sh"
_COLUMNS, _LINE, _GLYPH = 100, 17, 7.83
_COLOURS = {"31": "#f47067", "32": "#57ab5a", "33": "#c69026", "34": "#539bf5", "35": "#b083f0", "36": "#39c5cf"}
_STYLED = re.compile(r"\x1b\[([\d;]*)m")


class Terminal(StringIO):
    """Takes what a command prints, and knows colours."""

    def isatty(self) -> bool:
        return True


def printed(command: str = "inspect STORE", columns: int = _COLUMNS, *, with_gaps: bool = False) -> str:
    with tempfile.TemporaryDirectory() as folder:
        store = unpack("b551-base", Path(folder))
        if with_gaps:
            shutil.rmtree(store / "consumequeue" / "T1" / "1")
            sorted((store / "index").iterdir())[2].unlink()
        with (
            patch("sys.stdout", Terminal()) as terminal,
            patch.dict("os.environ", RMQ_LAKE_PROGRAM=_PROGRAM, COLUMNS=str(columns)),
            pytest.MonkeyPatch.context() as patched,
        ):
            without_spark(patched)
            places = {"STORE": str(store), "LAKE": f"{folder}/lake"}
            cli.main([places.get(word, word) for word in command.split()])
        return terminal.getvalue().replace(str(store), "/data/store").replace(f"{folder}/lake", "/data/lake")


def drawn(text: str, command: str = "inspect STORE", columns: int = _COLUMNS) -> str:
    typed = command.replace("STORE", "/data/store").replace("LAKE", "/data/lake")
    lines = [f"$ {_PROGRAM} {typed}", *(cut(line, columns) for line in text.rstrip().splitlines())]
    width, height = round(columns * _GLYPH + 32), len(lines) * _LINE + 28
    rows = (
        f'<text x="16" y="{24 + number * _LINE}" xml:space="preserve">{_coloured(line)}</text>'
        for number, line in enumerate(lines)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            '  font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#adbac7">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#22272e"/>',
            *rows,
            "</svg>\n",
        ]
    )


def cut(line: str, columns: int = _COLUMNS) -> str:
    plain = _STYLED.sub("", line)
    return line if len(plain) <= columns else f"{plain[: columns - 1]}…"


def _coloured(line: str) -> str:
    parts = _STYLED.split(line)
    spans = [escape(parts[0])]
    for code, text in zip(parts[1::2], parts[2::2], strict=True):
        colour = next((_COLOURS[one] for one in code.split(";") if one in _COLOURS), None)
        spans.append(f'<tspan fill="{colour}">{escape(text)}</tspan>' if colour and text else escape(text))
    return "".join(spans)


PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTHS = (1280, 768, 390)
_LOG_BYTE = 21_000  # of a record's body, in the second segment


def reports(folder: Path) -> Iterator[Report]:
    healthy, damaged, lossy = (unpack("b551-base", folder / name) for name in ("healthy", "damaged", "lossy"))
    segment = sorted((damaged / "commitlog").iterdir())[1]
    flip(segment, _LOG_BYTE % segment.stat().st_size, 0xFF)
    shutil.rmtree(damaged / "consumequeue" / "T1" / "1")
    for store in (damaged, lossy):
        sorted((store / "index").iterdir())[2].unlink()
    workers = SerialWorkers()
    lake = str(folder / "lake")
    summary = ingest(IngestRequest(str(healthy), lake, "broker-a", hash_slots=100, index_num=20), workers)
    yield of_ingest.report_of_ingest(summary, Lake(lake))
    yield of_store.report_of_verify(verify(VerifyRequest(str(damaged)), workers), 1.5)
    result = index.rebuild_index(index.RebuildIndexRequest(str(lossy), str(folder / "new"), lost_only=True), workers)
    yield of_store.report_of_rebuild(result, result.result(1.5))


def picture_reports(pictures: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        browser() as shown,
        patch.dict("os.environ", RMQ_LAKE_PROGRAM="./spark-submit.sh"),
    ):
        folder = Path(name) / "data"
        for report in reports(folder):
            write_report(folder / report.verb, report)
            page = folder / report.verb / "report.html"
            page.write_text(page.read_text(encoding="utf-8").replace(str(folder), "/data"), encoding="utf-8")
            shots = {str(width): width for width in WIDTHS} | ({"dark": WIDTHS[0]} if report.verb == "verify" else {})
            for shot, width in shots.items():
                shown.resize(width, dark=shot == "dark")
                shown.open(page.as_uri())
                picture = pictures / f"report-{report.verb}-{shot}.png"
                picture.write_bytes(shown.look(width, dark=shot == "dark"))


# Each page of a store as a desk shows it, and some pages of its lake, of narrow screens and of dark ones.
SHOTS = {
    "store": {
        "front": ("/", WIDTHS[0], False),
        "messages": ("/messages?topic=T1", WIDTHS[0], False),
        "message": ("MESSAGE&chains=1", WIDTHS[0], False),
        "topics": ("/topics", WIDTHS[0], False),
        "groups": ("/groups", WIDTHS[0], False),
        "unfinished": ("/unfinished", WIDTHS[0], False),
        "phone": ("MESSAGE", WIDTHS[2], False),
    },
    "lake": {
        "front": ("/", WIDTHS[0], True),
        "messages": ("/messages", WIDTHS[1], True),
        "runs": ("/tables/runs", WIDTHS[0], False),
    },
}


def picture_pages(pictures: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = unpack("b551-base", folder).rename(folder / "store")
        asked = IngestRequest(str(store), str(folder / "lake"), "broker-a", hash_slots=100, index_num=20)
        ingest(asked, SerialWorkers())
        sorted((store / "index").iterdir())[8].unlink()
        shutil.rmtree(store / "consumequeue" / "T3" / "1")
        for kind, shots in SHOTS.items():
            named = patch.dict("os.environ", RMQ_LAKE_PROGRAM="rmq-lake")
            with named, served(folder / kind) as pages, browser() as page:
                page.open(pages.address)
                message = (
                    "/message?" + pages.get("/messages?topic=T1").text.partition('href="/message?')[2].partition('"')[0]
                )
                for view, (path, width, dark) in shots.items():
                    page.resize(width, dark=dark)
                    page.open(f"{pages.base}{path.replace('MESSAGE', message)}")
                    page.value(f"document.body.innerHTML = document.body.innerHTML.replaceAll('{folder}', '/data')")
                    (pictures / f"browse-{kind}-{view}.png").write_bytes(page.look(width, height=1100, dark=dark))


def main() -> None:
    for shown in ("inspect STORE", "verify STORE", "ingest STORE --lake LAKE"):
        for width in (80, 120):
            picture = PICTURES / f"{shown.partition(' ')[0]}-{width}.svg"
            picture.write_text(drawn(printed(shown, width, with_gaps=True), shown, width), encoding="utf-8")
    picture_reports(PICTURES)
    picture_pages(PICTURES)


if __name__ == "__main__":
    main()
