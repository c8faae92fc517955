"""
Pictures of the report pages: `python -m tests.report_pages` makes a report of each kind and shows it to a Chromium.

Three stores: a healthy one is ingested, a damaged one verified, one that lost an index file is rebuilt. Each page is
taken at the widths of a desk, a tablet and a phone; the desk's is taken dark, too.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.rebuild import index
from jobs.report import of_ingest, of_rebuild_index, of_verify
from jobs.report.model import Report
from jobs.report.output import write_report
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.golden import unpack
from tests.support.browser import browser
from tests.support.stores import flip

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
    workers = OneByOne()
    lake = str(folder / "lake")
    summary = ingest(IngestRequest(str(healthy), lake, "broker-a", hash_slots=100, index_num=20), workers)
    yield of_ingest.report_of(summary, Lake(lake))
    yield of_verify.report_of(verify(VerifyRequest(str(damaged)), workers), 1.5)
    result = index.rebuild(index.RebuildIndexRequest(str(lossy), str(folder / "new"), lost_only=True), workers)
    yield of_rebuild_index.report_of(result, result.result(1.5))


def main(pictures: Path) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PICTURES)
