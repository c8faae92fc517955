"""The Spark session of a run. Only verbs that need Spark import this module."""

import os

from pyspark.sql import SparkSession

from jobs.launch import spark


def spark_session(app_name: str) -> SparkSession:
    """Return the session of this process, started with the launcher's options where none runs yet."""
    if "PYSPARK_SUBMIT_ARGS" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Nobody launched us: a test, or a program that imports a verb.
        spark.prepare([])
    return SparkSession.builder.appName(app_name).getOrCreate()


def hadoop_options(spark: SparkSession) -> dict[str, str]:
    """Return the session's file system settings (`fs.s3a.…`), for clients that are not Hadoop's."""
    prefix = "spark.hadoop."
    return {
        name.removeprefix(prefix): value
        for name, value in spark.sparkContext.getConf().getAll()
        if name.startswith(f"{prefix}fs.")
    }
