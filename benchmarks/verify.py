"""
Verify a healthy store, log, queues and index, against reading its log into a checksum.

    python -m benchmarks.verify [--mib N] [--runs N] [--cores N] [--folder DIR]

The store is in the page cache; both peers take turns. `passes` is the number of bytes that are read from segments,
divided by the size of the log.
"""

import os

from benchmarks.broker import RELEASE
from benchmarks.ingest import checksum
from benchmarks.measuring import answer, asked, count_log_bytes, in_turns
from benchmarks.stores import FOLDER, Recipe, make_healthy_store
from jobs.products.index.settings import GivenSettings
from jobs.store.workers import InProcessWorkers, SerialWorkers, Workers
from jobs.verify.run import VerifyRequest, verify


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=2048, runs=5, cores=2, folder=FOLDER)
    store = make_healthy_store(Recipe(given.mib << 20, 1024), given.folder)

    def verified(workers: Workers) -> None:
        findings = verify(VerifyRequest(str(store), GivenSettings(release=RELEASE)), workers).findings
        if findings:
            raise SystemExit(findings)

    peers = in_turns(
        {
            "read": lambda: checksum(store),
            "verify, one process": lambda: verified(SerialWorkers()),
            f"verify, {given.cores} processes": lambda: verified(InProcessWorkers(width=given.cores)),
        },
        given.runs,
    )
    with count_log_bytes() as read:
        verified(SerialWorkers())
    answer(
        {
            "mib": given.mib,
            "runs": given.runs,
            "load": os.getloadavg(),
            "peers": peers,
            "passes": round(read.total / (given.mib << 20), 2),
        }
    )


if __name__ == "__main__":
    main()
