"""
What a small run takes, from the command to its end: three messages into all tables, caches warm.

    python -m benchmarks.small_run [--runs N]

The command is a user's: a clone of this commit, in the environment that spark-submit.sh makes from `requirements.lock`.
Each run is a process of its own, and its lake is new. What a run says of its own steps is in `steps_s`; the rest is the
launcher, imports and the end.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import answer, asked
from benchmarks.stores import Recipe, make_store

_ROOT = Path(__file__).parents[1]
_RECORD_SIZE = 1024


def main() -> None:
    """Print the figures as JSON."""
    runs = asked(__doc__, runs=7).runs
    with tempfile.TemporaryDirectory() as folder:
        checkout, lakes = Path(folder, "checkout"), Path(folder, "lakes")
        subprocess.run(["git", "clone", "--quiet", str(_ROOT), str(checkout)], check=True)
        store = make_store(Recipe(3 * _RECORD_SIZE, _RECORD_SIZE), Path(folder))
        for warming in range(2):  # set-up and compiling; the first run that finds both
            _run(checkout, store, lakes / f"warming-{warming}")
        seen = [_run(checkout, store, lakes / str(number)) for number in range(runs)]
    walls = [wall for wall, _ in seen]
    steps = [summary["seconds"] for _, summary in seen]
    result = {
        "runs": runs,
        "messages": seen[0][1]["messages"],
        "wall_s": round(median(walls), 2),
        "fastest_s": round(min(walls), 2),
        "slowest_s": round(max(walls), 2),
        "steps_s": {step: round(median(one[step] for one in steps), 2) for step in steps[0]},
    }
    answer(result)


def _run(checkout: Path, store: Path, lake: Path) -> tuple[float, dict[str, Any]]:
    """Run the command; return how long it took, and what it says."""
    began = time.perf_counter()
    command = [str(checkout / "spark-submit.sh"), "ingest", str(store), "--lake", str(lake), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


if __name__ == "__main__":
    main()
