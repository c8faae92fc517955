"""
What spark-submit is told.

The driver is this Python process: pyspark starts spark-submit, which starts the JVM. So standard output stays ours
(spark-submit merges the two streams of a driver that it starts itself), a usage error costs no JVM, and Ctrl-C arrives.
"""

import os
import shlex
from collections.abc import Sequence

from jobs.launch import jars
from jobs.launch.java import find_java_home
from jobs.launch.places import CONF

DEFAULT_MASTER = "local[*,4]"  # four attempts a task: plain local[*] gives one, and a killed worker would end the run


def prepare(spark_options: Sequence[str]) -> None:
    """Make the environment of this process such that the first SparkSession is the one that a run wants."""
    java_home = find_java_home()
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ["SPARK_HOME"] = str(jars.spark_home())
    arguments = [*_defaults(spark_options), *spark_options]
    arguments += ["--jars", ",".join(str(path) for path in jars.fetched("delta", java_home))]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*arguments, "pyspark-shell"])


def _defaults(spark_options: Sequence[str]) -> list[str]:
    given = {option.partition("=")[0] for option in spark_options}
    defaults = []
    if "--master" not in given:
        defaults += ["--master", DEFAULT_MASTER]
    if "--properties-file" not in given:
        defaults += ["--properties-file", str(CONF / "spark-defaults.conf")]
    defaults += ["--driver-java-options", f"-Dlog4j2.configurationFile={(CONF / 'log4j2.properties').as_uri()}"]
    return defaults
