"""
Measure `verify` of a healthy store with its log, queues and index.

    python -m benchmarks.verify [--mib N] [--runs N] [--cores N] [--directory DIR]

The baseline computes a checksum of the log's bytes. The store is in the page cache, and all variants run alternately,
each in a process of its own that has imported and loaded everything, as a command has before it reads the log.
`passes` is the number of bytes that `verify` reads from segments, divided by the size of the log.
"""

import os
from collections.abc import Callable
from functools import partial

from benchmarks.broker import RELEASE
from benchmarks.ingest import checksum_log
from benchmarks.measuring import count_reads, measure_alternately, parse_options, print_result, run_in_child
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import InProcessWorkers, SerialWorkers, Workers
from jobs.verify.run import verify

_NEVER = 1 << 62  # bytes of a log for which this process forks the workers


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, mib=2046, runs=5, cores=2, directory=DIRECTORY)
    store = make_healthy_store(Recipe(options.mib << 20, 1024), options.directory)

    def verify_store(workers: Workers) -> None:
        findings = verify(VerifyRequest(str(store), given_settings=GivenSettings(release=RELEASE)), workers).findings
        if findings:
            raise SystemExit(f"{store}: a generated store must be healthy, but verify reports {findings}")

    def verify_in_processes(number: int, large_log_size: int = 0) -> None:
        workers = ProcessWorkers({}, threads=1, processes=number, patience_s=0, large_log_size=large_log_size)
        verify_store(workers)
        workers.close()

    with count_reads("commitlog") as count:
        verify_store(SerialWorkers())
    few, many = options.cores, 4 * options.cores
    variants: dict[str, Callable[[], object]] = {
        "baseline: read": lambda: checksum_log(store),
        "verify, 1 thread": lambda: verify_store(SerialWorkers()),
        f"verify, {few} threads": lambda: verify_store(InProcessWorkers(width=few)),
        f"verify, {few} processes": lambda: verify_in_processes(few),
        f"verify, {many} processes": lambda: verify_in_processes(many),
        f"verify, {many} processes of a new interpreter": lambda: verify_in_processes(many, _NEVER),
    }
    costs = measure_alternately(
        {name: partial(run_in_child, run) for name, run in variants.items()},
        options.runs,
    )
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
