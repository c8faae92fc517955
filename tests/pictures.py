"""
Take the screenshots of the documentation in Chromium: `python -m tests.pictures`.

Chromium needs a font with Chinese characters. The pictures show the pages of `browse` for a store that lost an index
file and a queue, and for its lake.
"""

import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

from jobs.ingest.run import ingest
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers
from tests.golden import unpack
from tests.support.browser import browser
from tests.support.pages import serve_pages

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTHS = (1280, 768, 390)

# Path, width and dark mode of each picture.
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
        directory = Path(name)
        store = unpack("b551-base", directory).rename(directory / "store")
        asked = IngestRequest(str(store), str(directory / "lake"), "broker-a", hash_slots=100, index_num=20)
        ingest(asked, SerialWorkers())
        sorted((store / "index").iterdir())[8].unlink()
        shutil.rmtree(store / "consumequeue" / "T3" / "1")
        for kind, shots in SHOTS.items():
            named = patch.dict("os.environ", RMQ_LAKE_PROGRAM="rmq-lake")
            with named, serve_pages(directory / kind) as pages, browser() as page:
                page.open(pages.address)
                message = (
                    "/message?" + pages.get("/messages?topic=T1").text.partition('href="/message?')[2].partition('"')[0]
                )
                for view, (path, width, dark) in shots.items():
                    page.resize(width, dark=dark)
                    page.open(f"{pages.base}{path.replace('MESSAGE', message)}")
                    page.value(f"document.body.innerHTML = document.body.innerHTML.replaceAll('{directory}', '/data')")
                    (pictures / f"browse-{kind}-{view}.png").write_bytes(
                        page.take_screenshot(width, height=1100, dark=dark)
                    )


if __name__ == "__main__":
    picture_pages(PICTURES)
