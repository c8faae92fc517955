"""The findings on a damaged store depend neither on the engine nor on the division of its log into tasks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.console.result import RequestError
from jobs.requests.verify import VerifyRequest
from jobs.store.ranges import WHOLE_SEGMENTS
from jobs.store.spark_workers import SparkWorkers
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import SerialWorkers, Workers
from jobs.verify.run import verify
from rmq_formats.errors import FormatError
from tests.sampling import spread_over_workers
from tests.support.fault_draws import draw_case, plant_faults

_RANGE = 1024  # bytes: a store has up to a hundred ranges
_COUNT = 500
_PARTS = 25


def _describe_result(store: Path, workers: Workers, range_size: int) -> dict[str, Any]:
    """Return the verdict as JSON, or the error of a refused store."""
    try:
        return verify(VerifyRequest(str(store), range_size=range_size), workers).to_dict()
    except (FormatError, OSError, RequestError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _find_differences(seeds: Sequence[int], engines: Sequence[tuple[str, Workers, int]]) -> Iterator[str]:
    """Yield the draws of which an engine has another result than one task for each segment."""
    for seed in seeds:
        draw = draw_case(seed)
        with TemporaryDirectory() as name:
            store = plant_faults(draw, Path(name)).root
            expected = _describe_result(store, SerialWorkers(), WHOLE_SEGMENTS)
            for engine, workers, range_size in engines:
                result = _describe_result(store, workers, range_size)
                if different := [key for key in expected | result if expected.get(key) != result.get(key)]:
                    yield f"{seed}, {engine}, {draw}: {', '.join(different)}"


@pytest.mark.sample(2, always=["6"])
@pytest.mark.parametrize("seed", spread_over_workers(range(20)))
def test_many_ranges_have_the_same_findings_as_one_for_each_segment(seed: int) -> None:
    assert [] == list(_find_differences([seed], [("ranges", SerialWorkers(), _RANGE)]))


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", spread_over_workers(range(_PARTS)))
def test_processes_and_spark_have_the_same_findings_as_one_process(part: int, spark: SparkSession) -> None:
    processes = ProcessWorkers({}, threads=1, processes=2, patience_s=0)
    engines: list[tuple[str, Workers, int]] = [
        ("ranges", SerialWorkers(), _RANGE),
        ("processes", processes, _RANGE),
        ("spark", SparkWorkers(spark), _RANGE),
    ]

    differences = list(_find_differences(range(part, _COUNT, _PARTS), engines))
    processes.close()

    assert [] == differences
