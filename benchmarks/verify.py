"""
What `verify` of a healthy store takes, log, queues and index, beside that of another checkout: commands take turns.

    python -m benchmarks.verify [--mib N] [--runs N] [--folder DIR] [--beside CHECKOUT]

Each run is a process of its own without Spark, which verifies twice: the second time, which counts, nothing is loaded
any more. Processor seconds count, which other work on the machine moves less than the time by the clock.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.broker import RELEASE
from benchmarks.costs import make
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, Recipe

_ROOT = Path(__file__).parents[1]
_VERIFY = """
import sys, time
from jobs.products.index.settings import Wanted
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
for _ in range(2):
    began = time.process_time()
    found = verify(VerifyRequest(sys.argv[1], Wanted(release=sys.argv[2])), OneByOne())
assert not found.findings, found.findings
print(time.process_time() - began)
"""


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=512, runs=7, folder=FOLDER, beside=Path)
    store = make(Recipe(given.mib << 20, 1024), given.folder)
    checkouts = [_ROOT] if given.beside is None else [_ROOT, given.beside]
    for checkout in checkouts:
        _core_seconds(store, checkout)  # compiles
    runs = [[_core_seconds(store, checkout) for checkout in checkouts] for _ in range(given.runs)]
    peers = {
        _commit(checkout): {"core_s": sorted(own), "median": median(own)}
        for checkout, own in zip(checkouts, zip(*runs, strict=True), strict=True)
    }
    result = {"mib": given.mib, "runs": given.runs, "load": os.getloadavg(), "peers": peers}
    answer(result)


def _core_seconds(store: Path, checkout: Path) -> float:
    command = [sys.executable, "-c", _VERIFY, str(store), RELEASE]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return round(float(done.stdout), 2)


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
