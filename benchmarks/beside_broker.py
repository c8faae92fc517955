"""
What a real broker's producers feel of a run beside it: how long a send takes, at the median and for one in a hundred.

    python -m benchmarks.beside_broker [--mib N] [--rate SENDS] [--seconds N] [--release X.Y.Z] [--cold] [--folder DIR]

Five times, on one broker with a log of N MiB and a steady load: alone; while `ingest` brings the log into a lake with
the manners that it has beside a broker; while `ingest --follow` goes on with that lake every second; while somebody
copies the log to nowhere, at full speed; alone again. Each send's time counts from when it was due, so that one that
waits for another is not forgotten. `--cold`: what can be dropped of the log's page cache is dropped before each; pages
that the broker has mapped stay.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, Recipe, drop_from_cache, make_store
from tests.oracle.process import AT_FULL_SPEED, running
from tests.oracle.sessions import ClientMessage, RealBroker, open_broker
from tests.oracle.settings import REAL_GEOMETRY

TOPIC = "Beside"
_RECORD_SIZE = 1024
_BODY_SIZE = _RECORD_SIZE - 300
_SLICE = 0.5  # seconds of sends at a time
_MOST_OF_ONE = 1000  # sends a second, of which each waits for the one before
_PARTS = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
_ROOT = Path(__file__).parents[1]


def store_of_its_own(mib: int, folder: Path) -> Path:
    """Return a store that a broker may write into: sealed segments are shared with the one that is kept."""
    made = make_store(Recipe(mib << 20, _RECORD_SIZE), folder)
    store = folder / "beside-broker"
    shutil.rmtree(store, ignore_errors=True)
    (store / "commitlog").mkdir(parents=True)
    *sealed, newest = sorted((made / "commitlog").iterdir())
    for segment in sealed:
        (store / "commitlog" / segment.name).hardlink_to(segment)
    subprocess.run(["cp", "--sparse=always", newest, store / "commitlog" / newest.name], check=True)
    return store


def loaded(broker: RealBroker, rate: int, work: Callable[[], object], body_size: int = _BODY_SIZE) -> dict[str, Any]:
    """Send at a steady rate while *work* is done; return what the sends took."""
    over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except (OSError, subprocess.CalledProcessError) as error:
            failed.append(error)
        finally:
            over.set()

    worker = threading.Thread(target=run)
    message = ClientMessage(TOPIC, os.urandom(body_size), "TagA", "beside")
    began = time.perf_counter()
    worker.start()
    taken: list[int] = []
    while not over.is_set():
        count = max(int(rate * _SLICE), 1)
        taken += broker.send_steadily(message, rate=rate, count=count, senders=rate // _MOST_OF_ONE + 1)
    worker.join()
    seconds = time.perf_counter() - began
    if failed:
        raise failed[0]
    taken.sort()
    return {
        "sends": len(taken),
        "seconds": round(seconds, 1),
        **{name: round(taken[int(len(taken) * part)] / 1000, 2) for name, part in _PARTS.items()},
    }


def ingest(store: Path, lake: Path, release: str, *more: str) -> None:
    """Run the command, as a scheduler does."""
    command = [sys.executable, "-m", "jobs.main", "ingest", str(store), "--lake", str(lake), "--release", release]
    subprocess.run([*command, "--quiet", *more], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)


def copy_to_nowhere(store: Path, seconds: float) -> None:
    """Read every byte as fast as they come, as `cp` to another disk does, for some seconds at least."""
    until = time.monotonic() + seconds
    with Path(os.devnull).open("wb") as nowhere:
        while time.monotonic() < until:
            subprocess.run(["cat", *sorted((store / "commitlog").iterdir())], stdout=nowhere, check=True)


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=8192, rate=500, seconds=30.0, release=RELEASE, cold=False, folder=FOLDER)
    store, lake = store_of_its_own(given.mib, given.folder), given.folder / "beside-lake"
    phases: dict[str, Callable[[], object]] = {
        "broker alone": lambda: time.sleep(given.seconds),
        "beside ingest": lambda: ingest(store, lake, given.release),
        "beside a command that follows": lambda: ingest(
            store, lake, given.release, "--follow", "--every", "1s", "--until", f"+{max(int(given.seconds), 1)}s"
        ),
        "beside a copy at full speed": lambda: copy_to_nowhere(store, given.seconds),
        "broker alone again": lambda: time.sleep(given.seconds),
    }
    seen: dict[str, dict[str, Any]] = {}
    shutil.rmtree(lake, ignore_errors=True)
    home = given.folder / "home"
    opened = partial(open_broker, home=home)
    with running(given.release, AT_FULL_SPEED) as driver, opened(driver, store, REAL_GEOMETRY) as broker:
        broker.drain()
        broker.make_topic(TOPIC, 4)
        loaded(broker, given.rate, lambda: time.sleep(min(given.seconds, 5)))  # compilers and caches warm up
        for name, work in phases.items():
            if given.cold:
                drop_from_cache(store / "commitlog")
            seen[name] = loaded(broker, given.rate, work)
    shutil.rmtree(store)
    shutil.rmtree(lake, ignore_errors=True)
    result = {
        "release": given.release,
        "mib": given.mib,
        "sends_a_second": given.rate,
        "page_cache": "cold" if given.cold else "warm",
        "phases": seen,
    }
    answer(result)


if __name__ == "__main__":
    main()
