"""
What a commit costs, by `deltalake` and by Spark's own Delta, which writes the tables with features of others.

    python -m benchmarks.commits [--commits N] [--files N]

Each commit adds so many files of the same small table under the next number of one application. The tables differ in
one thing: row tracking, which `deltalake` does not write. The first commit of each way does not count: it makes the
table, and after it Spark starts.
"""

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.measuring import asked, measured, provenance
from jobs.lake.commit import commit
from jobs.lake.lake import Lake
from jobs.lake.spark_writer import connected
from jobs.lake.table_file import Action, TableFile
from jobs.lake.tables import RUNS


def measure(folder: Path, commits: int, files: int) -> dict[str, dict[str, float]]:
    """Return the median of each way's commits."""
    costs = {}
    for way in ("deltalake", "spark"):
        lake = Lake(str(folder / way))
        times = []
        for number in range(commits + 1):
            written = [_written(lake, f"{number}-{file}.parquet") for file in range(files)]
            with measured() as cost:
                commit(lake, RUNS, filter(None, written), ("benchmark", number + 1), {})
            times.append(cost)
            if number == 0 and way == "spark":
                table = f"delta.`{folder}/{way}/{RUNS.name}`"
                properties = "('delta.enableRowTracking' = 'true')"
                connected("").session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES {properties}")
        costs[way] = {
            "wall_s": round(median(cost.wall_s for cost in times[1:]), 3),
            "cpu_s": round(median(cost.cpu_s for cost in times[1:]), 3),
        }
    return costs


def _written(lake: Lake, name: str) -> Action | None:
    with TableFile(lake, RUNS, name, {"broker": "b", "store_id": "benchmark"}) as file:
        file.write_rows([{"run": 1, "state": "measured", "time": datetime.now(UTC), "host": "here"}])
        return file.close()


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, commits=12, files=8)
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Delta's JVM prints there, too
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.commits, given.files)
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump({**provenance(), "commits": given.commits, "files": given.files, **found}, out, indent=2)


if __name__ == "__main__":
    main()
