"""
Measure `verify` of a healthy store with its log, queues and index.

    python -m benchmarks.verify [--mib N] [--runs N] [--cores N] [--directory DIR]

The baseline computes a checksum of the log's bytes. The store is in the page cache, and all variants run alternately.
`passes` is the number of bytes that `verify` reads from segments, divided by the size of the log.
"""

import os

from benchmarks.broker import RELEASE
from benchmarks.ingest import checksum_log
from benchmarks.measuring import count_reads, measure_alternately, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import InProcessWorkers, SerialWorkers, Workers
from jobs.verify.run import verify


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, mib=2046, runs=5, cores=2, directory=DIRECTORY)
    store = make_healthy_store(Recipe(options.mib << 20, 1024), options.directory)

    def verify_store(workers: Workers) -> None:
        findings = verify(VerifyRequest(str(store), given_settings=GivenSettings(release=RELEASE)), workers).findings
        if findings:
            raise SystemExit(f"{store}: a generated store must be healthy, but verify reports {findings}")

    def verify_in_processes(number: int) -> None:
        workers = ProcessWorkers({}, threads=1, processes=number, patience_s=0)
        verify_store(workers)
        workers.close()

    costs = measure_alternately(
        {
            "baseline: read": lambda: checksum_log(store),
            "verify, 1 thread": lambda: verify_store(SerialWorkers()),
            f"verify, {options.cores} threads": lambda: verify_store(InProcessWorkers(width=options.cores)),
            f"verify, {options.cores} processes": lambda: verify_in_processes(options.cores),
            f"verify, {4 * options.cores} processes": lambda: verify_in_processes(4 * options.cores),
        },
        options.runs,
    )
    with count_reads("commitlog") as count:
        verify_store(SerialWorkers())
    print_result(
        {
            "mib": options.mib,
            "runs": options.runs,
            "load": os.getloadavg(),
            "costs": costs,
            "passes": round(count.total_bytes / (options.mib << 20), 2),
        }
    )


if __name__ == "__main__":
    main()
