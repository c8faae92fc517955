"""What a cluster's workers lack is said before a run begins, with the ways out."""

import sys
from socket import gethostname

import pytest
from pyspark.sql import SparkSession

from jobs.launch.workers_python import Lack, lacks


def test_workers_that_have_all_that_tasks_import_lack_nothing(spark: SparkSession) -> None:
    assert [] == lacks(spark.sparkContext)


def test_a_worker_that_lacks_a_package_is_named_with_its_python(spark: SparkSession) -> None:
    expected = [Lack(gethostname(), sys.executable, ("no_such_package",))]

    assert expected == lacks(spark.sparkContext, ("json", "no_such_package"))


@pytest.mark.parametrize("named", ["worker-7", "/opt/python3", "numpy, numba", "venv-pack2", "pyspark.python"])
def test_the_message_names_worker_python_packages_and_both_ways_out(named: str) -> None:
    assert named in str(Lack("worker-7", "/opt/python3", ("numpy", "numba")))
