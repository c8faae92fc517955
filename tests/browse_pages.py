"""
Pictures of the pages of `browse`: `python -m tests.browse_pages` shows a store and its lake to a Chromium.

The store has lost an index file and a queue. Each page is taken at one of three widths, light or dark.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.workers import OneByOne
from tests.golden import unpack
from tests.report_pages import PICTURES, WIDTHS
from tests.support.browser import browser
from tests.support.pages import served

SHOTS = {
    "store": (("front", "/", WIDTHS[0], False), ("messages", "/messages?topic=T1", WIDTHS[2], False)),
    "lake": (("messages", "/messages", WIDTHS[1], True), ("front", "/", WIDTHS[0], True)),
}


def main(pictures: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = unpack("b551-base", folder).rename(folder / "store")
        asked = IngestRequest(str(store), str(folder / "lake"), "broker-a", hash_slots=100, index_num=20)
        ingest(asked, OneByOne())
        sorted((store / "index").iterdir())[8].unlink()
        shutil.rmtree(store / "consumequeue" / "T3" / "1")
        for kind, shots in SHOTS.items():
            with served(folder / kind) as pages, browser() as page:
                page.open(pages.address)
                for view, path, width, dark in shots:
                    page.resize(width, dark=dark)
                    page.open(f"{pages.base}{path}")
                    page.value(f"document.body.innerHTML = document.body.innerHTML.replaceAll('{folder}', '/data')")
                    picture = f"browse-{kind}-{view}-{width}{'-dark' if dark else ''}.png"
                    (pictures / picture).write_bytes(page.look(width, height=1100, dark=dark))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PICTURES)
