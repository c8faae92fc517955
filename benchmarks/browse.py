"""
Look at a lake and at its store as pages: time, processor time and memory of each view, and of `query story`.

    python -m benchmarks.browse [--entries N] [--mib N] [--folder DIR]

The lake is what `ingest` makes of a generated log whose messages have nine keys and a unique one, with every table; the
store beside it is a smaller log that has its queues and its index. Each view is asked of one server, twice. "First" is
the time until something is seen: the page, or one that says it will come.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from benchmarks.broker import RELEASE
from benchmarks.lakes import bring, kept, spark_workers
from benchmarks.measuring import answer, asked, cpu_of
from benchmarks.stores import FOLDER, LiveStore, Recipe, make_store
from jobs.products.index.settings import Wanted
from jobs.products.registry import NAMES
from jobs.rebuild.index import RebuildIndexRequest, rebuild
from jobs.store.workers import OneByOne

_KEYS = 9
_RECORD_SIZE = 448
_TOPICS = 8
_RUNS = 5
_MIB = 1 << 20
_APPENDED = 4096  # records that a store gets at one time


def make_lake(folder: Path, messages: int) -> Path:
    """Ingest a generated store, unless its lake is there; the store goes."""

    def make(lake: Path) -> None:
        recipe = Recipe(messages * _RECORD_SIZE, _RECORD_SIZE, compressible=True, topics=_TOPICS, keys=_KEYS)
        store = make_store(recipe, folder)
        (store / "config").mkdir(exist_ok=True)
        of_queues = {str(queue): messages // _TOPICS // recipe.queues // 2 for queue in range(recipe.queues)}
        progress = {f"Bench{topic:03}@billing": of_queues for topic in range(_TOPICS)}
        (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": progress}))
        bring(store, lake, spark_workers(), NAMES)
        shutil.rmtree(store)

    return kept(folder / f"browsed-lake-{messages}", make)


def _make_store(folder: Path, mib: int) -> Path:
    """Write a log of so many MiB, its queues and its index, unless they are there."""

    def make(store: Path) -> None:
        live = LiveStore(store, Recipe(0, _RECORD_SIZE, compressible=True, topics=_TOPICS, keys=_KEYS))
        for _ in range(max(mib * _MIB // _RECORD_SIZE // _APPENDED, 1)):
            live.append(_APPENDED)
        (store / "abort").unlink()
        (store / "checkpoint").write_bytes(bytes(4096))
        rebuild(RebuildIndexRequest(str(store), str(store / "index"), Wanted(release=RELEASE)), OneByOne())

    return kept(folder / f"browsed-store-{mib}", make)


class _Answer(NamedTuple):
    """What a page was, when something was seen of it, and when all of it."""

    text: str
    first_s: float
    whole_s: float


class _Server:
    """The pages of a place, served by a process of its own."""

    def __init__(self, process: int, address: str) -> None:
        self.process = process
        self._port = urlsplit(address).port or 0
        self._cookie = f"rmq_lake_{self._port}={address.partition('=')[2]}"

    def ask(self, path: str) -> _Answer:
        began, first = time.perf_counter(), 0.0
        while True:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=600)
            connection.request("GET", path, headers={"Cookie": self._cookie})
            answer = connection.getresponse()
            first = first or time.perf_counter() - began
            text = answer.read().decode()
            connection.close()
            if answer.status == HTTPStatus.SEE_OTHER:
                path = answer.headers["Location"]
            elif answer.status == HTTPStatus.OK:
                return _Answer(text, first, time.perf_counter() - began)
            elif answer.status != HTTPStatus.ACCEPTED:
                raise SystemExit(f"{path}: {answer.status} {text}")

    def costs(self, path: str) -> dict[str, float]:
        """Ask twice, and return what both answers cost: the first one, and the second one as *again*."""
        Path(f"/proc/{self.process}/clear_refs").write_text("5")  # the peak of memory is that of this view
        figures: dict[str, float] = {}
        for end in ("", "_again"):
            before = cpu_of(self.process) or 0
            answer = self.ask(path)
            cpu = (cpu_of(self.process) or 0) - before
            found = {"first_s": answer.first_s, "whole_s": answer.whole_s, "cpu_s": cpu}
            figures |= {f"{name}{end}": round(value, 3) for name, value in found.items()}
        status = Path(f"/proc/{self.process}/status").read_text()
        return {**figures, "peak_mib": int(status.partition("VmHWM:")[2].split()[0]) // 1024}


@contextmanager
def _served(place: Path) -> Iterator[_Server]:
    command = [sys.executable, "-m", "jobs.main", "browse", "--no-open", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Server(process.pid, process.stdout.readline().strip() if process.stdout else "")
        finally:
            process.send_signal(signal.SIGINT)


def _views(server: _Server, *, is_lake: bool) -> dict[str, str]:
    """Return the address of each view by its name; messages are those of the newest page of a topic."""
    page = server.ask("/messages?topic=Bench003").text
    ids = re.findall(r'<td class="id"[^>]*>([^<]+)<', page)
    times = re.findall(r"since=(\d+)&amp;until=(\d+)", page)
    messages = re.findall(r'href="(/message\?at=[^"]+)"', page)
    key = re.findall(r"order-\d+", page)[0]
    following = re.findall(r'rel="next" href="([^"]+)"', page)[0].replace("&amp;", "&")
    since, until = times[len(times) // 2]
    of_lake = {
        "one message, its chains": f"{messages[1]}&chains=1",
        "index_entries": "/tables/index_entries",
        "consume_queue": "/tables/consume_queue?status=missing",
    }
    return {
        "overview": "/",
        "messages": "/messages",
        "messages of a topic": "/messages?topic=Bench003",
        "the next page": following,
        "messages of a time": f"/messages?{urlencode({'since': since, 'until': until})}",
        "messages under a key": f"/messages?{urlencode({'topic': 'Bench003', 'key': key})}",
        "messages with words": "/messages?words=warehouse+shipped+paid",
        "one message": messages[0],
        "a message by its id": f"/find?id={ids[-1]}",
        "topics": "/topics",
        "consumer groups": "/groups",
        "unfinished": "/unfinished",
        **(of_lake if is_lake else {}),
    }


def _story(place: Sequence[str], unique: str) -> dict[str, float]:
    """Return the median costs of the whole command over some runs."""
    walls, cpus, peaks = [], [], []
    for _ in range(_RUNS):
        command = [sys.executable, "-m", "jobs.main", "query", "story", unique, *place, "-q"]
        program = (
            "import resource, subprocess, sys, time\nbegan = time.perf_counter()\n"
            "done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True)\n"
            "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
            "print(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=True)
        wall, cpu, peak = map(float, done.stdout.split())
        walls.append(wall)
        cpus.append(cpu)
        peaks.append(peak)
    return {"wall_s": round(median(walls), 3), "cpu_s": round(median(cpus), 3), "peak_mib": round(max(peaks))}


def _measure(place: Path, *, is_lake: bool) -> dict[str, object]:
    with _served(place) as server:
        views = _views(server, is_lake=is_lake)
    figures: dict[str, object] = {}
    with _served(place) as server:
        for name, path in views.items():
            figures[name] = server.costs(path)
    unique = views["a message by its id"].partition("=")[2]
    return {**figures, "query story": _story(("--lake" if is_lake else "--store", str(place)), unique)}


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, folder=FOLDER, entries=100_000_000, mib=1024)
    given.folder.mkdir(parents=True, exist_ok=True)
    messages = given.entries // (_KEYS + 1)
    lake, store = make_lake(given.folder, messages), _make_store(given.folder, given.mib)
    figures = {
        "messages": messages,
        "entries": messages * (_KEYS + 1),
        "store_mib": given.mib,
        "lake": _measure(lake, is_lake=True),
        "store": _measure(store, is_lake=False),
    }
    answer(figures)


if __name__ == "__main__":
    main()
